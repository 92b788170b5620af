"""Driving the engine: what save, load and read have in common for NumPy and torch."""

from __future__ import annotations

import contextlib
import fnmatch
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from varve import _core, _tree
from varve._match import Match
from varve._values import ObjectLeaf, TensorLeaf
from varve._warn import warn
from varve.errors import (
    CheckpointNotFoundError,
    Error,
    InvalidArgumentError,
    ReplicasDifferWarning,
)

#: (fqn, dtype number, shape, offsets or None, sizes or None, address, strides or None).
Item = tuple[Any, ...]

#: The number of a dtype in the engine, by its name.
DTYPE_NUMBERS: dict[str, int] = {name: i for i, name in enumerate(_core.DTYPE_NAMES)}


class Coordinator(Protocol):
    """How ranks talk; see varve.torch._coordinator for the one over torch.distributed."""

    rank: int
    size: int

    def send(self, to: int, message: bytes, timeout: float) -> None:
        """Hands a message to rank `to`."""

    def receive(self, source: int, timeout: float) -> bytes:
        """The next message from rank `source`."""


class Arrays(Protocol):
    """What an array library brings: which objects are its tensors and where their memory is."""

    def is_tensor(self, value: Any) -> bool:
        """True for what is stored as a tensor rather than as a plain value."""

    def origin(self, tensor: Any) -> str:
        """What a read gives back: "torch" or "numpy"."""

    def sources(self, fqn: str, tensor: Any, keep: list[Any]) -> Iterable[Item]:
        """The shards of a tensor to save. Objects added to `keep` live until the save is done."""

    def targets(
        self, fqn: str, tensor: Any, after: list[Callable[[], None]], keep: list[Any]
    ) -> Iterable[Item]:
        """The shards of a tensor to fill; `after` runs when they have been."""

    def create(self, fqn: str, dtype: int, shape: tuple[int, ...], origin: str) -> Any:
        """A new tensor to be filled."""


@dataclass(frozen=True)
class SaveReport:
    """What a save did, on this rank."""

    save_id: str
    bytes_written: int
    seconds: float
    direct: bool
    """False where the file system refused O_DIRECT and writes went through the page cache."""
    differing_objects: list[str] = field(default_factory=list)
    """On rank 0: plain values that differed between ranks; rank 0's was kept. See PerRank."""
    differing_tensors: list[str] = field(default_factory=list)
    """On rank 0: tensors of which some shard differed between the ranks that hold it. What was saved
    of such a shard is the lowest rank's. See PerRank, and `on_difference` of save."""
    staging_seconds: float = 0.0
    """Of an asynchronous save: from the call until the copy was made."""
    in_waves: bool = False
    """The state was larger than the staging memory; copying had to wait for writing."""
    attempts: int = 1
    """How often it was written until that succeeded."""
    kept_back: bool = False
    """The agent has it in memory and has not written it: `async_save(write="at_end")`."""
    device_bytes: int = 0
    """Copied straight from CUDA devices, see Stager(copy_from_devices=True)."""
    pageable_bytes: int = 0
    """Of those, into memory that was not registered with the driver, which is slower."""


@dataclass(frozen=True)
class LoadReport:
    """What a load found; with `strict=False` differences are reported here rather than refused.

    `bytes_from_agent` of what was read came from the memory of this node's agent, not from storage.
    """

    bytes_read: int
    bytes_from_agent: int
    seconds: float
    missing: list[str]
    unexpected: list[str]
    mismatched: list[str]


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """Keeps Python's cycle collector from running while items are gathered.

    Tens of thousands of items are made at once, none of them garbage; each full collection they set
    off walks all objects of the process (measured: three quarters of the time here).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as the engine takes it."""
    text = os.fsdecode(path)
    if "\0" in text:
        raise InvalidArgumentError(f"{text!r} cannot be a path: it holds a NUL character")
    return text


