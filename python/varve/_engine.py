"""The calls of the engine that saves and loads of NumPy arrays and of torch tensors share."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Protocol

from varve import _arguments, _core, _files, _hf, _tree
from varve._arguments import first_names
from varve._core import Coordinator, states
from varve._objects import Objects
from varve._warn import warn
from varve.errors import Error, InvalidArgumentError, ReplicasDifferWarning
from varve.storage._registry import register_obstore_for

_log = logging.getLogger("varve")

#: The names that pathlib makes of storages, "s3:/bucket" for example.
_SHORTENED = re.compile("(s3|gs|az|abfss?|r2|weka|oss|hdfs|hf|https?|file):/")

#: The number of a dtype in the engine, by its name.
DTYPE_NUMBERS: dict[str, int] = {name: i for i, name in enumerate(_core.DTYPE_NAMES)}


class Arrays(Objects, Protocol):
    """The part of an array library: which objects are its tensors, and where their memory is."""

    wrapping: _tree.Wrapping | None
    """For tensors that are made of others; None where the library has none."""

    def is_tensor(self, value: Any) -> bool:
        """Returns True for objects that are stored as tensors, not as plain values."""

    def origin(self, tensor: Any) -> str:
        """Returns the library of a read's results: "torch" or "numpy"."""

    def taker(self, into: Gathered) -> _tree.Take:
        """Returns a function that adds the tensors of a dict that are plain memory."""

    def matcher(self, into: Filling) -> _tree.Pair:
        """Returns a function that adds the tensors of a dict to fill that are plain memory."""

    def add_sources(self, into: Gathered, fqn: str, tensor: Any) -> None:
        """Adds the shards of a tensor to save."""

    def add_targets(self, into: Filling, fqn: str, tensor: Any) -> None:
        """Adds the shards of a tensor to fill."""

    def memory(self, tensor: Any, fqn: str = "") -> Any:
        """Returns a key that is equal for tensors of one memory; None where that is unknown.

        `fqn` is for the message where the tensor cannot be saved.
        """

    def create(
        self, fqn: str, dtype: int, shape: tuple[int, ...], origin: str, like: Any = None
    ) -> Any:
        """Returns a new tensor to be filled; `like` is the parameter whose state it is."""

    def hollow(self, tensor: Any) -> bool:
        """Returns True for a tensor that a load with `assign` replaces: one without memory."""

    def fresh(self, tensor: Any, dtype: int | None) -> Any:
        """Returns a tensor with memory in place of a hollow one, of its dtype if that is None."""

    def dtype_of(self, tensor: Any) -> int | None:
        """Returns the engine's number of a tensor's dtype."""

    def dtype_at(self, number: int) -> Any:
        """Returns the dtype with this number in the engine; None where the library has none."""

    def buffers(self, value: Any) -> Iterable[str]:
        """Returns the names of a module's buffers in its state dict; none for anything else."""

    def note_filled(self, tensors: Iterable[Any]) -> None:
        """Tells the library that the engine has written to the memory of these tensors."""


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
    """Returns the engine's name of `path`, fixed at this call; see ResolvePath in varve/storage.h.

    Registers obstore's store at the first name of its schemes. Raises InvalidArgumentError for what no
    storage serves, "hdfs://x" for example.
    """
    return _resolved(path, local=False)


def local_path_text(path: str | os.PathLike[str]) -> str:
    """Returns the same for a path of a mounted file system; "s3://bucket" is refused."""
    return _resolved(path, local=True)


def is_remote(path: str) -> bool:
    """Returns True for a name of another storage than a file system, as `path_text` returns it."""
    return "://" in path


def _resolved(path: str | os.PathLike[str], local: bool) -> str:
    if isinstance(path, PurePath) and _SHORTENED.match(str(path)):
        raise InvalidArgumentError(
            f"{str(path)!r} was made by pathlib, which takes one of the two slashes of a name like "
            "s3://bucket/key away; give that name as a str"
        )
    try:
        name = os.fsencode(path)
        if not local:
            register_obstore_for(os.fsdecode(name))
        return str(_core.resolve_path(name, local))
    except InvalidArgumentError:
        raise
    except TypeError:
        is_state = isinstance(path, Mapping) or _tree.is_stateful(path)
        raise InvalidArgumentError(
            f"{_arguments.shown(path)} is not a path: want a str or an os.PathLike"
            + ("; the state is the first argument, the path the second" if is_state else "")
        ) from None
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{path!r} cannot be a path: its characters from {error.start} on have no bytes in the "
            "file system's encoding"
        ) from None


