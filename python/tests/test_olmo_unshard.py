"""unshard_checkpoint: whole states, as private maps of files on the CPU."""

from __future__ import annotations

import tempfile
from pathlib import Path

import olmo_jobs as jobs
import pytest
import torch
from ranks import run_ranks
from same import same, sorted_dicts

import varve
import varve.olmo as olmo
import varve.torch


@pytest.mark.slow
def test_unsharding_gives_what_a_full_save_has(tmp_path: Path) -> None:
    for layout in ("full", "local"):
        run_ranks(2, jobs.save, "fsdp1", layout, str(tmp_path / layout))
    checkpointer = olmo.build_sharded_checkpointer(jobs.Config())
    model, optim, trainer = checkpointer.unshard_checkpoint(tmp_path / "local")
    assert optim is not None
    assert trainer is not None
    full, full_optim = olmo.FullCheckpointer(jobs.Config()).load_checkpoint(tmp_path / "full")
    assert full_optim is not None
    assert same(sorted_dicts(model), sorted_dicts(full))
    assert same(sorted_dicts(optim["state"]), sorted_dicts(full_optim["state"]))
    assert trainer["global_step"] == 100
    assert checkpointer.unshard_checkpoint(
        tmp_path / "local", load_optimizer_state=False, load_trainer_state=False
    )[1:] == (None, None)
    model["embed.weight"].add_(1)
    again, *_ = checkpointer.unshard_checkpoint(tmp_path / "local")
    assert not torch.equal(again["embed.weight"], model["embed.weight"]), "the maps are private"


@pytest.mark.slow
def test_unsharded_tensors_are_maps_of_files_that_leave_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    varve.torch.save({"model": {"w": torch.arange(1 << 20)}}, tmp_path / "c")
    read = olmo.build_sharded_checkpointer(jobs.Config()).unshard_checkpoint
    model, *_ = read(tmp_path / "c", load_optimizer_state=False, load_trainer_state=False)
    assert torch.equal(model["w"], torch.arange(1 << 20))
    assert list(scratch.iterdir()) == []
    assert str(scratch) in mapping_of(model["w"])

    def full(*_: object) -> None:
        raise varve.OutOfSpaceError("no space left")

    monkeypatch.setattr(varve._core, "convert", full)
    model, *_ = read(tmp_path / "c", load_optimizer_state=False, load_trainer_state=False)
    assert torch.equal(model["w"], torch.arange(1 << 20))
    assert str(scratch) not in mapping_of(model["w"])


def mapping_of(tensor: torch.Tensor) -> str:
    """Returns the line of /proc/self/maps with the tensor's memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return line
    raise AssertionError("the tensor is in no mapping")
