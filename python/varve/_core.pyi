"""The binding to libvarve."""

from collections.abc import Callable, Sequence
from dataclasses import InitVar
from typing import Any, Final, Literal

from typing_extensions import dataclass_transform

from varve._engine import Coordinator

#: Called from other threads with bytes done and bytes in all.
_Progress = Callable[[int, int], None]

@dataclass_transform(frozen_default=True, kw_only_default=True)
class _Struct:
    """A struct of the C++ API: fields by keyword, read-only attributes. Its header says what they mean."""

__version__: str
FORMAT_VERSION: Final[int]
DTYPE_NAMES: Final[tuple[str, ...]]
DTYPE_SIZES: Final[tuple[int, ...]]
"""Bytes of an element, by dtype number."""

def encode_value(object: Any, path: str, allow_pickle: bool = ...) -> bytes: ...
def decode_value(bytes: bytes, allow_pickle: bool = ...) -> Any: ...
def resolve_path(path: str | bytes) -> str:
    """The name by which the engine knows a path, fixed at this call."""

def save(
    tensors: list[tuple[Any, ...]],
    objects: list[tuple[str, bytes]],
    structure: bytes,
    path: str,
    options: dict[str, Any],
    coordinator: Any,
) -> dict[str, Any]: ...

class HostBuffer:
    """Memory for copies, which is kept: `copy_in` takes (offset, address, bytes) and releases the GIL."""

    def __init__(self, bytes: int) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def address(self) -> int: ...
    def copy_in(self, copies: list[tuple[int, int, int]]) -> None: ...

class AsyncSaveHandle:
    """A save in the background."""

    @property
    def differing_tensors(self) -> list[str]:
        """Of which replicas differ; on rank 0."""

    def cancel(self) -> None: ...

class Stager:
    """Memory and threads of saves in the background; dropping it waits for them."""

    def __init__(self, options: dict[str, Any], background: Any) -> None: ...
    @property
    def budget_bytes(self) -> int: ...
    @property
    def idle(self) -> bool: ...
    def prepare(self, bytes: int, cuda_device: int | None = None) -> None: ...
    def wait_prepared(self) -> None: ...
    def drain(self) -> None: ...
    def abort(self) -> None: ...

def async_save(
    stager: Stager,
    tensors: list[tuple[Any, ...]],
    objects: list[tuple[str, bytes]],
    structure: bytes,
    path: str,
    options: dict[str, Any],
    coordinator: Any,
) -> AsyncSaveHandle:
    """Options also hold on_staged(error) and on_done(report, error), called once each on any thread."""

def report_failure(
    coordinator: Coordinator | None, what: str, message: str, error: Exception, timeout: float
) -> None:
    """Tells the other ranks, within the exchange they are in, that this one has failed."""

def list_checkpoints(directory: str) -> list[dict[str, Any]]:
    """Lists checkpoints and stale files: dicts of name, format, state, detail, step, bytes, world_size."""

def step_from_name(name: str | bytes) -> int | None:
    """The step in the name of a checkpoint; None where it has none."""

class Globs:
    """A choice of names; `name in globs` is true when at least one matches all of it."""

    def __init__(self, globs: list[str]) -> None: ...
    def __contains__(self, name: str) -> bool: ...

def verify(path: str) -> list[dict[str, Any]]:
    """Re-reads every byte; returns the damages found: file, begin, end, tensors, problem."""

def repair(path: str) -> bool:
    """Rebuilds the index from the data files; True when it was not already right."""

def collect_garbage(directory: str, dry_run: bool = ...) -> list[str]:
    """Removes what dead saves left; returns the paths removed (or, dry, to be removed)."""

def remove(path: str, dry_run: bool = ...) -> tuple[int, list[str]]:
    """Removes a checkpoint; returns its bytes and the files in it that were not part of it."""

def side_files(path: str) -> list[tuple[str, int]]:
    """Side files of a checkpoint: name and bytes."""

def read_side_file(path: str, name: str) -> bytes: ...
def latest(directory: str) -> str:
    """Returns the path of the newest whole checkpoint."""

def convert(
    source: str,
    target: str,
    to: str,
    dtype: str | None,
    shard_size: int,
    include: list[str],
    exclude: list[str],
    rename: list[tuple[str, str]],
    overwrite: bool,
    memory_budget: int,
    everything: bool,
    hf_config: str = ...,
) -> dict[str, Any]: ...
def diff(a: str, b: str) -> list[dict[str, Any]]: ...
def write_dcp_file(
    path: str, items: list[tuple[Any, ...]], options: dict[str, Any]
) -> dict[str, Any]:
    """Writes a .distcp file and makes it durable.

    Items are (fqn, bytes), (fqn, dtype number, sizes, address, strides in elements or None), or (fqn,
    dtype number, sizes, produce): `produce(at, address, count)` puts the row-major bytes from `at` on
    there. It is called on a thread of the engine, for one item after the other, in order; what it raises
    ends the writing and is raised.
    Returns items (offset and length of each), size, direct, and report: what seal_dcp_index needs of it.
    """

