"""varve.hfai.init, and the method try_save that it gives a model."""

from __future__ import annotations

import multiprocessing
import signal
import time
from pathlib import Path
from typing import Any

import hfai_jobs
import pytest
import torch
from hfai_original import assert_same
from torch import nn

import varve.hfai
from varve.errors import InvalidArgumentError


def test_init_without_a_checkpoint_starts_anew(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    start = varve.hfai.init(net, None, ckpt_path=tmp_path / "latest.pt", suspend=None)
    assert start == (0, 0, None)
    assert net.try_save(0, 1) is False  # type: ignore[operator]
    with pytest.raises(RuntimeError, match="not initialized"):
        net.try_save(0, 1, force=True)  # type: ignore[operator]


def test_init_warns_of_a_checkpoint_that_has_lost_its_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert varve.hfai.init(nn.Linear(2, 2), None, ckpt_path=tmp_path, suspend=None) == (0, 0, None)
    assert f"{tmp_path} is an empty directory" in caplog.text


def test_try_save_and_init_give_back_everything(one_rank: None, tmp_path: Path) -> None:
    path = tmp_path / "latest.pt"
    net, adam = hfai_jobs.trained(1)
    schedule = torch.optim.lr_scheduler.StepLR(adam, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    wanted = False
    varve.hfai.init(net, adam, schedule, scaler, path, suspend=lambda: wanted)
    assert net.try_save(1, 2) is False  # type: ignore[operator]
    wanted = True
    schedule.step()
    assert net.try_save(4, 100, others={"best": 0.5}) is True  # type: ignore[operator]
    stored = varve.hfai.load(path)
    assert set(stored) == {
        "model",
        "optimizer",
        "epoch",
        "step",
        "scheduler",
        "amp_scaler",
        "others",
    }
    again, other = hfai_jobs.trained(1, seed=4)
    fresh = torch.optim.lr_scheduler.StepLR(other, 1)
    grown = torch.amp.GradScaler("cpu")
    assert varve.hfai.init(again, other, fresh, grown, path) == (4, 100, {"best": 0.5})
    assert_same(again.state_dict(), net.state_dict())
    assert_same(other.state_dict(), adam.state_dict())
    assert fresh.last_epoch == schedule.last_epoch and grown.get_scale() == 512.0


@pytest.mark.parametrize("handler", ["default", "a function"])
def test_sigterm_ends_a_forked_child(handler: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    before = signal.getsignal(signal.SIGTERM)
    ended = context.Event()
    try:
        signal.signal(
            signal.SIGTERM, signal.SIG_DFL if handler == "default" else lambda *_: ended.set()
        )
        net = nn.Linear(2, 2)
        varve.hfai.init(net, None, ckpt_path=tmp_path / "x")
        begun = context.Event()
        child = context.Process(target=_wait, args=(begun, ended), daemon=True)
        child.start()
        assert begun.wait(60)
        child.terminate()
        child.join(30)
        assert child.exitcode == (-signal.SIGTERM if handler == "default" else 0)
        assert net.try_save(0, 1) is False  # type: ignore[operator]
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait(begun: Any, ended: Any) -> None:
    begun.set()
    deadline = time.monotonic() + 60
    while not ended.is_set() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_a_signal_for_all_processes_of_a_job_does_not_end_a_forked_child(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    try:
        varve.hfai.init(nn.Linear(2, 2), None, ckpt_path=tmp_path / "x", suspend=signal.SIGUSR2)
        context = multiprocessing.get_context("fork")
        child = context.Process(target=signal.raise_signal, args=(signal.SIGUSR2,))
        child.start()
        child.join(60)
        assert child.exitcode == 0
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_signal_asks_for_a_save_and_earlier_handlers_run(one_rank: None, tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _frame: seen.append(number))
    try:
        net = nn.Linear(2, 2)
        varve.hfai.init(net, None, ckpt_path=tmp_path / "x", suspend=signal.SIGUSR2)
        assert net.try_save(0, 1) is False  # type: ignore[operator]
        signal.raise_signal(signal.SIGUSR2)
        assert net.try_save(0, 2) is True  # type: ignore[operator]
        assert seen == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)
    with pytest.raises(InvalidArgumentError, match="suspend"):
        varve.hfai.init(nn.Linear(2, 2), None, suspend="SIGTERM")  # type: ignore[arg-type]


def test_init_refuses_what_try_save_did_not_write(one_rank: None, tmp_path: Path) -> None:
    varve.hfai.save(tmp_path / "x", nn.Linear(2, 2))
    with pytest.raises(InvalidArgumentError, match=r'no "epoch".*varve\.hfai\.load'):
        varve.hfai.init(nn.Linear(2, 2), None, ckpt_path=tmp_path / "x", suspend=None)
