"""Saves in the background: Stager, async_save and the handle it returns.

The engine copies the state in the call and writes the copy on threads of its own, without the GIL
(src/checkpoint/async_job.cc). Here: which stager a call uses, futures, and what happens at exit.

A stager's background threads talk to those of the other ranks. When a message of theirs is lost, the
ranks may be out of step for good: the stager then refuses further saves. The refusal goes through the
plans that all ranks exchange, so all learn of it in the same call; stagers that were made by
`async_save` itself are then replaced on all ranks together, and the call is made once more.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, cast

import torch
import torch.distributed as dist

from varve import _core, _engine, _tree, agent
from varve._engine import SaveReport
from varve.errors import CancelledError, Error, InvalidArgumentError
from varve.torch import _run
from varve.torch._coordinator import collective, make_background, name_of
from varve.torch._failures import Failures, is_failure, log_dropped, warn_of_earlier
from varve.torch._tensors import TorchArrays, cuda_device, local_bytes

_LOST = "the stager has lost touch with other ranks in an earlier save"

#: Seconds in which the other ranks, which wait for it, take the outcome of the last save from this one.
_LAST_MESSAGES = 30.0

#: All stagers that are not closed. Dropping one would wait for its saves on whatever thread the last
#: reference goes, which may be the one that writes them.
_open: set[Stager] = set()

#: Stagers made by async_save: by world (as in _coordinator.py), process group and executor.
_made: dict[Any, Stager] = {}

#: Such stagers that are no longer used, to be closed when their saves have ended.
_retired: list[Stager] = []


class SaveHandle(Future[SaveReport]):
    """A save under way: a future of its report, and one of its copy.

    As a future it ends when the checkpoint is durable and visible, with the error on every rank if the
    save failed. It has the two futures of torch's AsyncSaveResponse as well. A handle that is dropped
    when its save has failed, before `result` or `exception` was called, logs that error.

    Attributes:
        staging_completion: Ends when the copy has been made: tensors may change.
        upload_completion: This future.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.staging_completion: Future[None] = Future()
        self.staging_completion.set_running_or_notify_cancel()
        self.path = ""
        self._engine: Any = None
        self._keep: Any = None
        self._looked_at = False
        self._failed = False
        self._asked_to_end = False

    def result(self, timeout: float | None = None) -> SaveReport:
        """Waits for the end of the save, `timeout` seconds at most. Raises what it failed with."""
        self._looked_at = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits likewise; returns what the save failed with, or None."""
        self._looked_at = True
        return super().exception(timeout)

    def __del__(self) -> None:
        if self._failed and not self._looked_at:
            log_dropped(self.path, self._exception)

    @property
    def upload_completion(self) -> SaveHandle:
        """This future."""
        return self

    def wait_staged(self, timeout: float | None = None) -> None:
        """Waits until the tensors may change. Raises what kept the copy from being made."""
        self.staging_completion.result(timeout)

    def wait_staged_before(self, optimizer: Any) -> None:
        """Makes the next step of a torch optimizer wait for the copy, once."""

        def wait(*_: Any) -> None:
            hook.remove()
            self.wait_staged()

        hook = optimizer.register_step_pre_hook(wait)

    def cancel(self) -> bool:
        """Gives the save up on all ranks; its result is then a CancelledError.

        Other ranks learn of it when they have written their part. Returns False when it has already ended. It may still end well if it was about to be visible.
        """
        if self.done():
            return False
        self._asked_to_end = True
        if self._engine is not None:
            self._engine.cancel()
        return True

    def cancelled(self) -> bool:
        """True when it ended because it was cancelled, skipped or replaced."""
        return self.done() and isinstance(self._exception, CancelledError)

    def _end_staging(self, error: BaseException | None) -> None:
        self._keep = None
        if error is None:
            self.staging_completion.set_result(None)
        else:
            self.staging_completion.set_exception(error)

    def _end(self, report: SaveReport | None, error: BaseException | None) -> None:
        if error is None:
            assert report is not None
            self.set_result(report)
        else:
            self.set_exception(error)
        self._engine = None  # Which holds what calls this: a circle that Python cannot see.


class Stager:
    """Memory and threads for saves in the background, kept from save to save.

    All ranks of the group make one, together, and give it to their calls of `async_save`. Saves of one
    stager are written one after the other.

    Args:
        process_group: As in `save`.
        memory_budget: Bytes of memory for copies, for all saves in flight together. By default half of
            what the process could get, divided by the ranks of this node (LOCAL_WORLD_SIZE, or all
            ranks up to 8). A state that is larger is copied in waves: the call then waits for the disk.
        copy_threads: Threads that copy; by default as many as there are cores, at most 8.
        max_in_flight: Saves that may be under way at once.
        when_busy: "wait" for one of them to end, "skip" the new save, or "replace" the newest one that
            has not begun to write. Skipped and replaced saves end with a CancelledError on all ranks.
        at_exit: What the end of the interpreter does to saves under way: "wait" for them or "abort".
        executor: "thread" writes them in this process; "process" hands them over to the agent of this
            node (`varve.agent`), which is started if need be and goes on when this process is killed.
            The newest save stays in memory then, within `memory_budget`, as long as there is room.
        copy_from_devices: Copy tensors that are on CUDA devices straight into the staging memory, on a
            stream of the stager's own. By default torch copies them to the CPU first, and that copy is
            then copied. What has strides, or is of a tensor subclass, goes that way in any case.
        pinned_memory: Register the staging memory with the CUDA driver, when it is first used, so that
            devices copy straight to it. Only with `copy_from_devices`.
        timeout: Seconds any rank waits for the others here.

    Raises:
        InvalidArgumentError: The arguments make no sense, or not together.
        UnsupportedError: There is no CUDA driver to copy from devices with.
    """

    def __init__(
        self,
        process_group: Any = None,
        *,
        memory_budget: int = 0,
        copy_threads: int = 0,
        max_in_flight: int = 2,
        when_busy: str = "wait",
        at_exit: str = "wait",
        executor: str = "thread",
        copy_from_devices: bool = False,
        pinned_memory: bool = False,
        timeout: float = 1800.0,
    ) -> None:
        if at_exit not in ("wait", "abort"):
            raise InvalidArgumentError(f'at_exit={at_exit!r}: want "wait" or "abort"')
        if executor not in ("thread", "process"):
            raise InvalidArgumentError(f'executor={executor!r}: want "thread" or "process"')
        self.process_group = process_group
        self.at_exit = at_exit
        self.executor = executor
        self.copy_from_devices = copy_from_devices
        self._failures = Failures()
        self._aborted = False
        # Agents have a channel of their own.
        self._background = make_background(process_group, timeout) if executor == "thread" else None
        options: dict[str, Any] = {
            "memory_budget": memory_budget,
            "local_ranks": _local_ranks(),
            "copy_threads": copy_threads,
            "max_in_flight": max_in_flight,
            "when_busy": when_busy,
            "copy_from_devices": copy_from_devices,
            "pinned_memory": pinned_memory,
        }
        if executor == "process":
            options["agent"] = agent.program()
        self._engine: Any = _core.Stager(options, self._background)
        _open.add(self)

    @property
    def memory_budget(self) -> int:
        """Bytes of memory for copies."""
        return int(self._usable().budget_bytes)

    def prepare(self, state: Mapping[Any, Any] | int) -> None:
        """Begins to take memory for a state, or that many bytes, from the system, in the background.

        New memory takes 10 to 60 times as long to write to as memory that was used before: call this
        ahead of the first save, as soon as the state exists.
        """
        if isinstance(state, int):
            size = state
            initialized = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            device = torch.cuda.current_device() if initialized else None
        else:
            size, device = _bytes_and_device_of(state)
        self._usable().prepare(size, device)

    def wait_prepared(self) -> None:
        """Waits for `prepare`."""
        self._usable().wait_prepared()

    def drain(self) -> None:
        """Waits for the saves under way. Their handles say how they ended."""
        self._usable().drain()

    def abort(self) -> None:
        """Cancels the saves under way, and waits for that."""
        self._aborted = True
        self._usable().abort()

    def close(self) -> None:
        """Waits for the saves under way and gives the memory back. May be called again."""
        if self._engine is not None:
            self._engine.drain()
            self._engine = None
            if self._background is not None:
                self._background.flush(_LAST_MESSAGES)
                self._background.hang_up()
            _open.discard(self)

    def __enter__(self) -> Stager:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _usable(self) -> Any:
        if self._engine is None:
            raise InvalidArgumentError("the stager is closed")
        return self._engine

    @property
    def _lost(self) -> bool:
        return self._background is not None and self._background.lost


def async_save(
    state_dict: Mapping[Any, Any],
    path: str | os.PathLike[str],
    *,
    process_group: Any = None,
    stager: Stager | None = None,
    executor: str | None = None,
    staging: str = "blocking",
    write: str = "now",
    overwrite: bool = False,
    allow_pickle: bool = False,
    coordinate: bool = True,
    format: str = "varve",
    save_id: bytes | None = None,
    on_difference: str = "warn",
    check_replicas: str = "samples",
    timeout: float = 1800.0,
    progress: Callable[[int, int], None] | None = None,
    max_write_bandwidth: int = 0,
    retries: int = 1,
    deadline: float | None = None,
    check_torn: bool | None = None,
    on_failure: str = "log",
    on_done: Callable[[SaveHandle], None] | None = None,
) -> SaveHandle:
    """Saves the ranks' states in the background: returns when they have been copied.

    Collective over the process group like `save`. A save that fails does not end the training: its
    handle has the error, on every rank. Rank 0 also logs it (logger "varve"), and the next call with
    the same stager warns of it. Ctrl-C during the call cancels this save on all ranks.

    Args:
        state_dict: As in `save`. Plain values are taken as they are at the call.
        path: As in `save`.
        process_group: As in `save`; the stager's, if one is given.
        stager: Kept by the caller for all saves; by default one is made for each process group and
            kept until the interpreter ends.
        executor: "thread" or "process", as in Stager; the stager's, or "thread".
        staging: "blocking", or "overlapped": return at once and copy while training computes. Nothing
            may then write to the tensors before `handle.wait_staged()`; see `wait_staged_before`.
        write: "now", or "at_end": the agent keeps the copy in memory and writes it only if this process
            ends, be it killed, before a newer save has taken its place. The handle's result is then that
            of this rank's copy alone. Only with executor="process".
        overwrite: As in `save`.
        allow_pickle: As in `save`.
        coordinate: As in `save`.
        format: As in `save`.
        save_id: As in `save`.
        on_difference: As in `save`; the warning comes in this call.
        check_replicas: As in `save`. Tensors are not compared where the stager copies them from devices.
        timeout: As in `save`, for each time that ranks wait for each other.
        progress: As in `save`; not with executor="process".
        max_write_bandwidth: Bytes a second that this rank writes at most; 0 for no limit.
        retries: How often a save that failed for want of space or of storage is written again, from
            the copy, after a second, two, and so on.
        deadline: Seconds from the call on after which the save is given up.
        check_torn: Compare samples of every tensor before and after the copy, to find one that was
            written to meanwhile. By default where VARVE_DEBUG is set in the environment.
        on_failure: "log", or "raise": the call raises where an earlier save of the stager has failed
            since the last call, or where this one fails before it returns; on all ranks alike. Nothing
            is then saved.
        on_done: Called with the handle when it has ended, on the thread that writes the next save: it
            must be quick, and wait for no other save, be it to start one.

    Returns:
        A future of the SaveReport; see SaveHandle.

    Raises:
        InvalidArgumentError: The arguments themselves make no sense.
    """
    if staging not in ("blocking", "overlapped"):
        raise InvalidArgumentError(f'staging={staging!r}: want "blocking" or "overlapped"')
    if on_done is not None and not callable(on_done):
        raise InvalidArgumentError(f"on_done={on_done!r}: want a function of the handle")
    if on_failure not in ("log", "raise"):
        raise InvalidArgumentError(f'on_failure={on_failure!r}: want "log" or "raise"')
    if stager is not None:
        if process_group is None:
            process_group = stager.process_group
        elif process_group is not stager.process_group:
            raise InvalidArgumentError("the stager was made for another process_group")
        if executor not in (None, stager.executor):
            raise InvalidArgumentError(f"the stager was made with executor={stager.executor!r}")
    if write not in ("now", "at_end"):
        raise InvalidArgumentError(f'write={write!r}: want "now" or "at_end"')
    if write == "at_end" and "process" not in (executor, stager.executor if stager else None):
        raise InvalidArgumentError('write="at_end" needs executor="process"')
    where = _engine.path_text(path)
    options: dict[str, Any] = {
        "write_at_end": write == "at_end",
        "overwrite": overwrite,
        "coordinate": coordinate,
        "format": format,
        "on_difference": on_difference,
        "check_replicas": check_replicas,
        "timeout": timeout,
        "max_write_bandwidth": max_write_bandwidth,
        "overlapped": staging == "overlapped",
        "retries": retries,
    }
    if progress is not None:
        options["progress"] = progress
    if deadline is not None:
        options["deadline"] = deadline
    if check_torn is not None:
        options["check_torn"] = check_torn
    if not coordinate:
        options["save_id"] = _run.save_id(where, process_group, save_id)

    def begin(stager: Stager) -> SaveHandle:
        if not coordinate:
            me = _run.me(process_group)
            return _start(state_dict, where, stager, me, allow_pickle, options, on_failure)
        with collective(process_group, timeout, name_of("save", path)) as coordinator:
            return _start(state_dict, where, stager, coordinator, allow_pickle, options, on_failure)

    executor = executor or "thread"
    handle = begin(stager or _stager_of(process_group, executor, timeout))
    if stager is None and _was_lost(handle):
        handle._looked_at = True
        _retire(process_group, executor)
        handle = begin(_stager_of(process_group, executor, timeout))
    copied = handle.staging_completion
    if on_failure == "raise" and handle.done() and copied.done() and copied.exception():
        handle.result()
    if on_done is not None:
        handle.add_done_callback(cast("Callable[[Future[SaveReport]], object]", on_done))
    return handle


def _start(
    state: Mapping[Any, Any],
    path: str,
    stager: Stager,
    coordinator: Any,
    allow_pickle: bool,
    options: dict[str, Any],
    on_failure: str,
) -> SaveHandle:
    stager_engine = stager._usable()
    handle = SaveHandle()
    handle.path = path
    refusal: str | None = _LOST if stager._lost else None
    cause: BaseException | None = None
    if on_failure == "raise":
        known = stager._failures.take()
        if known is not None and refusal is None:
            refusal, cause = known
    else:
        warn_of_earlier(stager._failures)
    deadline = time.monotonic() + options["deadline"] if "deadline" in options else None
    rank = 0 if coordinator is None else coordinator.rank
    parts = _engine.Gathered([], [], b"", [])
    if refusal is None:
        try:
            parts = _engine.gather(state, TorchArrays(stager.copy_from_devices), rank, allow_pickle)
        except Exception as error:
            cause = error
            refusal = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"

    def end_staging(error: BaseException | None) -> None:
        handle._end_staging(error)

    def end(report: dict[str, Any] | None, error: BaseException | None) -> None:
        if error is not None:
            if cause is not None:
                error.__cause__ = cause
            if is_failure(error, handle._asked_to_end or stager._aborted, deadline):
                handle._failed = True
                tells = rank == 0 or stager._lost or not options["coordinate"]
                stager._failures.add(path, error, tells)
        handle._end(None if report is None else SaveReport(**report), error)

    engine_options = {**options, "on_staged": end_staging, "on_done": end}
    if refusal is not None:
        engine_options["not_ready"] = refusal
    handle._keep = parts
    engine = _core.async_save(
        stager_engine,
        parts.tensors,
        parts.objects,
        parts.structure,
        path,
        engine_options,
        coordinator,
    )
    handle._engine = engine
    if handle.done():
        handle._engine = None
    _engine.warn_of_differences(engine.differing_tensors)
    return handle


def _was_lost(handle: SaveHandle) -> bool:
    return handle.done() and handle._exception is not None and _LOST in str(handle._exception)


def _world() -> Any:
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def _stager_of(process_group: Any, executor: str, timeout: float) -> Stager:
    """The stager that calls without one share."""
    world = _world()
    key = (world, process_group if process_group is not None else world, executor)
    for other in [other for other in _made if other[0] is not world]:
        _retired.append(_made.pop(other))  # Of a world that has ended.
    for stager in [stager for stager in _retired if stager._engine.idle]:
        _retired.remove(stager)
        stager.close()
    if key not in _made:
        _made[key] = Stager(process_group, executor=executor, timeout=timeout)
    return _made[key]


def _retire(process_group: Any, executor: str) -> None:
    """Sets a stager that has lost touch aside; its saves under way end by themselves."""
    world = _world()
    stager = _made.pop(
        (world, process_group if process_group is not None else world, executor), None
    )
    if stager is not None:
        _retired.append(stager)


def _local_ranks() -> int:
    """Processes of this node that each have a stager, as far as can be known without asking."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return min(dist.get_world_size(), 8) if _world() is not None else 1


def _bytes_and_device_of(state: Mapping[Any, Any]) -> tuple[int, int | None]:
    """About what this rank would copy, replicas counted whole; and a CUDA device that some is on."""
    arrays = TorchArrays()
    flat = _tree.Flattener(0, arrays.is_tensor, arrays.origin)
    flat.flatten(state)
    tensors = [tensor for _, tensor in flat.tensors]
    devices = (cuda_device(tensor) for tensor in tensors)
    return sum(map(local_bytes, tensors)), next((d for d in devices if d is not None), None)


def _at_exit() -> None:
    """Ends what is under way before the interpreter does."""
    for stager in list(_open):
        if stager.at_exit == "abort":
            stager.abort()
        stager.close()


def _in_child() -> None:
    """A forked child has neither the threads nor the memory of its parent's stagers: closed to it."""
    for stager in _open:
        stager._engine = None  # The binding does not destroy what another process has made.
    _open.clear()
    _made.clear()
    _retired.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
