"""A pinned checkpoint is neither replaced nor removed, in any format, until it is unpinned. And what
else keeps a checkpoint from being hidden by another save of its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint.api import CheckpointException

import varve
import varve.torch
from varve.torch.dcp import FileSystemWriter

State = dict[str, torch.Tensor]


def apart(state: State, path: Path) -> None:
    varve.torch.save(state, path, coordinate=False, overwrite=True)


def dcp(state: State, path: Path) -> None:
    varve.torch.save(state, path, format="dcp", overwrite=True)


def dcp_in_place(state: State, path: Path) -> None:
    path.mkdir(exist_ok=True)
    (path / "notes.txt").write_text("mine")  # The directory stays, for what else it holds.
    torch_dcp.save(state, storage_writer=FileSystemWriter(path), no_dist=True)


def hf(state: State, path: Path) -> None:
    varve.torch.save(state, path, format="hf", overwrite=True)


def native(state: State, path: Path) -> None:
    varve.torch.save(state, path, overwrite=True)


@pytest.mark.parametrize("save", [native, apart, dcp, dcp_in_place, hf])
def test_a_pinned_checkpoint_stays_until_it_is_unpinned(
    save: Callable[[State, Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "step-1"
    save({"w": torch.ones(100)}, path)
    with varve.torch.CheckpointManager(tmp_path) as manager:
        manager.pin(1, "for the paper")

    refused = (varve.PreconditionError, CheckpointException)  # torch wraps what its writers raise.
    with pytest.raises(refused, match="pinned") as raised:
        save({"w": torch.zeros(100)}, path)
    assert str(path) in str(raised.value) and "varve unpin" in str(raised.value)
    with pytest.raises(varve.PreconditionError, match="varve unpin"):
        varve.remove(path)
    assert torch.equal(varve.torch.read(path)["w"], torch.ones(100))

    with varve.torch.CheckpointManager(tmp_path) as manager:
        manager.unpin(1)
    save({"w": torch.zeros(100)}, path)
    assert torch.equal(varve.torch.read(path)["w"], torch.zeros(100))
    varve.remove(path)
    assert not path.exists()


def test_ranks_that_save_apart_take_a_folder_that_only_looks_like_a_checkpoint(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.yaml").write_text("lr: 1")
    for name in ("model", "optim", "train"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    varve.torch.save({"w": torch.ones(3)}, tmp_path, coordinate=False)
    assert torch.equal(varve.torch.read(tmp_path)["w"], torch.ones(3))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("save", [dcp, hf])
def test_ranks_that_save_apart_hide_no_checkpoint_of_another_format(
    save: Callable[[State, Path], None], overwrite: bool, tmp_path: Path
) -> None:
    path = tmp_path / "step-1"
    save({"w": torch.ones(100)}, path)
    with pytest.raises(varve.CheckpointExistsError, match="another format"):
        varve.torch.save({"w": torch.zeros(100)}, path, coordinate=False, overwrite=overwrite)
    assert torch.equal(varve.torch.read(path)["w"], torch.ones(100))
