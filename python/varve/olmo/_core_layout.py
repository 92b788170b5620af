"""Writes OLMo-core's first layout (ai2-olmo-core 0.1), which OLMo calls `olmo_core`.

1. Each rank describes what it holds (`CoreWriter.describe`). The caller gives all ranks the descriptions of all.
2. Each rank writes its pieces, flattened, to `model/rank_{R}.safetensors` and `optim/rank_{R}.safetensors`
   (`CoreWriter.write`), also a rank without pieces. Of equal pieces only the lowest rank's is written. The
   files are durable when it returns.
3. After all ranks have returned, one of them writes `model/metadata.json` and `optim/metadata.json`
   (`write_metadata`). Without these there is no checkpoint.

The optimizer's state is flat: `state.NAME.__KEY`, `num_param_groups`, and as pickles in uint8 tensors
`param_group{i}` and `state_keys`. Rank 0 writes the last three kinds; `state_keys` has the keys of all ranks,
because a rank without elements of any parameter has no state.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from varve import _core
from varve.errors import InvalidArgumentError, UnsupportedError
from varve.olmo._files import write_bytes
from varve.olmo._pickle import sync
from varve.olmo._pieces import Piece
from varve.torch._devices import cuda_of
from varve.torch._shards import NUMBERS, shards_of

#: The dtypes that OLMo-core 0.1 can read back, with the names that it gives them.
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

_PARTS = ("model", "optim")


#: The part of a tensor that a rank holds: a run, a DTensor, or all of it.
Held = Piece | torch.Tensor


@dataclass(frozen=True)
class Described:
    """The part of a tensor that a rank holds, as other ranks know it.

    Attributes:
        dtype: The type's name in safetensors.
        shape: The shape of the whole tensor.
        runs: Elements [begin, end), in the order in which they are stored.
        box: Offsets and sizes, where there are no runs: a part of some columns of a matrix.
    """

    dtype: str
    shape: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    box: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def elements(self) -> int:
        """Number of elements."""
        if self.box is not None:
            return math.prod(self.box[1])
        return sum(end - begin for begin, end in self.runs)


#: Descriptions of pieces, by folder and by the name in its files.
_Parts = dict[str, dict[str, Described]]


@dataclass(frozen=True)
class Description:
    """The pieces that one rank holds, and the keys of its optimizer's state."""

    pieces: _Parts
    state_keys: frozenset[str]


#: A piece with its data, which `_packed` makes flat.
_Piece = tuple[Described, list[torch.Tensor]]


class CoreWriter:
    """Writes one rank's files, in a directory that has none of these names."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._pieces: dict[str, dict[str, _Piece]] = {}

    def describe(
        self,
        model: Mapping[str, Held],
        optim_state: Mapping[str, Mapping[str, Held | Any]],
        param_groups: Sequence[Mapping[str, Any]],
    ) -> Description:
        """Returns what the rank holds, without the data. Copies nothing: `write` reads the tensors.

        Args:
            model: The pieces that the rank holds, by the name of the tensor.
            optim_state: By parameter and key: pieces, whole tensors, or numbers.
            param_groups: The optimizer's groups. A group names its parameters in `param_names`, or in
                `params` itself; `params` may be ids.

        Raises:
            UnsupportedError: A dtype, or a value of the optimizer's state, that the layout cannot hold.
            InvalidArgumentError: A piece outside its tensor; groups that do not name their parameters.
        """
        self._pieces = {
            "model": {name: _held_piece(f"model.{name}", held) for name, held in model.items()},
            "optim": _optim_pieces(self._rank, optim_state, param_groups),
        }
        described = {
            part: {name: piece for name, (piece, _) in pieces.items()}
            for part, pieces in self._pieces.items()
        }
        keys = frozenset(key for entries in optim_state.values() for key in entries)
        return Description(described, keys)

    def write(self, directory: Path, descriptions: Sequence[Description]) -> list[Path]:
        """Writes the rank's files and returns their paths. They are durable then.

        Args:
            directory: The checkpoint's directory; `model/` and `optim/` are made in it.
            descriptions: The description of each rank, by rank.

        Raises OSError where a file cannot be written.
        """
        written = _distinct(descriptions)[self._rank]
        paths = []
        for part in _PARTS:
            data = {name: self._pieces[part][name][1] for name in written[part]}
            if part == "optim" and self._rank == 0:
                data["state_keys"] = _state_keys(descriptions)[1]
            folder = directory / part
            folder.mkdir(parents=True, exist_ok=True)
            paths.append(folder / _file_name(self._rank))
            _write_safetensors(paths[-1], data)
            sync(folder)
        sync(directory)
        return paths


def write_metadata(directory: Path, descriptions: Sequence[Description]) -> list[Path]:
    """Writes `metadata.json` of both folders and returns their paths. They are durable then.

    Requires: `CoreWriter.write` has returned on all ranks, which had the same descriptions.

    Args:
        directory: The checkpoint's directory.
        descriptions: The description of each rank, by rank.

    Raises:
        InvalidArgumentError: Ranks disagree about a tensor, or elements are missing. Nothing is written.
        OSError: A file cannot be written.
    """
    written = _distinct(descriptions)
    entries = {part: _entries(part, written) for part in _PARTS}
    entries["optim"]["state_keys"] = _entry(
        "optim", "state_keys", [(0, _state_keys(descriptions)[0])]
    )
    paths = []
    for part in _PARTS:
        content = json.dumps({"tensors": entries[part]}).encode()
        paths.append(write_bytes(directory / part / "metadata.json", content))
        sync(directory / part)
    return paths


def _distinct(descriptions: Sequence[Description]) -> list[_Parts]:
    """Returns what each rank has to write: of equal pieces only the lowest rank's."""
    seen: set[tuple[str, str, Described]] = set()
    kept = []
    for description in descriptions:
        first_seen: _Parts = {part: {} for part in _PARTS}
        for part, pieces in description.pieces.items():
            for name, piece in pieces.items():
                place = (part, name, piece)
                if place not in seen:
                    first_seen[part][name] = piece
                    seen.add(place)
        kept.append(first_seen)
    return kept


