"""What a manager does when its claim on a run cannot be asked for, or is not there."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import varve
import varve.torch
from varve._core import manage
from varve._manage._followup import FollowUp, Save
from varve._manage._places import Job, Places
from varve._manage._policy import Keep
from varve._manage._uploads import Uploads
from varve._upload import Copy


class Claim:
    """A claim on a run whose storage answers as told."""

    def __init__(self, answer: varve.Error | None) -> None:
        self.answer = answer

    def check_held(self) -> None:
        if self.answer is not None:
            raise self.answer

    def release(self) -> None:
        pass


def saved(run: Path, *steps: int) -> None:
    for step in steps:
        note = {"varve-step.json": manage.step_note(step, 1, None, 0, {})}
        varve.torch.save({"w": torch.full((10,), step)}, run / f"step-{step:08d}", files=note)


def names(run: Path) -> list[str]:
    return [one.name for one in varve.steps(str(run)) if one.state == "whole"]


def job_of(run: Path | str, **options: Any) -> Job:
    """A job of one process, and what became of its locks by place."""
    known = {"on_saved": None, "on_failure": None, "metrics_file": None, **options}
    settings = SimpleNamespace(
        name="step-{step:08d}", keep_uploaded=1, verify="index", max_restarts=None, **known
    )
    history = SimpleNamespace(add=lambda *_a, **fields: fields)
    place = SimpleNamespace(remove=lambda _name: None)
    given = cast(Any, (settings, history, place))
    places = Places(str(run), "", *given)
    return Job(str(run), given[0], Keep(last=1), 0, 1, given[1], places)


def follow_up(run: Path | str, lock: Any, **options: Any) -> FollowUp:
    job = job_of(run, **options)
    job.places.locks[job.run] = lock
    return FollowUp(job)


def test_a_save_is_followed_up_where_storage_does_not_say_whose_the_run_is(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    failures: list[int] = []
    ended: list[bool] = []
    claim = Claim(varve.UnavailableError("no answer"))
    after = follow_up(tmp_path, claim, on_failure=lambda step, _error: failures.append(step))
    after.on_end = lambda _save, durable: ended.append(durable)
    save = Save(3, str(tmp_path / "step-00000003"), 1, "asked", {}, 0.0)
    with after.began(save):
        pass
    future: Future[Any] = Future()
    future.set_exception(varve.OutOfSpaceError("full"))
    save.ended(future)
    after.finish()
    assert ended == [False] and failures == [3]
    after.prune(1, 1.0)  # Not known: nothing is removed.
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    claim.answer = None
    after.prune(1, 1.0)
    assert names(tmp_path) == ["step-00000002"]
    after.close()


def test_a_job_without_a_claim_removes_nothing_in_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned: list[str] = []
    monkeypatch.setattr(manage, "prune", lambda run, *_rest: pruned.append(run) or [])
    after = follow_up("s3://bucket/run", None)
    after.prune(1, 1.0)
    assert pruned == []
    after.may_remove = True  # As after a resume.
    after.prune_by_rules(1)
    assert pruned == []
    follow_up(tmp_path, None).prune(1, 1.0)  # A directory that cannot be locked.
    assert pruned == [str(tmp_path)]


def uploads_of(run: Path, to: Path, after: FollowUp, lock: Any) -> Uploads:
    job = cast(Any, after)._job
    job.places.locks[str(to)] = lock
    return Uploads(job, str(to), None, after, 10.0)


def test_a_job_that_lost_its_claim_in_a_round_uploads_and_removes_no_more(tmp_path: Path) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    saved(run, 1, 2, 3)
    saved(to, 7, 8)
    for step in (1, 2, 3):
        path = f"{run}/step-{step:08d}"
        varve._core.uploads.note_pending_upload(path, f"{to}/step-{step:08d}")
    claim = Claim(None)
    after = follow_up(run, None)
    uploads = uploads_of(run, to, after, claim)
    count = after.count_upload

    def lose(outcome: str, step: int | None = None) -> None:
        claim.answer = varve.PreconditionError("another job has it")
        count(outcome, step)

    cast(Any, after).count_upload = lose
    uploads.catch_up(1)
    uploads.close()
    after.finish()
    after.close()
    found = names(to)
    assert len(found) == 3 and {"step-00000007", "step-00000008"} <= set(found)


def test_a_step_that_always_fails_does_not_keep_others_from_being_uploaded(tmp_path: Path) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    saved(run, 1, 2)
    for step in (1, 2):
        path = f"{run}/step-{step:08d}"
        varve._core.uploads.note_pending_upload(path, f"{to}/step-{step:08d}")
    (to / "step-00000001").mkdir(parents=True)
    (to / "step-00000001" / "mine").write_text("no checkpoint")
    failures: list[tuple[int, BaseException]] = []
    after = follow_up(run, None, on_failure=lambda step, error: failures.append((step, error)))
    uploads = uploads_of(run, to, after, None)
    uploads.catch_up(1)
    uploads.close()
    after.finish()
    after.close()
    assert [step for step, _error in failures] == [1]
    assert not isinstance(failures[0][1], varve.CorruptCheckpointError)
    assert (to / "step-00000001" / "mine").exists()
    assert names(to) == ["step-00000002"]


def test_an_abort_ends_the_upload_under_way_and_those_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    saved(run, 1, 2)
    for step in (1, 2):
        path = f"{run}/step-{step:08d}"
        varve._core.uploads.note_pending_upload(path, f"{to}/step-{step:08d}")
    after = follow_up(run, None)
    uploads = uploads_of(run, to, after, None)
    make = Copy.make

    def make_and_abort(self: Copy, *arguments: Any, **options: Any) -> Any:
        uploads.abort()  # As a second Ctrl-C does from another thread.
        return make(self, *arguments, **options)

    monkeypatch.setattr(Copy, "make", make_and_abort)
    uploads.catch_up(1)
    uploads.catch_up(1)
    uploads.close()
    after.finish()
    after.close()
    assert names(to) == []
    assert len(varve._core.uploads.pending_uploads(str(run))) == 2


def test_the_note_of_a_step_that_an_agent_still_writes_is_not_forgotten(tmp_path: Path) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    saved(run, 1)
    path = f"{run}/step-00000002"
    varve._core.uploads.note_pending_upload(path, f"{to}/step-00000002")
    (note,) = run.glob(".*.varve-upload")

    def catch_up() -> None:
        after = follow_up(run, None)
        uploads = uploads_of(run, to, after, None)
        uploads.catch_up(1)
        uploads.close()
        after.finish()
        after.close()

    catch_up()
    assert note.exists()
    saved(run, 2)
    catch_up()
    assert names(to) == ["step-00000002"] and not note.exists()
    varve._core.uploads.note_pending_upload(f"{run}/step-00000003", f"{to}/step-00000003")
    (note,) = run.glob(".*.varve-upload")
    os.utime(note, (1, 1))
    catch_up()
    assert not note.exists()


def test_a_new_step_is_uploaded_also_where_its_note_is_gone(tmp_path: Path) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    after = follow_up(run, None)
    uploads = uploads_of(run, to, after, None)
    path = f"{run}/step-00000001"
    run.mkdir()
    uploads.promise(path)
    saved(run, 1)
    varve._core.uploads.forget_pending_upload(path)  # As a round of the step before did.
    after.on_end(Save(1, path, 1, "asked", {}, 0.0), True)
    uploads.close()
    after.finish()
    after.close()
    assert names(to) == ["step-00000001"]
