"""What differs between ranks under one name: each value is stored once and comes back to its ranks."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import kept_jobs as jobs
import pytest
import torch
from ranks import errors_of_ranks, run_ranks
from safetensors.torch import load_file

import varve
import varve.torch

DIFFERING = ["params", "position", "rng"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint of 3 ranks, of which rank 1 held other values."""
    path = str(tmp_path_factory.mktemp("kept") / "step-1")
    run_ranks(3, jobs.save, path, "save", {})
    return path


def own(rank: int) -> dict[str, Any]:
    return jobs.summary(jobs.state_of(rank))


@pytest.mark.parametrize("how", ["save", "thread", "process"])
def test_every_rank_gets_its_own_values_back(how: str, tmp_path: Path, agent: str) -> None:
    path = str(tmp_path / "step-1")
    first, *others = run_ranks(3, jobs.save, path, how, {})
    tensors, objects, texts = first
    assert (tensors, objects) == (["w"], DIFFERING)
    assert len(texts) == 1
    assert "tensors: w; plain values: params, position, rng" in texts[0]
    assert 'on_difference="first"' in texts[0] and "PerRank" in texts[0]
    assert "one_will_do=['w', 'params', 'position', 'rng']" in texts[0]
    assert others == [([], [], [])] * 2
    for rank, (state, kept, merged) in enumerate(run_ranks(3, jobs.load, path, {})):
        assert state == own(rank)
        assert (kept, merged) == ([*DIFFERING, "w"], [])
    assert varve.verify(path) == []


def test_values_that_are_staged_in_waves_come_back_to_their_ranks(tmp_path: Path) -> None:
    saved = run_ranks(2, jobs.save_in_waves, str(tmp_path / "step-1"))
    assert saved == [(True, [0.0]), (True, [1.0])]


def test_each_value_is_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    assert run_ranks(4, jobs.save_experts, str(path)) == [0.0, 1.0, 0.0, 1.0]
    files = [file.stat().st_size for file in path.glob("data-*")]
    assert sum(files) < 2 * 4 * jobs.ELEMENTS + 4 * 16_384, "two experts, and four headers"
    assert sum(size > 4 * jobs.ELEMENTS for size in files) == 2, "each whole, by one of its ranks"


def test_another_world_is_refused_and_told_what_to_do(saved: str) -> None:
    for error in errors_of_ranks(2, jobs.load, saved, {}).values():
        assert "InvalidArgumentError" in error and "3 ranks that saved" in error
        assert "params, position, rng, w" in error
        assert 'on_difference="first"' in error and "PerRank" in error
    state = jobs.blank()
    with pytest.raises(varve.InvalidArgumentError, match="nothing was loaded"):
        varve.torch.load(state, saved)
    assert jobs.summary(state) == jobs.summary(jobs.blank())


def test_names_that_are_not_wanted_hinder_nothing(saved: str) -> None:
    state = jobs.blank()
    varve.torch.load(state, saved, keys=["same", "step"])
    assert (state["step"], state["same"][-1].item()) == (7, jobs.ELEMENTS - 1)


@pytest.mark.parametrize("size", [2, 3])
def test_the_lowest_ranks_values_are_loaded_where_that_is_asked_for(saved: str, size: int) -> None:
    for state, kept, merged in run_ranks(size, jobs.load, saved, {"on_difference": "first"}):
        assert state == own(0)
        assert (kept, merged) == ([], [*DIFFERING, "w"])


def test_a_random_state_goes_on_where_it_was(saved: str) -> None:
    (state, _, _) = run_ranks(3, jobs.load, saved, {})[1]
    generator = random.Random()
    generator.setstate(state["rng"])
    assert generator.random() == random.Random(1).random()


def test_a_run_warns_once_and_once_more_where_one_value_is_saved(tmp_path: Path) -> None:
    first, second = run_ranks(2, jobs.save_often, str(tmp_path))
    assert len(first) == 2
    assert "Each rank's value is saved" in first[0] and "value of the lowest" in first[1]
    assert second == []


