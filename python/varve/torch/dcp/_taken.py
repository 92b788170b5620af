"""Which saves the engine takes: those of which it makes the checkpoint that torch's planner and the writer would.

1. Each rank looks at its own part: the writer, the planner, the names, the values (`described`). An obstacle of
   one rank is one of all: a rank that went another way would be waited for.
2. Ranks are compared: one name has one kind of entry, of one dtype and shape, on all ranks, and containers and
   keys are of one type. Torch's planner saves states that differ in these, as iterators that have ended on some
   ranks; the engine would refuse them, or make an index of two paths for one name. Most ranks have equal
   descriptions, so digests are compared first, and of each digest one rank sends all.
"""

from __future__ import annotations

import collections
import datetime
import hashlib
import pathlib
import pickle
import zoneinfo
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.tensor import DTensor

from varve import _core, _tree
from varve._engine import collector_at_rest
from varve.errors import Error, UnsupportedError
from varve.torch._shards import NUMBERS, PLAIN, is_shard, is_sharded_tensor
from varve.torch._tensors import TorchArrays
from varve.torch.dcp._compat import flatten_state_dict
from varve.torch.dcp._job import Job
from varve.torch.dcp._protocol import has_methods_of_its_own
from varve.torch.dcp._publish import is_replaceable
from varve.torch.dcp._ranks import Group, together
from varve.torch.dcp._writer import FileSystemWriter

#: The kinds of the entries, containers and keys of a rank's state, by name.
Description = dict[str, Any]


def obstacles(job: Job, check: Callable[[], Description]) -> list[str | None]:
    """Returns why the engine does not take a save, by rank; None where nothing is in the way. Collective.

    `check` describes this rank's part, or raises.
    """
    obstacle = None
    interrupt: BaseException | None = None
    description: Description = {}
    digest = b""
    try:
        with collector_at_rest():
            description = check()
            if job.group.size > 1:
                digest = hashlib.blake2b(pickle.dumps(description)).digest()
    except Exception as error:  # The others are about to wait for this rank.
        obstacle = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    except BaseException as error:
        interrupt = error
    with together(job.what, job.group) as ranks:
        if interrupt is not None:
            raise interrupt

        def first_of_each(given: list[Any]) -> list[Any]:
            firsts = {digest: rank for rank, (_, digest) in reversed([*enumerate(given)])}
            found = [reason for reason, _ in given]
            sends = [firsts[digest] == rank for rank, (_, digest) in enumerate(given)]
            return [(found, len(firsts) > 1, one) for one in sends]

        found, differ, sends = ranks.combine("plan", lambda: (obstacle, digest), first_of_each)
        if not differ or any(found):
            return list(found)
        return ranks.combine(
            "plan",
            lambda: description if sends else None,
            lambda given: [_contradictions(given)] * ranks.size,
        )


def _contradictions(descriptions: list[Description | None]) -> list[str | None]:
    """Returns, by rank, a name that stands for something else on a rank before it."""
    known: Description = {}
    found: list[str | None] = []
    for description in descriptions:
        told = description or {}
        other = next(
            (name for name in told if known.setdefault(name, told[name]) != told[name]), None
        )
        found.append(None if other is None else f'"{other}" is another thing on other ranks')
    return found


def described(job: Job) -> Description:
    """Returns the description of this rank's state.

    Raises UnsupportedError where the engine would make another save than torch's planner and the writer.
    """
    if not _writes_plainly(job):
        raise UnsupportedError(
            "the storage is not a FileSystemWriter of varve.torch.dcp with one file for each rank, "
            "without extensions, to a name that can be replaced as a whole"
        )
    if not _plans_plainly(job.planner):
        raise UnsupportedError("the planner is not torch's default one, or does not flatten")
    state = job.state
    assert state is not None
    torchs, _ = flatten_state_dict(state)
    values = {fqn: value for fqn, value in torchs.items() if not isinstance(value, torch.Tensor)}
    values = {fqn: value for fqn, value in values.items() if not is_shard(value)}
    count = 0
    for fqn, value in values.items():
        seen: set[int] = set()
        exact = _is_exact(value, seen)
        count += len(seen)
        if not exact or count > _MOST_VALUES:
            raise UnsupportedError(f'the state has values that need a pickle: "{fqn}"')
    flat = _tree.Flattener(0, TorchArrays().is_tensor, TorchArrays().origin)
    try:
        structure = flat.flatten(state)
        _tree.check_keys_of_dcp(structure)
        _core.encode_value(structure, "", False)
        for fqn, value in flat.objects:
            _core.encode_value(value, fqn, False)
    except Error as error:
        raise UnsupportedError(f"the state has values that need a pickle: {error}") from error
    leaves = dict((*flat.tensors, *flat.objects))
    if leaves.keys() != torchs.keys() or any(torchs[fqn] is not leaves[fqn] for fqn in leaves):
        raise UnsupportedError("the state has entries that torch's planner names in another way")
    if leaves_ranks_out(job.group) and any(is_shard(tensor) for _, tensor in flat.tensors):
        raise UnsupportedError("this rank saves alone, and holds shards")
    tensors = [part for _, tensor in flat.tensors for part in _parts(tensor)]
    if not all(map(_is_plain, tensors)):
        raise UnsupportedError(
            "the state has arrays or tensors that torch's planner takes for values"
        )
    return _description(structure, dict(flat.tensors)) if job.group.size > 1 else {}


