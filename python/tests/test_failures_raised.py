"""The error that on_failure="raise" raises: in the next call, that of the save that failed in the background."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks

import varve
import varve.torch
from varve.torch._failures import raised_again

LONG = 60.0


def test_the_next_call_raises_the_error_of_a_full_disk(small_disk: Path) -> None:
    state = {"w": torch.zeros(9 << 20, dtype=torch.uint8)}
    with varve.torch.Stager(memory_budget=32 << 20) as stager:
        failed = varve.torch.async_save(state, small_disk / "a", stager=stager).exception(LONG)
        assert isinstance(failed, varve.OutOfSpaceError)
        with pytest.raises(
            varve.OutOfSpaceError, match=r"a background save has failed.*No space"
        ) as caught:
            varve.torch.async_save(state, small_disk / "b", stager=stager, on_failure="raise")
    raised = caught.value
    assert raised.errno == errno.ENOSPC and raised.code == failed.code
    assert raised.path == failed.path and "/.a." in str(raised.path)
    assert raised.__cause__ is failed


@pytest.mark.parametrize(
    "error",
    [
        varve.OutOfSpaceError("full", errno=errno.EDQUOT, path="/a/data", rank=3),
        varve.errors.PermissionDeniedError("no", errno=errno.EACCES, path="/a", rank=0),
        varve.errors.NoAnswerError("late", errno=errno.ETIMEDOUT),
        varve.UnavailableError("i/o", errno=errno.EIO, path="/a", reason=varve.errors.STAGER_LOST),
        varve.CorruptCheckpointError("damage", path="/a"),
        varve.CheckpointExistsError("there", path="/a"),
        varve.errors.AccessRefusedError("keys", errno=errno.EACCES, path="s3://b/a"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_raised_again_is_of_its_class(error: varve.Error) -> None:
    again = raised_again("a background save has failed", error)
    assert type(again) is type(error)
    for name in ("code", "rank", "path", "errno", "filename"):
        assert getattr(again, name, None) == getattr(error, name, None)
    assert str(again) == "a background save has failed"
    assert again.reason == ""  # It is no refusal of the stager that takes the next save.


def test_an_error_of_other_software_is_raised_as_an_argument(tmp_path: Path) -> None:
    again = raised_again("a background save has failed: KeyError", KeyError("w"))
    assert type(again) is varve.InvalidArgumentError


def fail_and_save_again(rank: int, size: int, folder: str) -> list[Any]:
    """Saves to a name that is taken, and again; returns what the second call raises."""
    state = {"w": torch.zeros(8), "mine": varve.torch.PerRank(rank)}
    with varve.torch.Stager() as stager:
        failed = varve.torch.async_save(state, f"{folder}/taken", stager=stager).exception(LONG)
        try:
            varve.torch.async_save(state, f"{folder}/next", stager=stager, on_failure="raise")
        except varve.Error as error:
            of = [
                [type(one).__name__, one.code, one.errno, one.path]
                for one in (failed, error)
                if isinstance(one, OSError)
            ]
            varve.torch.async_save(state, f"{folder}/next", stager=stager).result(LONG)
            return of
    return []


def test_all_ranks_raise_the_error_of_the_failed_save(tmp_path: Path) -> None:
    varve.torch.save({"w": torch.zeros(3)}, tmp_path / "taken")
    for failed, raised in run_ranks(2, fail_and_save_again, str(tmp_path)):
        assert raised == failed and raised[3] == str(tmp_path / "taken")
        assert raised[:3] == ["CheckpointExistsError", "AlreadyExists", errno.EEXIST]
    assert varve.verify(tmp_path / "next") == []
