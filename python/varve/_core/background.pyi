"""The part of the binding that saves in the background."""

from collections.abc import Callable, Sequence
from typing import Literal

from varve._core import AsyncSaveReport, DeferredReport, SaveOptions, _Struct
from varve._core.states import State
from varve._engine import Coordinator

_Layout = tuple[Sequence[int], Sequence[int], int]
HostCopy = tuple[int, int, int, tuple[int, int] | None, _Layout | None, str]

class HostBuffer:
    """Memory for copies, which is kept.

    `copy_in` takes (offset, address, bytes, device and stream of device memory or None, layout, name for errors)
    and releases the GIL. The layout is None for elements in row-major order, else their sizes, strides and item size.
    """

    def __init__(self, bytes: int) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def address(self) -> int: ...
    def copy_in(self, copies: list[HostCopy]) -> None: ...

class AsyncSaveHandle:
    @property
    def agreed(self) -> bool: ...
    @property
    def differing_tensors(self) -> list[str]: ...
    @property
    def differing_objects(self) -> list[str]: ...
    def cancel(self) -> None: ...

class DeferredSaveHandle:
    @property
    def differing_tensors(self) -> list[str]: ...
    @property
    def differing_objects(self) -> list[str]: ...
    def cancel(self) -> None: ...

class StagerOptions(_Struct):
    memory_budget: int = ...
    local_ranks: int = ...
    copy_threads: int = ...
    max_in_flight: int = ...
    when_busy: Literal["wait", "skip", "replace"] = ...
    copy_from_devices: bool | None = ...
    pinned_memory: bool | None = ...

class Stager:
    """Memory and threads of saves in the background; dropping it waits for them.

    With `agent`, the path of the program that is one, the saves are submitted to it.
    """

    def __init__(
        self, options: StagerOptions, background: Coordinator | None, agent: str | None
    ) -> None: ...
    @property
    def budget_bytes(self) -> int: ...
    @property
    def idle(self) -> bool: ...
    def prepare(self, bytes: int, cuda_device: int | None = None) -> None: ...
    def wait_prepared(self) -> None: ...
    def drain(self) -> None: ...
    def abort(self) -> None: ...

class _BackgroundOptions(_Struct):
    save: SaveOptions = ...
    overlapped: bool = ...
    check_torn: bool | None = ...
    retries: int = ...
    retry_delay: float = ...
    deadline: float | None = ...

class AsyncSaveOptions(_BackgroundOptions): ...

def async_save(
    stager: Stager,
    state: State,
    path: str,
    options: AsyncSaveOptions,
    coordinator: Coordinator | None,
    on_staged: Callable[[BaseException | None], None],
    on_done: Callable[[AsyncSaveReport | None, BaseException | None], None],
    not_ready: Exception | None,
) -> AsyncSaveHandle:
    """Begins a save and takes the content of `state`. `not_ready` is why this rank cannot take part."""

class DeferSaveOptions(_BackgroundOptions): ...

def defer_save(
    stager: Stager,
    state: State,
    path: str,
    options: DeferSaveOptions,
    coordinator: Coordinator | None,
    on_staged: Callable[[BaseException | None], None],
    on_held: Callable[[DeferredReport | None, BaseException | None], None],
    not_ready: Exception | None,
) -> DeferredSaveHandle:
    """Does the same for a deferred save."""

def copy_devices(to_host: bool, copies: list[tuple[int, int, int, tuple[int, int]]]) -> None:
    """Copies between memory of the host and of devices, through registered blocks, and waits.

    `copies` are (host address, device address, bytes, device and stream). Releases the GIL.
    """