# ---- what a rank holds ----


def _optim_pieces(
    rank: int,
    optim_state: Mapping[str, Mapping[str, Held | Any]],
    param_groups: Sequence[Mapping[str, Any]],
) -> dict[str, _Piece]:
    """Returns the entries of the optimizer's file, by their names, without `state_keys`."""
    pieces = {
        f"state.{name}.__{key}": _state_piece(f"optim.state.{name}.{key}", value)
        for name, entries in optim_state.items()
        for key, value in entries.items()
    }
    if rank == 0:
        pieces["num_param_groups"] = _whole(torch.tensor(len(param_groups)))
        for i, group in enumerate(_named_groups(param_groups)):
            pieces[f"param_group{i}"] = _pickled(group)
    return pieces


def _state_keys(descriptions: Sequence[Description]) -> _Piece:
    return _pickled(sorted({key for each in descriptions for key in each.state_keys}))


def _dtype_name(fqn: str, dtype: torch.dtype) -> str:
    if dtype not in _DTYPES:
        raise UnsupportedError(
            f'write olmo_core: "{fqn}" is {dtype}; OLMo-core 0.1 can read '
            f"{', '.join(str(known) for known in _DTYPES)}"
        )
    return _DTYPES[dtype]


def _held_piece(fqn: str, held: Held) -> _Piece:
    if isinstance(held, Piece):
        return _run_piece(fqn, held)
    shape, shards = shards_of(fqn, held.detach())
    whole = tuple(shape)
    dtype = _dtype_name(fqn, held.dtype)
    data = [local for _, local in shards]
    if len(shards) == 1 and len(whole) == 2 and data[0].shape[1] not in (0, whole[1]):
        box = (tuple(shards[0][0]), tuple(data[0].shape))
        return Described(dtype, whole, (), box), data
    runs = [run for offsets, local in shards for run in _runs(whole, offsets, local.shape)]
    return Described(dtype, whole, tuple(runs)), data or [torch.empty(0, dtype=held.dtype)]


def _run_piece(fqn: str, held: Piece) -> _Piece:
    end = held.start + held.data.numel()
    if held.start < 0 or end > math.prod(held.shape):
        raise InvalidArgumentError(
            f'write olmo_core: "{fqn}": elements [{held.start}, {end}) are none of a tensor of the '
            f"shape {list(held.shape)}"
        )
    described = Described(_dtype_name(fqn, held.dtype), held.shape, ((held.start, end),))
    return described, [held.data.detach()]


