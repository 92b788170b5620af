"""Stagers: memory and threads for saves in the background, and the choice of one for a call.

A stager's background threads exchange messages with those of the other ranks. When a message is lost,
the ranks may be out of step for good: the stager then refuses further saves (_background.py).
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist

from varve import _tree, agent
from varve._core import Channel, background
from varve._forks import leave_to_parent
from varve.errors import InvalidArgumentError, PreconditionError
from varve.torch._coordinator import make_background
from varve.torch._failures import Failures
from varve.torch._later import UploadsOfStager
from varve.torch._shards import cuda_device, is_shard, local_bytes
from varve.torch._tensors import TorchArrays

#: Seconds within which the other ranks, which wait for it, receive the outcome of the last save
#: from this one.
_LAST_MESSAGES = 30.0

#: All stagers that are not closed. Dropping one would wait for its saves on whatever thread the last
#: reference goes, which may be the one that writes them.
_open: set[Stager] = set()

#: Stagers made by async_save: by world (as in _coordinator.py), process group, executor and the
#: package whose async_save it is.
_made: dict[Any, Stager] = {}

#: Such stagers that are no longer used, with their packages; to be closed when their saves have ended.
_retired: list[tuple[str, Stager]] = []

#: Channels of such stagers that were closed, likewise: making one is collective, and each rank closes its
#: stagers for itself.
_channels: dict[Any, Channel] = {}

#: The interpreter ends, and has ended the saves under way.
_exiting = False

#: The package that makes stagers by default.
_OWNER = "varve.torch"


class Stager:
    """Memory and threads for saves in the background, kept from save to save.

    All ranks of the group make one, together, and give it to their calls of `async_save`. Saves of one
    stager are written one after the other.

    Args:
        process_group: As in `save`.
        memory_budget: Bytes of memory for copies, for all saves in flight together. By default half of
            what the process could get, divided by the ranks of this node (LOCAL_WORLD_SIZE, or all
            ranks up to 8). A state that is larger is copied in waves: the call then waits for the disk.
        copy_threads: Threads that copy; by default as many as there are cores, half as many in
            overlapped saves, at most 8; more where tensors are on devices, for most of these wait.
        max_in_flight: Saves that may be under way at once.
        when_busy: "wait" for one of them to end, "skip" the new save, or "replace" the newest one that
            has not begun to write. Skipped and replaced saves end with a CancelledError on all ranks.
        at_exit: What the end of the interpreter does to saves under way: "wait" for them or "abort".
        executor: "thread" writes them in this process; "process" submits them to the agent of this
            node (`varve.agent`), which is started if need be and goes on when this process is
            killed. The newest save stays in memory then, within `memory_budget`, as long as there
            is room.
        copy_from_devices: The engine copies tensors that are on CUDA devices, straight into the staging
            memory and on a stream of its own. None does so wherever there is a driver; True makes it an
            error where there is none. With False torch copies them to the CPU first, as it does with
            tensor subclasses in any case.
        pinned_memory: Register the staging memory with the CUDA driver, in few large ranges and in the
            background, so that devices copy straight to it. False never does; None where a tensor is on a
            device.
        timeout: Seconds any rank waits for the others here.

    Raises:
        InvalidArgumentError: The arguments make no sense, or not together.
        UnsupportedError: `copy_from_devices` is True, and there is no CUDA driver.
    """

    def __init__(
        self,
        process_group: Any = None,
        *,
        memory_budget: int = 0,
        copy_threads: int = 0,
        max_in_flight: int = 2,
        when_busy: Literal["wait", "skip", "replace"] = "wait",
        at_exit: str = "wait",
        executor: str = "thread",
        copy_from_devices: bool | None = None,
        pinned_memory: bool | None = None,
        timeout: float = 1800.0,
    ) -> None:
        if _exiting:
            raise PreconditionError(
                "the interpreter ends, and would not wait for a save in the background; call "
                "varve.torch.save, or register the function that saves after `import varve.torch`"
            )
        if at_exit not in ("wait", "abort"):
            raise InvalidArgumentError(f'at_exit={at_exit!r}: want "wait" or "abort"')
        if executor not in ("thread", "process"):
            raise InvalidArgumentError(f'executor={executor!r}: want "thread" or "process"')
        options = background.StagerOptions(
            memory_budget=memory_budget,
            local_ranks=_local_ranks(),
            copy_threads=copy_threads,
            max_in_flight=max_in_flight,
            when_busy=when_busy,
            copy_from_devices=copy_from_devices,
            pinned_memory=pinned_memory,
        )
        self.process_group = process_group
        self.at_exit = at_exit
        self.executor = executor
        self.copy_from_devices = copy_from_devices
        self._skips = when_busy == "skip"
        self._failures = Failures()
        self._aborted = False
        self._closing = False
        self._uploads: UploadsOfStager | None = None
        # Agents have a channel of their own.
        self._background = self._make_background(timeout) if executor == "thread" else None
        program = agent.program() if executor == "process" else None
        self._engine: background.Stager | None = background.Stager(
            options, self._background, program
        )
        _open.add(self)

    @property
    def memory_budget(self) -> int:
        """Bytes of memory for copies."""
        return self._usable().budget_bytes

    def prepare(self, state: Mapping[Any, Any] | int) -> None:
        """Begins to take memory for saves of a state, or of that many bytes, in the background.

        New memory takes 10 to 60 times as long to write to as memory that was used before: call this
        ahead of the first save, as soon as the state exists. It takes memory for `max_in_flight` copies,
        within the budget. Of tensors that are no shards it counts this rank's share alone: ranks divide
        replicas among them.
        """
        if isinstance(state, int):
            size = state
            initialized = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            device = torch.cuda.current_device() if initialized else None
        else:
            size, device = _bytes_and_device_of(state, self.process_group)
        self._usable().prepare(size, device)

    def wait_prepared(self) -> None:
        """Waits for `prepare`."""
        self._usable().wait_prepared()

    def drain(self) -> None:
        """Waits for the saves under way, and their uploads. Their handles have the outcomes."""
        self._usable().drain()
        if self._uploads is not None:
            self._uploads.drain()

    def abort(self) -> None:
        """Cancels the saves under way, and waits for that."""
        self._aborted = True
        if self._uploads is not None:
            self._uploads.abort()
        self._usable().abort()

    def close(self) -> None:
        """Waits for the saves under way and gives the memory back. May be called again."""
        background = self._end()
        if background is not None:
            background.hang_up()

    def _end(self) -> Channel | None:
        """Closes all but the channel, and returns that; None where there is none to close."""
        if self._engine is None:
            return None
        self._closing = True  # Other threads may go on saving: the wait would have no end.
        self._engine.drain()
        if self._uploads is not None:
            self._uploads.close()
            self._uploads = None
        self._engine = None
        _open.discard(self)
        if self._background is not None:
            self._background.flush(_LAST_MESSAGES)
        return self._background

    def __enter__(self) -> Stager:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _make_background(self, timeout: float) -> Channel | None:
        return make_background(self.process_group, timeout)

    def _prepared_uploads(self) -> UploadsOfStager:
        """Returns the thread of uploads, which is made once."""
        if self._uploads is None:
            self._uploads = UploadsOfStager()
        return self._uploads

    def _usable(self) -> background.Stager:
        if self._engine is None or self._closing:
            raise InvalidArgumentError("the stager is closed")
        return self._engine

    @property
    def _idle(self) -> bool:
        """True when no save is under way, and when the stager is closed."""
        uploads = self._uploads is not None and self._uploads.busy
        return self._engine is None or (self._engine.idle and not uploads)

    @property
    def _lost(self) -> bool:
        return self._background is not None and self._background.lost


class _Shared(Stager):
    """A stager that calls without one share: it takes over the channel of the one that was closed."""

    def __init__(self, key: Any, process_group: Any, executor: str, timeout: float) -> None:
        self._key = key
        super().__init__(process_group, executor=executor, timeout=timeout)

    def _make_background(self, timeout: float) -> Channel | None:
        kept = _channels.pop(self._key, None)
        return kept if kept is not None else super()._make_background(timeout)


def _world() -> Any:
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def stager_of(process_group: Any, executor: str, timeout: float, owner: str = _OWNER) -> Stager:
    """Returns the stager that calls without one share; each package has its own.

    Collective when it is asked for the first time, and after `retire`.
    """
    key = _key_of(process_group, executor, owner)
    for other in [other for other in _made if other[0] is not key[0]]:
        _retired.append((other[-1], _made.pop(other)))  # Of a world that has ended.
    for other in [other for other in _channels if other[0] is not key[0]]:
        _channels.pop(other).hang_up()
    for entry in [entry for entry in _retired if entry[1]._idle]:
        _retired.remove(entry)
        entry[1].close()
    if key not in _made:
        _made[key] = _Shared(key, process_group, executor, timeout)
    return _made[key]


def retire(process_group: Any, executor: str, owner: str = _OWNER) -> None:
    """Retires a stager that has lost its channel; its saves under way end by themselves."""
    stager = _made.pop(_key_of(process_group, executor, owner), None)
    if stager is not None:
        _retired.append((owner, stager))


def close_made(owner: str) -> None:
    """Closes the stagers that a package has made, when their saves have ended.

    Each rank calls it for itself: the channels of stagers that are in use are kept for the next ones.
    """
    for key in [key for key in _made if key[-1] == owner]:
        channel = _made.pop(key)._end()
        if channel is not None:
            _channels[key] = channel
    for entry in [entry for entry in _retired if entry[0] == owner]:
        _retired.remove(entry)
        entry[1].close()


def _key_of(process_group: Any, executor: str, owner: str) -> Any:
    world = _world()
    return world, process_group if process_group is not None else world, executor, owner


def _local_ranks() -> int:
    """Returns the processes of this node that have a stager, as far as known without messages."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return min(dist.get_world_size(), 8) if _world() is not None else 1


