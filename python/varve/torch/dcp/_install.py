"""install and uninstall: torch.distributed.checkpoint's own names call Varve.

Frameworks take `save`, `load` and `async_save` from torch.distributed.checkpoint when they save or load.
While Varve is installed, that module and the two modules that define the functions hold replacements
under these names. A replacement decides for each call, from the arguments alone, so that all ranks of a
job decide alike:

1. A local path, a name in an object store that Varve serves ("s3://bucket/key"), or a storage that is exactly torch's FileSystemWriter or FileSystemReader as its
   constructor makes it, goes to this package. A storage is exchanged for this package's with the same
   options; the caller's object stays as it is.
2. A storage of this package goes to this package.
3. Everything else goes to the function that was there before, which is logged once for each reason.

Names that a library took before `install` (`from torch.distributed.checkpoint import save`) stay torch's.
Names that it took afterwards stay replacements, and call torch's functions once Varve is uninstalled.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed.checkpoint as _torch_dcp
from torch.distributed.checkpoint import filesystem, state_dict_loader, state_dict_saver

from varve.torch.dcp._async import async_save
from varve.torch.dcp._functions import load, load_state_dict, save, save_state_dict
from varve.torch.dcp._names import is_ours
from varve.torch.dcp._protocol import has_methods_of_its_own
from varve.torch.dcp._reader import FileSystemReader
from varve.torch.dcp._writer import FileSystemWriter

_log = logging.getLogger("varve")

_DEPRECATED = ("state_dict", "{}", "process_group", "coordinator_rank", "no_dist", "planner")

#: By function: ours, the module that defines torch's, and the arguments that torch takes by position.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], Any, tuple[str, ...]]] = {
    "save": (save, state_dict_saver, ("state_dict", "{}")),
    "async_save": (async_save, state_dict_saver, ("state_dict",)),
    "save_state_dict": (save_state_dict, state_dict_saver, _DEPRECATED),
    "load": (load, state_dict_loader, ("state_dict", "{}")),
    "load_state_dict": (load_state_dict, state_dict_loader, _DEPRECATED),
}

#: The attributes that a stock writer's constructor stores under the names of its arguments.
_WRITER_OPTIONS = (
    "single_file_per_rank",
    "thread_count",
    "per_thread_copy_ahead",
    "cache_staged_state_dict",
    "overwrite",
)

#: Arguments of stock storages that a later torch has added: their meaning is not known here.
_KNOWN = {*_WRITER_OPTIONS, "path", "sync_files", "serialization_format", "_extensions"}
_NEW_OPTIONS = {*inspect.signature(filesystem.FileSystemWriter).parameters} - _KNOWN
_NEW_OPTIONS |= {*inspect.signature(filesystem.FileSystemReader).parameters} - {
    "path",
    "_extension_registry",
}

_TORCH_SAVE: Any = getattr(getattr(filesystem, "SerializationFormat", None), "TORCH_SAVE", None)


class _State:
    """Whether Varve is installed. `lock` guards all of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_install = False
        self.managers = 0
        """Context managers of `installed` that are open, in all threads."""
        self.replacements: dict[tuple[str, Callable[..., Any]], Callable[..., Any]] = {}
        """By name and what was there before; they stay the same from one install to the next."""
        self.places: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = []
        """(module, name, replacement, what was there before)."""
        self.logged: set[tuple[str, str]] = set()

    @property
    def active(self) -> bool:
        return self.by_install or self.managers > 0


_state = _State()


def install() -> None:
    """Lets torch.distributed.checkpoint's functions save and load with Varve, in this process.

    Applies to every library that looks `save`, `load`, `async_save`, `save_state_dict` or
    `load_state_dict` up in `torch.distributed.checkpoint`, or in its `state_dict_saver` and
    `state_dict_loader`, when it calls them. A library that took them out of these modules before keeps
    torch's. A call that Varve does not take (see docs/coming-from-dcp.md) goes to torch, and the logger
    "varve" says so once, at INFO. Call it on all ranks. A second call changes nothing.

    The environment variable VARVE_DCP=1 does the same when varve is imported.

    Threads: any.
    """
    with _state.lock:
        _state.by_install = True
        _update()


def uninstall() -> None:
    """Undoes `install`; changes nothing without one.

    An open `with installed():`, in any thread, keeps Varve installed until it ends.

    Threads: any.
    """
    with _state.lock:
        _state.by_install = False
        _update()


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Installs Varve for the duration of a `with`, in all threads of this process.

    May be nested, and open in several threads: the last one that ends uninstalls, unless `install` was
    called.

    Example:
        >>> import torch.distributed.checkpoint as dcp  # doctest: +SKIP
        >>> with varve.torch.dcp.installed():  # doctest: +SKIP
        ...     dcp.save(state, checkpoint_id="run/step-10")
    """
    with _state.lock:
        _state.managers += 1
        _update()
    try:
        yield
    finally:
        with _state.lock:
            _state.managers -= 1
            _update()


def _update() -> None:
    """Puts the replacements into torch's modules, or what was there before. The lock is held."""
    if _state.active == bool(_state.places):
        return
    if _state.active:
        for name, (_, home, _) in _FUNCTIONS.items():
            for module in (_torch_dcp, home):
                before = getattr(module, name)
                replacement = _state.replacements.get((name, before))
                if replacement is None:
                    replacement = _replacement(name, before)
                    _state.replacements[name, before] = replacement
                setattr(module, name, replacement)
                _state.places.append((module, name, replacement, before))
        return
    for module, name, replacement, before in _state.places:
        if getattr(module, name) is replacement:
            setattr(module, name, before)
        else:  # It calls ours, which passes calls on while Varve is not installed.
            _log.warning(
                "uninstall: %s.%s was replaced by other software since; it stays as it is",
                module.__name__,
                name,
            )
    _state.places.clear()