def path_name(path: Any) -> str:
    """Returns the name of a path for a message; `path` may be no path."""
    return str(path) if isinstance(path, (str, os.PathLike)) else _arguments.shown(path)


@dataclass(frozen=True)
class Content:
    """The state and the files of a save, as its caller gave them."""

    state: Mapping[Any, Any]
    files: Mapping[str, _files.Source] | None = None
    allow_pickle: bool = False
    hf: Any = None
    """Options of format="hf", which may be anything; see `_hf.chosen`."""


@dataclass(frozen=True)
class Gathered:
    """A state as the engine takes it."""

    engine: states.State = field(default_factory=states.State)
    keep: list[Any] = field(default_factory=list)
    """Objects that must live as long as the tensors' memory is read."""


@dataclass(frozen=True)
class Filling:
    """Tensors to fill as the engine takes them."""

    engine: states.LoadRequest = field(default_factory=states.LoadRequest)
    after: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call when they have been filled."""
    keep: list[Any] = field(default_factory=list)
    """Objects that must live as long as the tensors' memory is written."""


def gather(content: Content, arrays: Arrays, rank: int, format: str) -> Gathered:
    """Flattens a state: its tensors by address, its plain values encoded.

    Reads rank 0's files as they are now, and ignores those of other ranks.
    """
    _arguments.flag("allow_pickle", content.allow_pickle)
    folder = _hf.chosen(content.hf, format)
    made = Gathered()
    engine = made.engine
    files = content.files
    if folder is not None and rank == 0:
        files = folder.files(files)
    for name, taken in _files.taken(files) if rank == 0 else []:
        engine.add_file(name, taken)
    with collector_at_rest():
        # Nearly all tensors are plain, and those go to the engine at once.
        take = _tree.take_nothing if folder is not None else arrays.taker(made)
        flat = _tree.Flattener(rank, arrays.is_tensor, arrays.origin, arrays.wrapping, take)
        structure = flat.flatten(content.state)
        for name, value in flat.own_lists:
            warn(
                f'"{name}" holds tensors or dicts, and is stored as a plain list: its class '
                f"{type(value).__name__} is kept only by a load into an object that has it",
                UserWarning,
            )
        if format == "dcp":
            _tree.check_keys_of_dcp(structure)
        engine.structure = _core.encode_value(structure, "", False)
        tensors = flat.tensors
        if folder is not None:
            _hf.warn_of_wrapped(flat.wrapped)
            tensors = folder.tensors(_hf.named_as_torchao(tensors, flat.wrapped), arrays)
        made.keep.extend((flat.taken, tensors))  # A state_dict()'s new tensors have no other owner.
        for fqn, tensor in tensors:
            arrays.add_sources(made, fqn, tensor)
        for fqn, value in flat.objects:
            engine.add_object(fqn, _core.encode_value(value, fqn, content.allow_pickle))
        if format == "dcp" and arrays.wrapping is not None:
            for fqn, tensor in flat.outermost:
                pickled = arrays.wrapping.pickle_of(fqn, tensor)
                if pickled is not None:
                    engine.add_object(fqn, *pickled)
    return made


def save(
    content: Content,
    path: str | os.PathLike[str],
    arrays: Arrays,
    coordinator: Coordinator | None,
    options: _core.SaveOptions,
    copy: Callable[[], Any] = lambda: None,
    warns: bool = True,
) -> _core.SaveReport:
    """Flattens a state and saves it.

    `copy` returns the upload to make of it (varve._upload), or None. Without `warns` the caller warns that ranks hold
    different values; the report has their names.
    """
    rank = 0 if coordinator is None else coordinator.rank
    promise = None
    try:
        where = path_text(path)
        upload = copy()
        parts = gather(content, arrays, rank, options.format)
        promise = upload.promise() if upload is not None and rank == 0 else None
    except Exception as error:
        if options.coordinate:
            fail(coordinator, f"save {path_name(path)}", error, options.timeout)
        raise
    try:
        report = _core.save(parts.engine, where, options, coordinator)
    except Error:  # After Ctrl-C it may be visible all the same: the note stays.
        if promise is not None:
            promise.take_back()
        raise
    if upload is not None:
        upload.make_after_save(coordinator)
    if warns:
        warn_of_values(where, report, options)
    log_conflicts(where, report.conflicts)
    return report