@dataclass(frozen=True)
class Gathered:
    """A state as the engine takes it."""

    tensors: list[Item]
    objects: list[tuple[str, bytes]]
    structure: bytes
    keep: list[Any]
    """What must live as long as the tensors' memory is read."""


def gather(state: Mapping[Any, Any], arrays: Arrays, rank: int, allow_pickle: bool) -> Gathered:
    """Flattens a state: its tensors by address, its plain values encoded."""
    keep: list[Any] = []
    tensors: list[Item] = []
    with collector_at_rest():
        flat = _tree.Flattener(rank, arrays.is_tensor, arrays.origin)
        structure = _core.encode_value(flat.flatten(state), "", False)
        keep.append(flat.tensors)  # What a state_dict() has made belongs to nobody else.
        for fqn, tensor in flat.tensors:
            tensors.extend(arrays.sources(fqn, tensor, keep))
        objects = [(fqn, _core.encode_value(v, fqn, allow_pickle)) for fqn, v in flat.objects]
    return Gathered(tensors, objects, structure, keep)


def needs_no_pickle(state: Mapping[Any, Any], arrays: Arrays) -> bool:
    """True for a state whose plain values are all of known types."""
    flat = _tree.Flattener(0, arrays.is_tensor, arrays.origin)
    try:
        flat.flatten(state)
        for fqn, value in flat.objects:
            _core.encode_value(value, fqn, False)
    except Error:
        return False
    return True


def save(
    state: Mapping[Any, Any],
    path: str | os.PathLike[str],
    arrays: Arrays,
    coordinator: Coordinator | None,
    allow_pickle: bool,
    options: dict[str, Any],
) -> SaveReport:
    """Flattens a state and saves it."""
    where = path_text(path)
    rank = 0 if coordinator is None else coordinator.rank
    try:
        parts = gather(state, arrays, rank, allow_pickle)
    except Exception as error:
        if options.get("coordinate", True):
            _fail(coordinator, f"save {where}", error, options)
        raise
    report = SaveReport(
        **_core.save(parts.tensors, parts.objects, parts.structure, where, options, coordinator)
    )
    warn_of_differences(report.differing_tensors)
    return report


def warn_of_differences(names: list[str]) -> None:
    """Warns that replicas differ.

    The text names no path: Python then shows it once for a run that saves the same tensors each time.
    """
    if not names:
        return
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    warn(
        f"tensors differ between the ranks that hold them: {shown}. What is saved is the value of the "
        "lowest of these ranks. Wrap what each rank has for itself in varve.torch.PerRank; "
        'on_difference="error" refuses such a save',
        ReplicasDifferWarning,
    )


def _fail(
    coordinator: Coordinator | None, what: str, error: Exception, options: dict[str, Any]
) -> None:
    """Tells the other ranks, who wait for this one, why it does not take part."""
    if coordinator is not None and coordinator.size > 1:
        try:
            _core.report_failure(coordinator, what, f"{type(error).__name__}: {error}", options)
        except Exception as reported:
            raise reported from error


def load(
    state: Any,
    path: str | os.PathLike[str],
    arrays: Arrays,
    coordinator: Coordinator | None,
    allow_pickle: bool,
    options: dict[str, Any],
) -> LoadReport:
    """Fills a state in place."""
    where = path_text(path)
    rank = 0 if coordinator is None else coordinator.rank
    keep: list[Any] = []
    after: list[Callable[[], None]] = []
    targets: list[Item] = []
    try:
        reader = _core.Reader(where)
        match = Match(rank, arrays.is_tensor, frozenset(reader.object_names()))
        structure = reader.structure()
        if structure is None:
            # Saved from C++ without containers: names alone decide.
            structure = _tree.Flattener(rank, arrays.is_tensor, arrays.origin).flatten(state)
        with collector_at_rest():
            match.match(state, structure)
            for fqn, tensor in match.tensors:
                targets.extend(arrays.targets(fqn, tensor, after, keep))
            stored = reader.tensors() if match.created else {}
            for fqn, origin, put in match.created:
                tensor = arrays.create(fqn, *stored[fqn], origin)
                targets.extend(arrays.targets(fqn, tensor, after, keep))
                put(tensor)
        names = [fqn for fqn, _ in match.objects]
        # Before the ranks agree: a value that cannot be opened fails the load with nothing changed.
        values = reader.objects(names, allow_pickle)
    except Exception as error:
        _fail(coordinator, f"load {where}", error, options)
        raise
    report = reader.load(
        targets, names, match.missing, match.mismatched, match.known, options, coordinator
    )
    for run in after:
        run()
    for (_, put), value in zip(match.objects, values, strict=True):
        put(value)
    for fill in match.fills:
        fill()
    return LoadReport(**report)