def _replacement(name: str, before: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that stands under `name` while Varve is installed."""
    ours, _, positions = _FUNCTIONS[name]
    kind = "storage_reader" if name.startswith("load") else "storage_writer"
    names = tuple(position.format(kind) for position in positions)
    known = frozenset(inspect.signature(ours).parameters)

    @functools.wraps(before)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _state.active:
            return before(*args, **kwargs)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        obstacle = _obstacle(given, known)
        if len(args) > len(names) or len(given) < len(args) + len(kwargs):
            obstacle = "arguments that it refuses"
        if obstacle is not None:
            _log_once(name, obstacle)
            return before(*args, **kwargs)
        given[kind] = _exchanged(given.get(kind), given.get("checkpoint_id"), kind)
        return ours(given.pop("state_dict"), **given)

    return call


def _obstacle(given: dict[str, Any], known: frozenset[str]) -> str | None:
    """Returns why a call is left to torch; None for one that this package takes."""
    unknown = sorted(given.keys() - known)
    if unknown:
        return f"arguments that Varve does not know ({', '.join(unknown)})"
    if "state_dict" not in given:
        return "arguments that it refuses"
    checkpoint_id = given.get("checkpoint_id")
    storage = given.get("storage_writer") or given.get("storage_reader")
    if checkpoint_id is not None and not _is_taken(checkpoint_id):
        return "an id that is not a path"
    if isinstance(storage, (FileSystemWriter, FileSystemReader)):
        return None
    if storage is None:
        return None if checkpoint_id else "neither a path nor a storage"
    if _NEW_OPTIONS:
        return (
            f"a storage with options that Varve does not know ({', '.join(sorted(_NEW_OPTIONS))})"
        )
    if type(storage) is filesystem.FileSystemWriter:
        return None if _is_plain_writer(storage) else "a FileSystemWriter with extensions"
    if type(storage) is filesystem.FileSystemReader:
        return None if _is_plain(storage) else "a FileSystemReader that was altered"
    return f"a storage of type {type(storage).__name__}"


def _is_local(checkpoint_id: Any) -> bool:
    """Returns True for a path, with file:// before it or not."""
    try:
        text = os.fsdecode(checkpoint_id)
    except TypeError:
        return False
    return bool(text) and ("://" not in text or text.startswith("file://"))


def _is_taken(checkpoint_id: Any) -> bool:
    """Returns True for an id that this package's storages take."""
    try:
        return bool(os.fsdecode(checkpoint_id)) and is_ours(checkpoint_id)
    except TypeError:
        return False


def _is_plain(storage: Any) -> bool:
    """Returns True for a stock storage on a local path whose methods are its class's."""
    return (
        type(storage.fs) is filesystem.FileSystem
        and _is_local(storage.path)
        and not has_methods_of_its_own(storage)
    )


def _is_plain_writer(writer: Any) -> bool:
    transforms = getattr(writer, "transforms", None)
    return (
        _is_plain(writer)
        and not getattr(transforms, "extensions", None)
        and getattr(writer, "serialization_format", _TORCH_SAVE) is _TORCH_SAVE
    )


def _exchanged(storage: Any, checkpoint_id: Any, kind: str) -> Any:
    """Returns this package's storage for a call, with the options of the stock one that was given.

    Torch's reader reads what Varve cannot read, such as quantized tensors, as without `install`.
    """
    if type(storage) is filesystem.FileSystemWriter:
        options = {name: getattr(storage, name) for name in _WRITER_OPTIONS}
        return FileSystemWriter(storage.path, **options)
    if kind == "storage_writer" or isinstance(storage, FileSystemReader):
        return storage
    path = checkpoint_id if storage is None else storage.path
    registry = getattr(getattr(storage, "transforms", None), "extension_registry", None)
    if registry is None:
        make = getattr(filesystem, "ExtensionRegistry", None)  # Not in torch 2.6.
        registry = make() if make is not None else None
    reader = FileSystemReader(path, registry)
    reader.falls_back = True
    return reader


def _log_once(name: str, obstacle: str) -> None:
    with _state.lock:
        if (name, obstacle) in _state.logged:
            return
        _state.logged.add((name, obstacle))
    _log.info(
        "torch.distributed.checkpoint.%s is called with %s: torch's own function does it, without "
        "Varve. This is logged once for each reason",
        name,
        obstacle,
    )