def _description(structure: Any, tensors: Mapping[str, Any]) -> Description:
    found: Description = {}

    def add(node: Any, name: str) -> None:
        if isinstance(node, (Mapping, list)):
            # The engine refuses two kinds of dict under one name.
            found[name] = type(node).__name__
            items = node.items() if isinstance(node, Mapping) else enumerate(node)
            for key, item in items:
                below = f"{name}.{key}"
                found[f"key {below}"] = type(key).__name__, str(key)
                add(item, below)
            return
        tensor = tensors.get(name[1:])
        found[name] = "value" if tensor is None else (str(tensor.dtype), tuple(tensor.size()))

    add(structure, "")
    return found


def leaves_ranks_out(group: Group) -> bool:
    """Returns True where a rank of a job saves alone: a stager takes all ranks for those that save."""
    return group.alone and dist.is_available() and dist.is_initialized()


#: Types whose values come back as they are. Of others the engine stores what it can: a dataclass as a dict.
_EXACT = {
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range, slice),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone),
    *(zoneinfo.ZoneInfo, pathlib.PosixPath, pathlib.PurePosixPath),
    *(torch.Size, torch.dtype, torch.device),
}
_SEQUENCES = {tuple, list, set, frozenset}
_MAPPINGS = {dict, collections.OrderedDict, collections.Counter, collections.defaultdict}

#: Containers that a state's values may be, items of one, and bytes of one: a pickle is faster for more.
_MOST_VALUES = 100_000
_MOST_BYTES = 16 << 20


def _is_exact(value: Any, seen: set[int]) -> bool:
    """Returns True for a value that a load gives back with the types that it has.

    `seen` has the ids of the value's containers and arrays so far: of one that stands twice, two would come back.
    """
    kind = type(value)
    if kind in _EXACT:
        return not isinstance(value, (str, bytes, bytearray)) or len(value) <= _MOST_BYTES
    if isinstance(value, np.generic):
        return True
    if id(value) in seen or len(seen) > _MOST_VALUES or getattr(value, "__dict__", None):
        return False
    if kind is np.ndarray:
        seen.add(id(value))
        return value.base is None and value.nbytes <= _MOST_BYTES
    if kind not in _SEQUENCES and kind not in _MAPPINGS:
        return False
    if len(value) > _MOST_VALUES:
        return False
    if len(value) > 0:
        seen.add(id(value))
    if kind in _MAPPINGS:
        return all(_is_exact(key, seen) and _is_exact(item, seen) for key, item in value.items())
    return all(_is_exact(item, seen) for item in value)


def _parts(tensor: Any) -> list[Any]:
    """The memory of a tensor on this rank."""
    if type(tensor) in PLAIN:
        return [tensor]
    if is_sharded_tensor(tensor):
        return [shard.tensor for shard in tensor.local_shards()]
    return [tensor._local_tensor if isinstance(tensor, DTensor) else tensor]


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) in PLAIN
        and tensor.layout is torch.strided
        and tensor.dtype in NUMBERS
        and not (tensor.is_nested or tensor.is_meta)
        and not hasattr(tensor, "__create_write_items__")
        and not is_shard(tensor)
    )


def _writes_plainly(job: Job) -> bool:
    writer = job.writer
    return (
        isinstance(writer, FileSystemWriter)
        and writer.writes_plainly()
        and is_replaceable(job.path)
    )


def _plans_plainly(planner: SavePlanner | None) -> bool:
    return planner is None or (
        type(planner) is DefaultSavePlanner
        and planner.flatten_state_dict
        and planner.flatten_sharded_tensors
        and not getattr(planner, "dedup_save_to_lowest_rank", False)
        and not has_methods_of_its_own(planner)
    )