def log_conflicts(path: str, conflicts: list[str]) -> None:
    """Logs where files are that could not be put beside a new checkpoint."""
    for conflict in conflicts:
        _log.warning(
            "save %s: %s was put beside the old checkpoint while it was replaced. It stays there, since "
            "the new checkpoint's directory has another file of that name",
            path,
            conflict,
        )


_ALL_ARE_SAVED = (
    "Each rank's value is saved, and as many ranks get their own back. Another number of ranks is refused, "
    "unless the load (or the manager's resume) says that the lowest rank's value will do: of some names "
    'with one_will_do={names}, of all with on_difference="first"'
)
_LOWEST_IS_SAVED = "What is saved is the value of the lowest of these ranks"
_REMEDY = (
    "Give what each rank has for itself a name of its own (varve.torch.PerRank does); "
    'on_difference="error" refuses a save of tensors that differ'
)

#: Names that a warning shows as an argument.
_NAMES_GIVEN = 5

#: Of names that were warned of: the directory of the checkpoint, whether each value was saved, and the name. A run
#: is warned once.
_warned_of: set[tuple[str, bool, str]] = set()


def warn_of_values(path: str, report: Any, options: _core.SaveOptions) -> str:
    """Warns that ranks hold different values under one name; returns the text, "" for none.

    `report` has the names. Names that have been warned of for another checkpoint in the same directory
    are left out.
    """
    run = os.path.dirname(path)
    kept = options.format == "varve" and options.on_difference != "first"
    kinds = {"tensors": report.differing_tensors, "plain values": report.differing_objects}
    new = {
        kind: [name for name in names if (run, kept, name) not in _warned_of]
        for kind, names in kinds.items()
    }
    _warned_of.update((run, kept, name) for names in new.values() for name in names)
    listed = "; ".join(f"{kind}: {first_names(names)}" for kind, names in new.items() if names)
    if not listed:
        return ""
    names = [name for names in new.values() for name in names]
    given = str(names) if len(names) <= _NAMES_GIVEN else "[names]"
    saved = _ALL_ARE_SAVED.format(names=given) if kept else _LOWEST_IS_SAVED
    text = f"the ranks hold different values under the same names. {listed}. {saved}. {_REMEDY}"
    warn(text, ReplicasDifferWarning)
    return text


def warn_of_differences(names: list[str], consequence: str) -> None:
    """Warns that replicas differ, and says what follows from that and what to do."""
    if names:
        warn(
            f"tensors differ between the ranks that hold them: {first_names(names)}. {consequence}",
            ReplicasDifferWarning,
        )


def fail(coordinator: Coordinator | None, what: str, error: Exception, timeout: float) -> None:
    """Reports to the other ranks, which wait for this one, why it does not take part."""
    _agree(coordinator, what, error, timeout)


@contextlib.contextmanager
def on_all_ranks(
    coordinator: Coordinator | None, what: str, timeout: float, consequence: str
) -> Iterator[None]:
    """Runs a part of a call that may fail on some ranks alone: then all raise, and are told the consequence."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    _agree(coordinator, what, failure, timeout, consequence)
    if failure is not None:
        raise failure


def _agree(
    coordinator: Coordinator | None,
    what: str,
    failure: Exception | None,
    timeout: float,
    consequence: str = "",
) -> None:
    if coordinator is None or coordinator.size == 1:
        return
    text = "" if failure is None else f"{type(failure).__name__}: {failure}{consequence}"
    try:
        _core.agree(coordinator, what, text, failure, timeout)
    except Exception as reported:
        raise reported from failure