def _bytes_and_device_of(state: Mapping[Any, Any], group: Any) -> tuple[int, int | None]:
    """Returns about the bytes that this rank will copy, and a CUDA device that some are on."""
    arrays = TorchArrays()
    flat = _tree.Flattener(0, arrays.is_tensor, arrays.origin, wrapping=arrays.wrapping)
    flat.flatten(state)
    tensors = [tensor for _, tensor in flat.tensors]
    devices = (cuda_device(tensor) for tensor in tensors)
    ranks = 1 if _world() is None else dist.get_world_size(group)
    shares = (local_bytes(t) if is_shard(t) else -(-local_bytes(t) // ranks) for t in tensors)
    return sum(shares), next((d for d in devices if d is not None), None)


def end_all() -> None:
    """Ends the saves under way before the interpreter ends."""
    for stager in list(_open):
        if stager.at_exit == "abort":
            stager.abort()
        stager.close()


def _in_child() -> None:
    """A forked child has neither the threads nor the memory of its parent's stagers: closed to it."""
    for stager in _open:
        stager._engine = None  # The binding does not destroy what another process has made.
        stager._uploads = None
    leave_to_parent(_open, _made, _retired, _channels)


def _at_exit() -> None:
    global _exiting
    _exiting = True
    end_all()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
