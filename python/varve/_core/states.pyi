"""The part of the binding that takes tensors and values to save, and tensors to fill."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

def set_torch(
    capsule: Any,
    tensor: type,
    parameter: type,
    dtypes: dict[tuple[int, int], int],
    stored: frozenset[Any],
) -> None:
    """Takes torch's interface for C callers, by which `add_plain` looks at tensors.

    `dtypes` are numbers by DLPack's code and bits, `stored` the torch dtypes that `add_plain` takes.
    """

class Place:
    """The box of a tensor that this rank holds."""

    def __init__(
        self, shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]
    ) -> None: ...

def set_dtensors(dtensor: type, place_of: Callable[[Any, Any, Any], Place | None]) -> None:
    """Lets `add_plain_items` and `match_plain_items` take DTensors. Does nothing when called again.

    `place_of(mesh, placements, shape)` returns the one box that this rank holds, None for others.
    """

def device_problem() -> str:
    """Returns why the engine can use no CUDA device; empty where it can."""

class State:
    """The tensors and values that a rank saves."""

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
        cuda: tuple[int, int] | None = ...,
    ) -> None:
        """Adds a box of a tensor: arguments as LoadRequest.add."""

    def add_plain(self, fqn: str, tensor: Any, devices: bool) -> Any:
        """As LoadRequest.add_plain."""

    def add_plain_items(
        self,
        entries: Iterator[tuple[Any, Any]],
        path: str | None,
        names: dict[str, str],
        items: dict[Any, Any],
        leaf: Any,
        taken: list[Any],
        devices: bool,
        places: dict[Any, Place | None],
    ) -> tuple[Any, Any] | None:
        """Adds what `add_plain` would of a dict's entries, and DTensors, up to the first other one.

        A DTensor is taken whose local tensor `add_plain` would take, and is one box of the whole.

        Args:
            entries: The (key, value) pairs. A key that is no str of ASCII ends it, and one whose name there is.
            path: The name of the dict; None for the whole state.
            names: The names of the state; gets "tensor" for each that is added.
            items: Gets the leaf under each key.
            leaf: What the structure has for a tensor.
            taken: Gets the tensors' storages, to be kept as in `add_plain`.
            devices: As in `add_plain`.
            places: Keeps what `place_of` has returned, by its arguments.

        Returns the first other pair, None at the end.
        """

    def note_copied(self, problem: str) -> None:
        """Counts a tensor of a device that the caller copies by itself."""

    def add_object(self, fqn: str, encoded: bytes, storages: Sequence[str] = ...) -> None:
        """Adds a plain value, as encode_value gives it."""

    def add_file(self, name: str, content: bytes) -> None: ...
    structure: bytes
    """The containers, as encode_value gives them."""

class LoadRequest:
    """The tensors and values that a rank loads."""

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
        cuda: tuple[int, int] | None = ...,
    ) -> None:
        """Adds a box of a tensor to fill: memory of the caller's, whose first element is at `address`.

        `dtype` is an index of DTYPE_NAMES, `shape` that of the whole tensor. Strides are in elements; without
        them the memory is row-major. Without `offsets` and `sizes` it is for the whole tensor. `cuda` is
        device and stream of device memory.
        """

    def add_plain(self, fqn: str, tensor: Any, devices: bool) -> Any:
        """Adds a whole plain tensor of torch, which is row-major; None for all others.

        Returns its storage, to be kept until the tensor is filled: the tensor may get another one meanwhile.
        `devices`: one on a CUDA device may be added too, with the stream that is current there.
        """

    def match_plain_items(
        self,
        entries: Iterator[tuple[Any, Any]],
        path: str | None,
        stored: dict[Any, Any],
        leaf: Any,
        taken: list[tuple[str, Any]],
        keep: list[Any],
        devices: bool,
        places: dict[Any, Place | None],
    ) -> tuple[Any, Any] | None:
        """Adds plain tensors and DTensors to fill as State.add_plain_items does.

        Those for which `stored` has an object of the type of `leaf` under the same key. `taken` gets
        (name, tensor), `keep` the storages.
        """

    def clear_targets(self) -> None:
        """Takes all tensors out again."""

    def note_copied(self, problem: str) -> None:
        """Counts a tensor of a device that the caller copies by itself."""

    def place(self, shape: Sequence[int], offsets: Sequence[int]) -> None:
        """Makes of the tensors added boxes at these offsets of a tensor of this shape."""

    objects: list[str]
    missing: list[str]
    mismatched: list[str]
    ignored: list[str]
    one_will_do: list[str]
