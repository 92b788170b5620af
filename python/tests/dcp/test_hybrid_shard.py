"""HYBRID_SHARD as torch's `save` describes it: one shard group saves, all ranks load."""

from __future__ import annotations

from pathlib import Path

import dcp_hybrid_jobs as jobs
import pytest
from ranks import run_ranks
from torch.distributed.checkpoint import state_dict_saver

import varve
import varve.agent
import varve.torch


@pytest.mark.slow
@pytest.mark.parametrize("call", ["save", "async_save", "process"])
def test_one_shard_group_saves_and_all_ranks_load(agent: str, tmp_path: Path, call: str) -> None:
    if call == "process" and not hasattr(state_dict_saver, "AsyncCheckpointerType"):
        pytest.skip("this torch saves in threads only")
    path = tmp_path / "step"
    run_ranks(4, jobs.one_group_saves, call, str(path))
    assert varve.verify(path) == []
    assert varve.torch.read(path)["step"] == 7
    assert len(list(path.glob("*.distcp"))) == 2, "a file for each rank of the group"
    if call == "process":
        assert {save.path for save in varve.agent.status().held} == {str(path)}
