"""What a hostile reader of the manager found, each a claim now."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from test_manager import events, flip, names, state, train

import varve
from varve._manage import _place


def test_a_resume_that_found_nothing_whole_does_not_let_the_next_job_begin_anew(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 4))
    for step in range(1, 4):
        flip(next((run / f"step-0000000{step}").glob("data-*")))
    for _ in range(2):
        with (
            varve.CheckpointManager(run) as manager,
            pytest.raises(varve.CorruptCheckpointError, match="no whole step is left"),
        ):
            manager.resume(state())
    assert names(run) == [1, 2, 3]  # Nothing was set aside: no older one has loaded.


def test_steps_in_quarantine_alone_are_no_new_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 3))
    flip(next((run / "step-00000002").glob("data-*")))
    with varve.CheckpointManager(run) as manager:
        assert manager.resume(state()) == 1
    varve.remove(run / "step-00000001")
    with (
        varve.CheckpointManager(run) as manager,
        pytest.raises(varve.CorruptCheckpointError, match="step-00000002: in quarantine"),
    ):
        manager.resume(state())


def test_a_step_that_was_passed_over_and_saved_again_is_the_newest_of_the_next_resume(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 4))
        flip(next((run / "step-00000003").glob("data-*")))
        assert manager.resume(state()) == 2
        train(manager, [3])
        assert manager.resume(state()) == 3


def test_a_step_saved_again_after_a_resume_that_found_nothing_whole_is_resumed_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, [1])
    flip(next((run / "step-00000001").glob("data-*")))
    with varve.CheckpointManager(run, every=1) as manager:
        with pytest.raises(varve.CorruptCheckpointError, match="no whole step is left"):
            manager.resume(state())
        train(manager, [1])
        assert manager.resume(state()) == 1
    assert "does a host or a disk read badly" not in caplog.text


@pytest.mark.parametrize("verify", ["index", "full"])
@pytest.mark.parametrize("damage", ["bit", "cut", "missing"])
def test_a_step_whose_manifest_alone_is_damaged_is_repaired_and_resumed_from(
    tmp_path: Path, damage: str, verify: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 3))
    manifest = run / "step-00000002" / "manifest.bin"
    before = manifest.read_bytes()
    if damage == "missing":
        manifest.unlink()
    else:
        manifest.write_bytes(b"?" + before[1:] if damage == "bit" else before[:10])
    with varve.CheckpointManager(run, verify=verify) as manager:
        assert manager.resume(state()) == 2
    assert "its manifest was damaged and is repaired" in caplog.text
    assert manifest.read_bytes() == before and varve.steps(run)[-1].attempt == 1


@pytest.mark.parametrize("also", ["varve.json", "varve-step.json", "data"])
def test_a_step_is_set_aside_where_more_than_its_manifest_is_damaged(
    tmp_path: Path, also: str
) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 3))
    step = run / "step-00000002"
    (step / "manifest.bin").write_bytes(b"?")
    other = next(step.glob("data-*")) if also == "data" else step / also
    other.write_bytes(other.read_bytes()[:-1])
    with varve.CheckpointManager(run) as manager:
        assert manager.resume(state()) == 1
    assert names(run) == [1]


def test_damage_that_a_second_read_does_not_find_sets_no_step_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 3))
    load = varve.load

    def read_badly(into: Any, path: str, **options: Any) -> Any:
        if path.endswith("step-00000002"):
            raise varve.CorruptCheckpointError("a bit of this host's memory is stuck")
        return load(into, path, **options)

    with varve.CheckpointManager(run) as manager:
        monkeypatch.setattr(varve, "load", read_badly)
        assert manager.resume(state()) == 1
    assert names(run) == [1, 2]
    assert "a second read finds no damage" in caplog.text


def test_after_a_restore_the_same_step_is_saved_anew(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=10) as manager:
        train(manager, range(1, 21))
        manager.restore(10, state())
        for step in range(11, 21):
            manager.save(step, state(step + 1000))
    assert varve.read(run / "step-00000020")["n"] == 1020
    assert varve.latest(run) == str(run / "step-00000020")


def test_a_pinned_step_is_set_apart_before_its_number_comes_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=10) as manager:
        train(manager, range(1, 21))
        manager.pin(20, "best model for the paper")
        manager.restore(10, state())
        for step in range(11, 21):
            manager.save(step, state(step + 1000))
    assert varve.read(run / "step-00000020-pinned-1")["n"] == 20
    assert varve.steps(run)[-1].pin is None


def test_a_callback_that_raises_does_not_switch_retention_off(tmp_path: Path) -> None:
    def broken(_: Any) -> None:
        raise ValueError

    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=1, keep=2, on_saved=broken) as manager:
        train(manager, range(1, 8))
        manager.wait()
        assert names(run) == [6, 7]


def test_a_callback_that_waits_for_its_manager_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with varve.CheckpointManager(
        tmp_path / "run", every=1, on_saved=lambda _: manager.wait()
    ) as manager:
        train(manager, range(1, 3))
    assert "waits for the callback" in caplog.text


def test_after_the_last_save_of_a_stopped_run_only_the_policy_saves(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run) as manager:
        (run / "varve-stop").touch()
        deadline = time.monotonic() + 30
        step = 0
        while not manager.preempted and time.monotonic() < deadline:
            step += 1
            manager.save(step, state())
            time.sleep(0.01)
        for more in range(1, 6):
            assert manager.save(step + more, state()) is None


def test_a_request_to_stop_an_earlier_job_does_not_stop_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "varve-stop").touch()
    with varve.CheckpointManager(run) as manager:
        assert manager.save(1, state()) is None
        assert not manager.preempted
    assert "for an earlier job" in caplog.text


def test_a_history_of_any_content_stops_no_manager(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    lines = ["[" * 100_000, '{"event": "start", "time": 1e400}', "\0\xff", '{"event": 5}']
    huge = json.dumps({"event": "start", "time": 10**400})
    (run / _place.HISTORY_NAME).write_text("\n".join([*lines, huge, ""]), encoding="latin-1")
    with varve.CheckpointManager(run, every=varve.Every("auto")) as manager:
        manager.save(1, state(), force=True)
    assert [line["step"] for line in events(run, "save")] == [1]


def test_a_pin_of_any_bytes_is_a_pin(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 3))
    (run / "step-00000001" / "varve-pinned.txt").write_bytes(b"\xff\x1b[31m\n")
    pin = varve.steps(run)[0].pin
    assert pin is not None
    assert "xff" in pin
    assert not varve.prune(run, varve.Keep(last=1))[0].removed
