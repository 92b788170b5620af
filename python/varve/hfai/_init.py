"""`varve.hfai.init` and the method that it gives the model, `try_save`."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

from varve._arguments import RemoteOverwrite, check_remote_overwrite
from varve._engine import is_remote, path_text
from varve._forks import resend
from varve.errors import InvalidArgumentError, PreconditionError
from varve.hfai._errors import NoDirectoryError, WrongTypeError
from varve.hfai._load import load
from varve.hfai._save import save

_LOG = logging.getLogger("varve")

#: The source of requests to suspend: a function that returns True once one has come, or a signal.
Suspend = Callable[[], bool] | signal.Signals | int


class _SignalFlag:
    """True once a signal has come. The handler that was there before runs too, if it is a function.

    In a forked child SIGTERM does what it did before: Process.terminate() and a Pool end children by it.
    """

    def __init__(self, number: int) -> None:
        self.came = False
        self._process = os.getpid()
        before = signal.signal(number, self._note)
        self._before = signal.SIG_DFL if before is None else before

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process and number == signal.SIGTERM:
            resend(number, self._before)
            return
        self.came = True
        if callable(self._before):
            self._before(number, frame)

    def __call__(self) -> bool:
        return self.came


def init(
    model: Module | list[Module],
    optimizer: Optimizer | list[Optimizer] | None,
    scheduler: Any = None,
    amp_scaler: Any = None,
    ckpt_path: str | os.PathLike[str] | None = None,
    *,
    suspend: Suspend | None = signal.SIGTERM,
    group: Any = None,
    remote_overwrite: RemoteOverwrite = "refuse",
) -> tuple[int, int, Any]:
    """Resumes from `ckpt_path` where there is a checkpoint, and gives the model the method `try_save`.

    Collective where torch.distributed is initialized.

    `model.try_save(epoch, step, others=None, force=False)` is collective: every rank calls it, each
    time. If a request to suspend has come to any rank, or `force` is true on any, all ranks save to
    `ckpt_path` and it returns True. Otherwise it returns False, at the price of one all_reduce of one
    number. It does not end the process: leave the loop when it returns True. The entries of `others`
    that it stores are "epoch", "step", "scheduler" and "amp_scaler" (their state dicts, or None) and
    "others" (what was given).

    Args:
        model: A module or a list of them; the first gets the method.
        optimizer: An optimizer, a list of them, or None.
        scheduler: A learning rate scheduler, or None: anything with `state_dict` and `load_state_dict`.
        amp_scaler: A GradScaler, or None: the same.
        ckpt_path: The checkpoint to resume from and to save to. None resumes from none, and
            `try_save` raises PreconditionError when it has to save.
        suspend: The source of requests for a save: a function without arguments that returns True once the job is
            to be suspended, or a signal, whose handler is then set (in the main thread only). By
            default SIGTERM, which schedulers send before they take the node. None: `force` alone.
        group: The process group of the saves; None for all ranks.
        remote_overwrite: As `varve.hfai.save`'s. Each save goes to the one `ckpt_path`, so that in an object store
            "in_place" must be given: it is asked for here, not when the job is to be suspended.

    Returns:
        Epoch, step and `others` as the last `try_save` got them; (0, 0, None) where there is no
        checkpoint.

    Raises:
        InvalidArgumentError: `ckpt_path` is in an object store, and `remote_overwrite` is "refuse".
        PreconditionError: Some ranks see the checkpoint and some do not.
        As `varve.hfai.load`, and `load_state_dict` of what is given.
    """
    models = model if isinstance(model, list) else [model]
    if not models or not all(isinstance(item, Module) for item in models):
        raise WrongTypeError("`model`: want a torch Module or a list of them")
    check_remote_overwrite(remote_overwrite)
    if ckpt_path is not None and remote_overwrite == "refuse" and is_remote(path_text(ckpt_path)):
        raise InvalidArgumentError(
            f"ckpt_path={os.fspath(ckpt_path)!r} is in an object store, where try_save can replace a checkpoint "
            "in place alone: between its first write and its last there is none. Allow that with "
            'remote_overwrite="in_place", or give a directory'
        )
    requested = _request_source(suspend)
    start = _resume(models, optimizer, scheduler, amp_scaler, ckpt_path, group)

    def try_save(epoch: int, step: int, others: Any = None, force: bool = False) -> bool:
        """Saves if a request to suspend has come to any rank, or with `force`; returns whether it did."""
        if not _any_rank(force or requested(), group):
            return False
        if ckpt_path is None:
            raise PreconditionError("try_save has to save, and varve.hfai.init got no ckpt_path")
        entries = {
            "epoch": epoch,
            "step": step,
            "scheduler": None if scheduler is None else scheduler.state_dict(),
            "amp_scaler": None if amp_scaler is None else amp_scaler.state_dict(),
            "others": others,
        }
        save(ckpt_path, model, optimizer, entries, group, remote_overwrite=remote_overwrite)
        return True

    models[0].try_save = try_save  # type: ignore[assignment]
    return start


def _request_source(suspend: Suspend | None) -> Callable[[], bool]:
    if suspend is None:
        return lambda: False
    if callable(suspend) and not isinstance(suspend, signal.Signals):
        return suspend
    if isinstance(suspend, int) and not isinstance(suspend, bool):
        return _SignalFlag(int(suspend))
    raise InvalidArgumentError(
        f"suspend={suspend!r}: want a function without arguments, a signal, or None"
    )


def _resume(
    models: list[Module],
    optimizer: Any,
    scheduler: Any,
    amp_scaler: Any,
    path: str | os.PathLike[str] | None,
    group: Any,
) -> tuple[int, int, Any]:
    """Fills everything from the checkpoint, if there is one."""
    if path is None:
        return 0, 0, None
    state: dict[str, Any] | None = None
    failure: Exception | None = None
    try:
        state = load(path, map_location="cpu")
    except NoDirectoryError:
        pass
    except Exception as error:  # The other ranks wait for this one.
        failure = error
    seen, failed = _counts([state is not None, failure is not None], group)
    if failure is not None:
        raise failure
    if failed or seen not in (0, _world(group)):
        raise PreconditionError(
            f"{os.fspath(path)}: of {_world(group)} ranks {seen} have read the checkpoint and {failed} have "
            "failed; all ranks must share one file system"
        )
    if state is None:
        if _world(group) == 1 or dist.get_rank(group) == 0:
            _warn_if_empty(os.fspath(path))
        return 0, 0, None
    missing = [key for key in ("epoch", "step") if key not in state]
    if missing:
        raise InvalidArgumentError(
            f'{os.fspath(path)} has no "{missing[0]}": try_save did not write it; use varve.hfai.load'
        )
    _give(models, state["model"])
    _give([] if optimizer is None else optimizer, state["optimizer"])
    for target, key in ((scheduler, "scheduler"), (amp_scaler, "amp_scaler")):
        if target is not None and state.get(key) is not None:
            target.load_state_dict(state[key])
    return state["epoch"], state["step"], state.get("others")


def _warn_if_empty(path: str) -> None:
    """Warns where the checkpoint's directory is empty: a user has made it, or its files have been removed."""
    if os.path.isdir(path) and not os.listdir(path):
        _LOG.warning(
            "varve.hfai.init: %s is an empty directory: training begins at step 0. If a checkpoint was there, its "
            "files have been removed",
            path,
        )


def _give(targets: Any, states: Any) -> None:
    """Loads state dicts into the objects that they are of."""
    into = targets if isinstance(targets, list) else [targets]
    stored = states if isinstance(states, list) else [states]
    if len(into) != len(stored):
        raise InvalidArgumentError(
            f"the checkpoint has {len(stored)} models or optimizers, init got {len(into)}"
        )
    for target, state in zip(into, stored, strict=True):
        target.load_state_dict(state)


def _world(group: Any) -> int:
    ready = dist.is_available() and dist.is_initialized()
    return dist.get_world_size(group) if ready else 1


def _any_rank(mine: bool, group: Any) -> bool:
    return _counts([mine], group)[0] > 0


def _counts(mine: list[bool], group: Any) -> list[int]:
    """Returns, for each answer, on how many ranks it is true. Collective."""
    if _world(group) == 1:
        return [int(answer) for answer in mine]
    on_cuda = "nccl" in str(dist.get_backend(group))
    device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
    counts = torch.tensor([int(answer) for answer in mine], device=device)
    dist.all_reduce(counts, group=group)
    return [int(count) for count in counts.tolist()]
