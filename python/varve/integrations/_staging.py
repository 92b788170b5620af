"""Whether an adapter's save is overlapped, and whose next step waits for its copy.

Between a save and the next step of the optimizers a training writes to more than nothing: forward passes
write to buffers (BatchNorm), and callbacks to averages. The step alone can be made to wait. So a save is
overlapped by itself only if every tensor of it is a parameter or a state of an optimizer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch

from varve._tree import Flattener, is_stateful
from varve.errors import InvalidArgumentError
from varve.torch._guard import optimizers_in, optimizers_of
from varve.torch._shards import cuda_device
from varve.torch._tensors import TorchArrays

_log = logging.getLogger("varve")

#: How an adapter is asked to stage. None: overlapped where `choose` finds that it is safe.
Staging = Literal["blocking", "overlapped"] | None


def checked(staging: Any) -> Any:
    """Returns it. Raises InvalidArgumentError for a value that is none of Staging."""
    if staging not in (None, "blocking", "overlapped"):
        raise InvalidArgumentError(f'staging={staging!r}: want None, "blocking" or "overlapped"')
    return staging


def on_device(tensor: Any) -> bool:
    """Returns True for a tensor that a copy on a CUDA device's stream takes time for."""
    return cuda_device(tensor) is not None


def choose(staging: Staging, state: Any, optimizers: Any) -> tuple[Any, dict[str, Any]]:
    """Returns the state to save and the arguments `staging` and `guard` of `async_save`.

    Args:
        staging: As the user has asked.
        state: The state to save.
        optimizers: All optimizers that write to tensors of it, as `guard`. Without one a save is blocking,
            whatever was asked for.
    """
    blocking = {"staging": "blocking"}
    if staging == "blocking":
        return state, blocking
    guard = optimizers_of(optimizers) if staging == "overlapped" else optimizers_in(optimizers)
    if not guard or (staging is None and any(_writes_elsewhere(one) for one in guard)):
        return state, blocking
    try:
        if staging is None and not any(on_device(tensor) for tensor in _parameters(guard)):
            return state, blocking
        owned = {_memory(tensor) for tensor in _tensors(guard)}
        opened = _opened(state, owned)
        flat = Flattener(0, _ARRAYS.is_tensor, _ARRAYS.origin)
        flat.flatten(opened)
        others = [name for name, tensor in flat.tensors if not _is_owned(tensor, owned)]
    except Exception as error:  # The save meets it too, and fails on all ranks.
        _log.debug("the state cannot be walked: %s", error)
        return state, blocking
    if staging is None and others:
        _log.debug("staging is blocking: no optimizer holds %s", others[0])
        return opened, blocking
    return opened, {"staging": "overlapped", "guard": guard}


_ARRAYS = TorchArrays()

#: Methods of optimizers that write to parameters outside of `step`: of Lomo, of schedule-free ones, of SAM.
_WRITERS = ("fused_backward", "eval", "first_step")


def _writes_elsewhere(optimizer: Any) -> bool:
    return any(hasattr(optimizer, name) for name in _WRITERS)


def _parameters(optimizers: Iterable[Any]) -> Iterator[Any]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _tensors(optimizers: Iterable[Any]) -> Iterator[Any]:
    """Yields all that the steps of optimizers write to."""
    for optimizer in optimizers:
        yield from _parameters([optimizer])
        for state in optimizer.state.values():
            yield from filter(torch.is_tensor, torch.utils._pytree.tree_leaves(state))


def _memory(tensor: Any) -> int | None:
    """Returns the address of a tensor's memory on this rank; None where that is unknown."""
    tensor = _local(tensor)
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def _is_owned(tensor: Any, owned: set[int | None]) -> bool:
    memory = _memory(tensor)
    if memory is None:
        return torch.is_tensor(tensor) and _local(tensor).numel() == 0
    return memory in owned


def _local(tensor: Any) -> Any:
    return getattr(tensor, "_local_tensor", tensor)  # Of a DTensor.


def _opened(value: Any, owned: set[int | None]) -> Any:
    """Returns a state with each `state_dict` called, once, and single numbers of others copied.

    Such numbers are the scores that callbacks keep. The copies are added to `owned`.
    """
    if is_stateful(value):
        return _opened(value.state_dict(), owned)
    if type(value) is dict:
        return {key: _opened(item, owned) for key, item in value.items()}
    if type(value) is list:
        return [_opened(item, owned) for item in value]
    if torch.is_tensor(value) and value.numel() == 1 and not _is_owned(value, owned):
        copy = value.detach().clone()
        owned.add(_memory(copy))
        return copy
    return value