def read(
    path: str | os.PathLike[str],
    arrays: Arrays,
    keys: str | Iterable[str] | None,
    flat: bool,
    allow_pickle: bool,
    options: dict[str, Any],
) -> Any:
    """Builds a new state from a checkpoint."""
    where = path_text(path)
    reader = _core.Reader(where)
    structure = reader.structure()
    patterns = [keys] if isinstance(keys, str) else None if keys is None else list(keys)
    found: dict[str, Any] = {}
    targets: list[Item] = []
    keep: list[Any] = []
    after: list[Callable[[], None]] = []
    names: list[str] = []
    stored = reader.tensors()
    for fqn, leaf in _leaves(reader, structure, stored):
        if patterns is not None and not _selected(fqn, patterns):
            continue
        found[fqn] = None
        if isinstance(leaf, ObjectLeaf):
            names.append(fqn)
        else:
            found[fqn] = tensor = arrays.create(fqn, *stored[fqn], leaf.origin)
            targets.extend(arrays.targets(fqn, tensor, after, keep))
    if patterns is not None and not found:
        raise CheckpointNotFoundError(f"read {where}: nothing is named {', '.join(patterns)}")
    found.update(zip(names, reader.objects(names, allow_pickle), strict=True))
    reader.load(targets, names, [], [], [], {**options, "strict": False}, None)
    for run in after:
        run()
    if flat or structure is None:
        return found
    if patterns is not None:
        structure = _prune(structure, found, None)
    return _tree.build(structure, lambda fqn, _leaf: found[fqn])


def _leaves(
    reader: Any, structure: Any, stored: dict[str, Any]
) -> Iterable[tuple[str, TensorLeaf | ObjectLeaf]]:
    if structure is not None:
        yield from _tree.leaves(structure)
        return
    for fqn in stored:
        yield fqn, TensorLeaf("")
    for fqn in reader.object_names():
        yield fqn, ObjectLeaf()


def _selected(fqn: str, patterns: list[str]) -> bool:
    """A key names a leaf, all leaves under it, or is a glob."""
    return any(fqn == p or fqn.startswith(f"{p}.") or fnmatch.fnmatchcase(fqn, p) for p in patterns)


def _prune(structure: Any, found: dict[str, Any], path: str | None) -> Any:
    """The part of a structure that holds the found leaves."""
    if isinstance(structure, (TensorLeaf, ObjectLeaf)):
        return structure

    def keeps(item: Any, item_path: str) -> bool:
        return any(fqn in found for fqn, _ in _tree.leaves(item, item_path))

    if isinstance(structure, list):
        # Positions are part of the names, so a list with holes becomes a dict of what is left.
        kept = {
            str(i): _prune(item, found, _tree.join(path, str(i)))
            for i, item in enumerate(structure)
            if keeps(item, _tree.join(path, str(i)))
        }
        return list(kept.values()) if len(kept) == len(structure) else kept
    return _tree.like(
        structure,
        {
            key: _prune(item, found, _tree.join(path, str(key)))
            for key, item in structure.items()
            if keeps(item, _tree.join(path, str(key)))
        },
    )
