"""Files that mean harm give the error that their table says, in all that opens them."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import formats
import legacy_ranks
import local_ranks
import pytest
from bombs import zstd_bomb
from make import ATTACKS, READ
from readers import HANGS_AFTER, VERBS, said

import varve


def everything_under(folder: Path) -> dict[str, Any]:
    """Names, kinds, sizes and times of change: nothing that was written to goes unseen."""
    return {
        str(path.relative_to(folder)): (info.st_mode, info.st_size, info.st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        for info in [path.lstat()]
    }


#: Attacks that take seconds to be made, or to be refused.
SLOW = {
    "olmo_dialect_values_grow",
    "olmo_legacy_lists_a_million_shards",
    "olmo_legacy_tensors_share_their_shards",
    "olmo_local_handles_share_their_names",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in ATTACKS]
)
def test_every_command_says_what_is_wrong(name: str, binary: Path, tmp_path: Path) -> None:
    attack, folder = ATTACKS[name], tmp_path / "given"
    folder.mkdir()
    path = attack.make(folder, tmp_path / "canary")
    before = everything_under(folder)
    for verb in VERBS:
        if verb == "ls" and not path.is_dir():
            continue  # It lists directories.
        text = said(verb, binary, path, tmp_path / "out")
        if verb in attack.reads:
            assert text and attack.says in text.replace('\\"', '"'), f"{verb}: {text!r}"
        else:
            assert text == "", verb
    assert everything_under(folder) == before
    assert {entry.name for entry in tmp_path.iterdir()} <= {"given", "out"}


PROGRAM = """
import json, sys, varve, varve.torch, torch
for line in sys.stdin:
    path, verb = json.loads(line)
    try:
        if verb == "read":
            varve.torch.read(path)
        elif verb == "read arrays":
            varve.read(path)
        else:
            a = 0 if verb == "load a value" else torch.zeros(4)
            state = {"w": torch.zeros(8), "a": a, "step": 0, "": 0}
            # Where OLMo's layouts have the value.
            state |= {part: {"step": 0, "state": {"w": {"m": 0}}} for part in ("model", "optim", "train")}
            varve.torch.load(state, path, strict=False)
        print(json.dumps(["", ""]), flush=True)
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "varve.errors"]
        print(json.dumps([(kinds or [type(error).__name__])[0], str(error)]), flush=True)
"""


@pytest.mark.slow
def test_python_raises_what_the_table_says(tmp_path: Path) -> None:
    made: dict[str, Path] = {}
    asked = []
    for name, attack in ATTACKS.items():
        folder = tmp_path / name
        folder.mkdir()
        made[name] = attack.make(folder, tmp_path / "canary")
        load = "load a value" if attack.reads == READ else "load"
        asked += [(name, "read"), (name, "read arrays"), (name, load)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="".join(json.dumps([str(made[name]), verb]) + "\n" for name, verb in asked),
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER,
        # Torch alone maps more than the 2 GiB of the command line's tests.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)),
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = []
    for (name, verb), (error, text) in zip(asked, answers, strict=True):
        attack = ATTACKS[name]
        if verb.split()[0] in attack.reads:
            fine = error == attack.error and attack.says in text
        else:  # Nothing of the attack is wanted, or no memory holds it: the allocator's own errors.
            fine = error in ("", "MemoryError", "RuntimeError", "ValueError")
        if not fine:
            wrong.append(f"{name}, {verb}: {error}: {text[:200]}")
    assert wrong == []
    assert not (tmp_path / "canary").exists()


def test_a_value_that_is_a_zstd_bomb_ends_at_a_gibibyte(binary: Path, tmp_path: Path) -> None:
    dcp = formats.Dcp()
    more = {"transform_descriptors": formats.lst(formats.text("stream.zstd/1"))}
    path = dcp.value("step", zstd_bomb(1 << 16), **more).write(tmp_path)
    assert "zstd stream holds more" in said("verify", binary, path, tmp_path / "out")


def test_without_its_lie_each_file_opens(binary: Path, tmp_path: Path) -> None:
    root = formats.dct(formats.text("a"), formats.floats(4))
    (tmp_path / "a.pt").write_bytes(formats.archive(root, bytes(16)))
    (tmp_path / "b.pt").write_bytes(formats.legacy(root, (4,)))
    (tmp_path / "a.safetensors").write_bytes(formats.safetensors({"w": formats.f32(0, 32, [8])}))
    dcp = formats.Dcp().value("step", formats.archive(formats.num(3))).write(tmp_path)
    native = formats.native(tmp_path)
    hf = formats.hf_folder(tmp_path, b'{"weight_map":{"w":"a.safetensors"}}')
    local = local_ranks.local(tmp_path, local_ranks.model(), optim_0=local_ranks.optimizer())
    (tmp_path / "legacy").mkdir()
    legacy = legacy_ranks.alone(tmp_path / "legacy", (4,), legacy_ranks.place((0,), (4,), 0))
    files = [tmp_path / name for name in ("a.pt", "b.pt", "a.safetensors")]
    for number, path in enumerate((dcp, native, hf, local, legacy, *files)):
        out = tmp_path / f"out-{number}"
        assert [said(verb, binary, path, out) for verb in VERBS[1:]] == ["", "", ""], path
    assert varve.read(dcp)["step"] == 3
    assert varve.read(dcp)["w"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_python_itself_runs_the_index(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    path = ATTACKS["dcp_index_is_a_call"].make(tmp_path, canary)
    program = f"import pickle; pickle.load(open({str(path / '.metadata')!r}, 'rb'))"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=HANGS_AFTER)
    assert canary.exists()