def _runs(
    shape: tuple[int, ...], offsets: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yields the runs of elements of which a box is made, each as long as it can be."""
    cut = len(shape)  # Dimensions from here on are whole.
    while cut > 0 and sizes[cut - 1] == shape[cut - 1]:
        cut -= 1
    outer = max(cut - 1, 0)
    step = math.prod(shape[cut:])
    count = step * (sizes[outer] if cut > 0 else 1)
    for index in itertools.product(
        *(range(offsets[d], offsets[d] + sizes[d]) for d in range(outer))
    ):
        begin = 0
        for d in range(outer):
            begin = begin * shape[d] + index[d]
        if cut > 0:
            begin = begin * shape[outer] + offsets[outer]
        yield begin * step, begin * step + count


def _whole(tensor: torch.Tensor) -> _Piece:
    described = Described(
        _dtype_name("", tensor.dtype), tuple(tensor.shape), ((0, tensor.numel()),)
    )
    return described, [tensor]


def _state_piece(fqn: str, value: Held | Any) -> _Piece:
    if isinstance(value, bool | int | float):
        return _whole(torch.tensor(value))
    if isinstance(value, Piece | torch.Tensor):
        return _held_piece(fqn, value)
    raise UnsupportedError(
        f'write olmo_core: "{fqn}" is a {type(value).__name__}; '
        "the layout holds tensors and numbers for a parameter"
    )


def _pickled(value: Any) -> _Piece:
    # Protocol 4 is that of the Pythons that OLMo-core 0.1 was made for.
    return _whole(torch.frombuffer(bytearray(pickle.dumps(value, protocol=4)), dtype=torch.uint8))


def _named_groups(param_groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the groups with ids in `params` and names in `_param_names`."""
    named = []
    count = 0
    for i, group in enumerate(param_groups):
        params = list(group["params"])
        names = list(group.get("param_names", params))
        if len(names) != len(params) or not all(isinstance(name, str) for name in names):
            raise InvalidArgumentError(
                f"write olmo_core: group {i} has {len(params)} params and does not name each: "
                "it needs param_names of the same length"
            )
        ids = params
        if not all(isinstance(param, int) for param in params):
            ids = list(range(count, count + len(params)))
        count += len(params)
        named.append({**group, "params": ids, "_param_names": names})
    return named


# ---- metadata.json ----


def _entries(part: str, written: Sequence[_Parts]) -> dict[str, Any]:
    by_name: dict[str, list[tuple[int, Described]]] = {}
    for rank, pieces in enumerate(written):
        for name, piece in pieces[part].items():
            by_name.setdefault(name, []).append((rank, piece))
    return {name: _entry(part, name, pieces) for name, pieces in by_name.items()}


def _entry(part: str, name: str, pieces: list[tuple[int, Described]]) -> dict[str, Any]:
    first_rank, first = pieces[0]
    for rank, piece in pieces:
        if (piece.dtype, piece.shape) != (first.dtype, first.shape):
            raise InvalidArgumentError(
                f'write olmo_core: {part} "{name}" is {first.dtype} {list(first.shape)} on rank '
                f"{first_rank} and {piece.dtype} {list(piece.shape)} on rank {rank}"
            )
    elements = math.prod(first.shape)
    _check_coverage(f'{part} "{name}"', elements, [piece for _, piece in pieces])
    return {
        "shape": list(first.shape),
        "is_sharded": any(piece.elements() < elements for _, piece in pieces),
        "dtype": first.dtype,
        "shard_spec_per_file": {_file_name(rank): _spec(piece) for rank, piece in pieces},
    }


def _spec(piece: Described) -> dict[str, Any]:
    if piece.box is not None:
        offsets, sizes = piece.box
        return {"flattened_offsets": None, "local_shape": sizes, "global_offset": offsets}
    return {"flattened_offsets": piece.runs, "local_shape": None, "global_offset": None}


def _check_coverage(what: str, elements: int, pieces: list[Described]) -> None:
    """Checks that pieces hold all elements. Of boxes only their number of elements is compared."""
    held = sum(piece.elements() for piece in pieces)
    covered = 0
    if all(piece.box is None for piece in pieces):
        for begin, end in sorted(run for piece in pieces for run in piece.runs):
            if begin > covered:
                break
            covered = max(covered, end)
        held = min(held, covered)
    if held < elements:
        raise InvalidArgumentError(
            f"write olmo_core: no rank holds element {covered} of {what}, which has {elements}"
        )


# ---- files ----


def _file_name(rank: int) -> str:
    return f"rank_{rank}.safetensors"


def _packed(data: list[torch.Tensor]) -> torch.Tensor:
    """Returns a piece's elements in memory that the engine reads, row-major: those of a device where they are."""
    flat = [local.reshape(-1) for local in data]
    tensor = flat[0] if len(flat) == 1 else torch.cat(flat)
    if tensor.is_contiguous() and cuda_of(tensor) is not None:
        return tensor
    return tensor.cpu().contiguous()


def _write_safetensors(path: Path, pieces: Mapping[str, list[torch.Tensor]]) -> None:
    """Writes pieces, flattened. The engine writes the file, in blocks, and makes it durable."""
    memory = {name: _packed(data) for name, data in pieces.items()}
    described = [
        (name, NUMBERS[tensor.dtype], tensor.shape, tensor.data_ptr(), cuda_of(tensor))
        for name, tensor in memory.items()
    ]
    _core.write_safetensors(str(path), described)