def seal_dcp_index(index: bytes, files: Sequence[tuple[str, bytes]]) -> bytes:
    """Adds checksums to a pickled Metadata (protocol 2 or 3): of the files (name, report) and of itself."""

class DcpCommit:
    """The right to write a DCP checkpoint under a name; dropping it abandons the save."""

    def __init__(self, path: str, overwrite: bool) -> None: ...
    @property
    def staging(self) -> str: ...
    def publish(self, files: list[tuple[str, int]], metadata: bytes) -> list[str]:
        """Returns paths of files that could not be put beside the new checkpoint."""

    def abandon(self) -> None: ...

class DcpInPlaceCommit:
    """The right to write a DCP checkpoint into a directory that stays; dropping it abandons the save.

    With a rank, of a save of which the other ranks know nothing.
    """

    def __init__(self, path: str, overwrite: bool, rank: int | None) -> None: ...
    @property
    def directory(self) -> str: ...
    @property
    def first(self) -> int: ...
    def publish(self, files: list[tuple[str, int]], metadata: bytes) -> list[str]: ...
    def abandon(self) -> None: ...

def dcp_replaces_directory(path: str) -> bool:
    """True where DcpCommit is the way to save at a path, false for DcpInPlaceCommit, as far as names tell."""

def fingerprint_dcp_items(items: list[tuple[Any, ...]]) -> list[int]:
    """Fingerprints by which replicas are compared, of items as write_dcp_file takes them; 0 for no tensor."""

def describe_array(array: Any) -> tuple[int, int, tuple[int, ...], tuple[int, ...], int]: ...
def describe_writable_array(
    array: Any,
) -> tuple[int, int, tuple[int, ...], tuple[int, ...], int]: ...

class LoadOptions(_Struct):
    strict: bool | Literal["exact"] = ...
    cast: bool = ...
    timeout: float = ...
    max_gap_bytes: int = ...
    io_threads: int = ...
    progress: InitVar[_Progress | None] = ...

class LoadRequest:
    """What a rank wants from a checkpoint."""

    def __init__(self) -> None: ...
    def add(
        self,
        fqn: str,
        dtype: int,
        shape: Sequence[int],
        address: int,
        strides: Sequence[int] | None = ...,
        offsets: Sequence[int] | None = ...,
        sizes: Sequence[int] | None = ...,
    ) -> None:
        """Adds a box of a tensor to fill: memory of the caller's, whose first element is at `address`.

        `dtype` is an index of DTYPE_NAMES, `shape` that of the whole tensor. Strides are in elements; without
        them the memory is row-major. Without `offsets` and `sizes` it is for the whole tensor.
        """

    def place(self, shape: Sequence[int], offsets: Sequence[int]) -> None:
        """Makes of the tensors added boxes at these offsets of a tensor of this shape."""

    objects: list[str]
    missing: list[str]
    mismatched: list[str]
    known: list[str]

class LoadReport(_Struct):
    loaded: int = ...
    bytes_read: int = ...
    bytes_from_agent: int = ...
    seconds: float = ...
    missing: list[str] = ...
    unexpected: list[str] = ...
    mismatched: list[str] = ...

class StoredChunk(_Struct):
    offsets: tuple[int, ...] = ...
    sizes: tuple[int, ...] = ...
    file: str = ...
    begin: int = ...
    end: int = ...
    rank: int | None = ...

class Reader:
    """An open checkpoint; with `use_agent` its tensors come from the agent's memory where it has them."""

    def __init__(self, path: str, use_agent: bool = ...) -> None: ...
    @property
    def directory(self) -> str: ...
    @property
    def world_size(self) -> int: ...
    @property
    def format(self) -> str: ...
    @property
    def save_id(self) -> str | None:
        """32 hex digits; None where the format has none."""

    @property
    def bytes(self) -> int:
        """Bytes of all data files."""

    def names(self) -> list[tuple[str, bool]]:
        """Names in natural order, each with True for a tensor, False for a plain value."""

    def chunks(self, name: str) -> list[StoredChunk]:
        """The stored chunks of a tensor, by their offsets."""

    def read_into(self, request: LoadRequest) -> int:
        """Fills the tensors of a request from this process alone; returns the bytes read."""

    def object_extents(self) -> dict[str, tuple[str, int, int]]:
        """By plain value that a file holds: file, begin and end."""

    def structure(self) -> Any: ...
    def tensors(self, names: Sequence[str] | None = ...) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Dtype number and shape by name, of all or of these names; those not there are left out."""

    def tensor_names(self) -> list[str]: ...
    def object_names(self) -> list[str]: ...
    def objects(self, fqns: Sequence[str], allow_pickle: bool = ...) -> list[Any]: ...
    def load(
        self, request: LoadRequest, options: LoadOptions, coordinator: Coordinator | None
    ) -> LoadReport: ...

def agent_status() -> dict[str, Any]: ...
def agent_drain(timeout: float) -> None: ...
def agent_stop(timeout: float) -> None: ...
