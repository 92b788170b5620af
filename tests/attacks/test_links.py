"""Symbolic links are followed to read, and never to write or to remove."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import formats
import numpy as np
import pytest
from readers import VERBS, run, said

import varve


@pytest.mark.parametrize("make", ["dcp", "native", "hf"])
def test_a_link_out_of_the_checkpoint_is_read(make: str, binary: Path, tmp_path: Path) -> None:
    """The cache of Hugging Face's tools consists of links. A user who may put a link there may put
    bytes there as well; a name in an index, which may come from far away, does not lead out."""
    if make == "dcp":
        path = formats.Dcp().write(tmp_path)
    elif make == "hf":
        path = formats.hf_folder(tmp_path, b'{"weight_map":{"w":"a.safetensors"}}')
    else:
        path = tmp_path / "native"
        varve.save({"w": np.arange(8.0)}, path)
    before = varve.read(path)["w"].tolist()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in list(path.iterdir()):
        shutil.move(file, elsewhere / file.name)
        file.symlink_to(elsewhere / file.name)
    assert varve.read(path)["w"].tolist() == before
    for verb in VERBS:
        assert said(verb, binary, path, tmp_path / "out") == ""


def test_gc_removes_links_and_nothing_that_they_lead_to(binary: Path, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    (outside / "mine").write_text("x" * 1000)
    stale = folder / f".step-1.varve-saving-{'0123456789abcdef' * 2}"
    stale.mkdir(parents=True)
    (stale / "folder").symlink_to(outside)
    (stale / "file").symlink_to(outside / "mine")
    (stale / "nowhere").symlink_to(outside / "absent")
    for name in ("round", "and-round", "again"):  # Followed, more paths than there is time for.
        (stale / name).symlink_to(stale)
    done = run(binary, "gc", folder, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bytes"] == 0 and found["removed"] == [] and len(found["conflicts"]) == 6
    assert len(list(stale.iterdir())) == 6, "no save makes links: they are somebody's"
    (stale / ".varve-staging").touch()  # A save has made them: they have a name elsewhere.
    done = run(binary, "gc", folder, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bytes"] == 0
    assert list(folder.iterdir()) == []
    assert (outside / "mine").read_text() == "x" * 1000


def test_gc_does_not_go_through_a_link_to_another_run(binary: Path, tmp_path: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    folder.mkdir()
    varve.save({"w": np.zeros(3)}, other / "step-1")
    part = other / "step-1" / ".data-00000-of-00001-0123456789ab.safetensors.varve-part"
    part.write_bytes(b"x")
    (folder / "step-1").symlink_to(other / "step-1")
    assert json.loads(run(binary, "gc", folder, "--json").stdout)["removed"] == []
    assert part.exists()
    assert json.loads(run(binary, "gc", other, "--json").stdout)["removed"] == [str(part)]


def test_repair_does_not_write_through_a_link(binary: Path, tmp_path: Path) -> None:
    path, mine = tmp_path / "step-1", tmp_path / "mine"
    varve.save({"w": np.zeros(3)}, path)
    (path / "manifest.bin").unlink()
    mine.write_text("precious")
    (path / ".manifest.bin.varve-part").symlink_to(mine)
    done = run(binary, "repair", path)
    assert done.returncode == 0 and not (path / "manifest.bin").is_symlink()
    assert mine.read_text() == "precious"


def test_a_save_does_not_make_its_lock_through_a_link(tmp_path: Path) -> None:
    (tmp_path / ".step-%31.varve-lock").symlink_to(tmp_path / "made")
    with pytest.raises(varve.InvalidArgumentError, match="symbolic links"):
        varve.save({"w": np.zeros(3)}, tmp_path / "step-1")
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "step-1").exists()


@pytest.mark.parametrize("to", ["varve", "dcp", "hf"])
def test_convert_replaces_the_checkpoint_that_a_link_leads_to(
    to: str, binary: Path, tmp_path: Path
) -> None:
    source, mine, target = tmp_path / "source", tmp_path / "mine", tmp_path / "target"
    varve.save({"w": np.zeros(3)}, source)
    varve.save({"w": np.ones(4)}, mine)
    target.symlink_to(mine)
    assert run(binary, "convert", source, target, "--to", to).returncode == 2
    done = run(binary, "convert", source, target, "--to", to, "--overwrite")
    assert done.returncode == 0 and target.is_symlink(), done.stderr
    assert varve.read(mine)["w"].tolist() == [0, 0, 0]
    assert varve.verify(mine) == []
