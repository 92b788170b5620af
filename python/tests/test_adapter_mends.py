"""Checkpoints whose manifest alone is lost or damaged: the adapters rebuild it, as the manager does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import varve
from varve.integrations import _hf_folders, _newest, _steps


def newest_hf(folder: Path, verify: bool) -> str | None:
    return _hf_folders.newest_good(str(folder), "checkpoint-", verify, lambda _: "no")


#: How an adapter names its checkpoints, and what it takes first.
CHOICES: dict[str, tuple[str, Callable[[Path], str | None]]] = {
    "torchtitan": ("step-{}", lambda folder: _steps.whole_steps(str(folder))[0]),
    "transformers": ("checkpoint-{}", lambda folder: newest_hf(folder, True)),
    "transformers, index alone": ("checkpoint-{}", lambda folder: newest_hf(folder, False)),
    "lightning": ("{}.ckpt", lambda folder: _newest.newest_good(str(folder))),
    "lightning, sharded": ("{}.ckpt", lambda folder: _newest.whole_in(str(folder))[0]),
}


def damage(manifest: Path, how: str) -> None:
    if how == "missing":
        manifest.unlink()
    elif how == "empty":
        manifest.write_bytes(b"")
    else:
        content = bytearray(manifest.read_bytes())
        content[len(content) // 2] ^= 1
        manifest.write_bytes(content)


def save(folder: Path, names: list[str]) -> None:
    for number, name in enumerate(names):
        varve.save({"w": np.arange(3000.0), "global_step": number}, folder / name)


@pytest.mark.parametrize("damaged", ["newest", "older", "all"])
@pytest.mark.parametrize("how", ["missing", "empty", "bit"])
@pytest.mark.parametrize("adapter", CHOICES)
def test_the_newest_is_taken_where_manifests_alone_are_damaged(
    adapter: str, how: str, damaged: str, tmp_path: Path
) -> None:
    pattern, choose = CHOICES[adapter]
    names = [pattern.format(number) for number in (1, 2)]
    save(tmp_path, names)
    for name in {"newest": names[1:], "older": names[:1], "all": names}[damaged]:
        damage(tmp_path / name / "manifest.bin", how)
    chosen = choose(tmp_path)
    assert chosen is not None and Path(chosen).name == names[1]
    assert varve.verify(tmp_path / names[1]) == []


@pytest.mark.parametrize("adapter", [one for one in CHOICES if one != "lightning, sharded"])
@pytest.mark.parametrize("also", ["varve.json", "data"])
def test_one_whose_other_files_are_damaged_too_is_not_taken_for_whole(
    adapter: str, also: str, tmp_path: Path
) -> None:
    pattern, choose = CHOICES[adapter]
    names = [pattern.format(number) for number in (1, 2)]
    save(tmp_path, names)
    newest = tmp_path / names[1]
    damage(newest / "manifest.bin", "missing")
    if also == "varve.json":
        (newest / also).unlink()
    else:
        data = next(newest.glob("data-*"))
        content = bytearray(data.read_bytes())
        content[-4096] ^= 1
        data.write_bytes(content)
    reads = adapter in ("transformers", "lightning")  # The others read the bytes when they load.
    expected = names[0] if reads or also == "varve.json" else names[1]
    chosen = choose(tmp_path)
    assert chosen is not None and Path(chosen).name == expected


def test_the_first_removal_finishes_what_a_killed_job_was_removing(tmp_path: Path) -> None:
    save(tmp_path, ["checkpoint-1", "checkpoint-2", "checkpoint-3"])
    left = tmp_path / ".checkpoint-1.varve-removed-0123456789ab"
    (tmp_path / "checkpoint-1").rename(left)
    (tmp_path / "notes").mkdir()
    assert _hf_folders.rotate(str(tmp_path), "checkpoint-", 1, []) == [
        str(tmp_path / "checkpoint-2")
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-3", "notes"]