def test_the_manager_logs_it_once_and_resumes(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    first, second = run_ranks(2, jobs.manage, run)
    assert len(first) == 1 and "step-" in first[0] and "w" in first[0]
    assert second == []
    assert run_ranks(2, jobs.resume, run) == [own(0), own(1)]


def test_buffers_of_a_module_take_the_lowest_ranks_value_in_another_world(tmp_path: Path) -> None:
    path = str(tmp_path / "step-1")
    means = run_ranks(2, jobs.save_batch_norm, path)
    assert means[0] != means[1]
    names = ["model.module.running_mean", "model.module.running_var"]
    for rank, (mean, kept, merged, texts) in enumerate(run_ranks(2, jobs.load_batch_norm, path)):
        assert (mean, kept, merged, texts) == (means[rank], names, [], [])
    ((mean, kept, merged, texts),) = run_ranks(1, jobs.load_batch_norm, path)
    assert (mean, kept, merged) == (means[0], [], names)
    assert len(texts) == 1 and names[0] in texts[0]
    plain = {"model": {"module": torch.nn.BatchNorm1d(32).state_dict()}}
    with pytest.raises(varve.InvalidArgumentError, match="running_mean"):
        varve.torch.load(plain, path)


def test_stages_of_a_pipeline_are_a_union_and_keep_their_param_groups(tmp_path: Path) -> None:
    came_back = run_ranks(2, jobs.pipeline, str(tmp_path / "step-1"))
    assert came_back == [(0.0, ["layer0.w"]), (1.0, ["layer1.w"])]


@pytest.mark.parametrize("options", [{"format": "dcp"}, {"on_difference": "first"}])
def test_one_value_is_stored_where_that_is_asked_for(
    options: dict[str, Any], tmp_path: Path
) -> None:
    path = str(tmp_path / "step-1")
    tensors, objects, texts = run_ranks(2, jobs.save, path, "save", options)[0]
    assert (tensors, objects) == (["w"], DIFFERING)
    assert "saved is the value of the lowest" in texts[0]
    state, kept, merged = run_ranks(2, jobs.load, path, {})[1]
    assert state == own(0) and (kept, merged) == ([], [])


def test_other_readers_see_the_lowest_ranks_value(saved: str, tmp_path: Path) -> None:
    assert jobs.summary(varve.torch.read(saved)) == own(0)
    opened = varve.torch.open(saved)
    assert opened["w"][:1].item() == 0.0 and opened["position"] == 100
    assert set(opened) == set(jobs.blank())
    stored = {}
    for file in sorted(Path(saved).glob("data-*")):
        stored.update(load_file(file))
    assert stored["w"].unique().tolist() == [0.0]
    for name in ("dcp", "varve"):
        report = varve.convert(saved, tmp_path / name, to=name)
        assert report.merged == ["w", *DIFFERING]
        assert jobs.summary(varve.torch.read(tmp_path / name)) == own(0)
    varve.convert(saved, tmp_path / "whole.pt", to="torch")
    assert jobs.summary(torch.load(tmp_path / "whole.pt", weights_only=False)) == own(0)
    assert varve.diff(saved, tmp_path / "varve") == []


def test_torchs_protocol_gets_a_ranks_own_values_too(saved: str) -> None:
    for rank, (state, texts) in enumerate(run_ranks(3, jobs.load_by_dcp, saved)):
        assert state == {name: own(rank)[name] for name in ("w", "position")}
        assert texts == []
    ((state, texts),) = run_ranks(1, jobs.load_by_dcp, saved)
    assert state == {name: own(0)[name] for name in ("w", "position")}
    assert len(texts) == 1 and "lowest" in texts[0]


def test_the_command_line_says_how_many_values_there_are(saved: str) -> None:
    program = Path(sys.executable).parent / "varve"
    text = subprocess.run(
        [program, "inspect", saved], capture_output=True, text=True, check=True
    ).stdout
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["tensor"][-1] == "values"
    assert (rows["w"][-1], rows["same"][-1]) == ("2", "1")
    assert (rows["position"][-1], rows["step"][-1]) == ("2", "1")
    assert "__varve__" not in text


def test_ranks_that_saved_apart_get_their_own_values_back_too(tmp_path: Path) -> None:
    path = str(tmp_path / "step-1")
    run_ranks(3, jobs.save_apart, path)
    names = [*DIFFERING, "w"]
    for repaired in (False, True):
        for rank, (state, kept, merged) in enumerate(run_ranks(3, jobs.load, path, {})):
            assert state == own(rank) and (kept, merged) == (names, [])
        with pytest.raises(
            varve.InvalidArgumentError, match=r"3 ranks .* params, position, rng, w"
        ):
            varve.torch.load(jobs.blank(), path)
        state = jobs.blank()
        report = varve.torch.load(state, path, on_difference="first")
        assert jobs.summary(state) == own(0) == jobs.summary(varve.torch.read(path))
        assert report.merged == names
        assert varve.verify(path) == []
        if not repaired:
            varve.repair(path)


def test_a_load_says_of_which_names_one_value_will_do(saved: str) -> None:
    state = jobs.blank()
    some = ["pos*", "params"]
    with pytest.raises(
        varve.InvalidArgumentError, match="by 1: rng, w; nothing was loaded"
    ) as error:
        varve.torch.load(state, saved, one_will_do=some)
    assert "one_will_do=[names]" in str(error.value) and "keys=" in str(error.value)
    with jobs.warned() as texts:
        report = varve.torch.load(state, saved, one_will_do=[*some, "rng", "w"])
    assert jobs.summary(state) == own(0) and report.merged == [*DIFFERING, "w"] and texts == []
    renamed = {"at": None}
    varve.torch.load(renamed, saved, rename={"position": "at"}, keys="at", one_will_do="at")
    assert renamed == {"at": 100}
    arrays = {"position": None, "params": None}
    varve.load(arrays, saved, one_will_do="*")
    assert arrays == {"position": 100, "params": [0, 1, 2]}
    for rank, (state, kept, _) in enumerate(
        run_ranks(3, jobs.load, saved, {"one_will_do": ["params"]})
    ):
        assert state == own(rank) and kept == [*DIFFERING, "w"], "as many ranks get their own"


def test_a_run_that_measures_times_is_resumed_by_another_world(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    (text,) = run_ranks(2, jobs.measure, run)[0]
    assert "one_will_do=['elapsed', 'host']" in text and "resume" in text, text
    state = {"w": torch.zeros(4), "elapsed": 0.0, "host": "", "step": 0}
    with varve.torch.CheckpointManager(run) as manager:
        with pytest.raises(varve.InvalidArgumentError, match=r"elapsed, host.*one_will_do="):
            manager.resume(state)
        assert manager.resume(state, one_will_do=["elapsed", "host"]) == 1
    assert (state["elapsed"], state["host"], state["step"]) == (1.5, "node-0", 1)
    assert state["w"].tolist() == [7.0] * 4
