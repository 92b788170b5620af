"""Files of torch.save: pickled here, written by the engine from the memory of the tensors.

`write` makes a file in three steps:
  1. The state is pickled. A storage stays outside: the pickle has its number, type, device and size, as
     torch.save writes them. Classes get the names that the oldest readers know.
  2. The engine writes the pickle and the storages as the records of a zip file, under a hidden name and
     durably. It copies the storages in blocks, sums each one on the way, and Ctrl-C ends it.
  3. The file takes its name in one step: it is whole or absent at any time.
  4. The plain values are read back. A warning names objects that a load, which runs no pickle, would refuse.
"""

from __future__ import annotations

import io
import os
import pickle
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

import torch

from varve import _core
from varve._plain_values import plain_values
from varve._warn import warn
from varve.errors import InvalidArgumentError, UnsupportedError
from varve.olmo._errors import NotPicklableError
from varve.torch._devices import cuda_of, on_host

#: Modules of classes that written pickles may name, as the oldest software that OLMo runs with calls
#: them: torch 2.0, numpy 1, Python 3.12. Later ones open these names too.
OLDEST: Mapping[str, str] = {
    "torch.distributed.fsdp._flat_param": "torch.distributed.fsdp.flat_param",
    "numpy._core": "numpy.core",
    "numpy._core.multiarray": "numpy.core.multiarray",
    "numpy._core.numeric": "numpy.core.numeric",
    "pathlib._local": "pathlib",
}


def on_cpu(tensor: torch.Tensor) -> Any:
    """Returns what is to be written in a tensor's place, so that the file has it as one of the CPU.

    A tensor of a CUDA device is not copied. The engine reads it while it writes the file, so the tensor must not
    change before.
    """
    tensor = tensor.detach()
    cuda = cuda_of(tensor)
    if cuda is None:
        return tensor.cpu()
    dense = torch.empty_like(tensor, device="meta").stride() == tensor.stride()
    return _OnCpu(tensor, cuda) if dense else on_host(tensor)  # Else there are gaps.


class _OnCpu:
    """Stands for a tensor of a device; a file has its elements as a storage of their own."""

    def __init__(self, tensor: torch.Tensor, cuda: tuple[int, int]) -> None:
        self.tensor = tensor
        self.cuda = cuda

    def __reduce_ex__(self, protocol: Any) -> Any:
        # As torch pickles a tensor of this type, but with these elements.
        like: Any = torch.empty(0, dtype=self.tensor.dtype, device="cpu")
        rebuild, (storage, _, _, _, *rest) = like.__reduce_ex__(protocol)
        shape, steps = self.tensor.size(), self.tensor.stride()
        return rebuild, (_Elements(self, storage), 0, shape, steps, *rest)


class _Elements:
    """The storage of such a tensor. `like`: one of the same kind."""

    def __init__(self, of: _OnCpu, like: Any) -> None:
        self.of = of
        self.like = like


class _Storages:
    """The storages that a pickle names, numbered in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._dtypes: dict[int, torch.dtype] = {}
        #: Alive until the pickle is made: the address of a dead storage may be given to another one.
        self._kept: list[torch.UntypedStorage] = []
        #: Where the engine can read them, by number; those on a device with device and stream.
        self.memory: list[tuple[Any, tuple[int, int] | None]] = []

    def name_elements(self, elements: _Elements) -> tuple[Any, ...]:
        """Returns the persistent id of the storage of an _OnCpu, a new one."""
        tensor = elements.of.tensor
        kind, dtype = _kind_of(elements.like)
        self.memory.append((tensor, elements.of.cuda))
        return "storage", kind, str(len(self.memory) - 1), "cpu", tensor.nbytes // dtype.itemsize

    def name(self, storage: Any) -> tuple[Any, ...]:
        """Returns the persistent id of a storage, as torch.load takes it."""
        kind, dtype = _kind_of(storage)
        untyped = getattr(storage, "_untyped_storage", storage)
        number = self._numbers.setdefault(untyped._cdata, len(self.memory))
        if number == len(self.memory):
            self._kept.append(untyped)
            cuda = cuda_of(torch.empty(0, dtype=torch.uint8, device=untyped.device))
            here = untyped if cuda is not None else untyped.cpu()
            self.memory.append((here, cuda))
        if self._dtypes.setdefault(untyped.data_ptr(), dtype) != dtype and untyped.nbytes() > 0:
            raise InvalidArgumentError(
                "the state has two tensors of different types in the same memory; torch.save cannot store "
                "that: clone one of them"
            )
        numel = untyped.nbytes() // dtype.itemsize
        return "storage", kind, str(number), torch.serialization.location_tag(untyped), numel


def _kind_of(storage: Any) -> tuple[Any, torch.dtype]:
    """Returns the class by which pickles know a storage, and the type of its elements."""
    if not isinstance(storage, torch.storage.TypedStorage):
        return torch.UntypedStorage, torch.uint8
    name: str = storage._pickle_storage_type()  # type: ignore[no-untyped-call]
    return getattr(torch, name), storage.dtype


def _bytes_of(memory: torch.Tensor | torch.UntypedStorage) -> int:
    return memory.nbytes if isinstance(memory, torch.Tensor) else memory.nbytes()


# The pickler in Python: that in C cannot be told how to name a class.
_Base: Any = pickle._Pickler


class _Pickler(_Base):  # type: ignore[misc]
    """Pickles as torch.save does, with the names of classes that are asked for."""

    dispatch: ClassVar[dict[Any, Any]] = dict(_Base.dispatch)

    def __init__(self, file: Any, modules: Mapping[str, str], storages: _Storages) -> None:
        super().__init__(file, protocol=2)
        self._modules = modules
        self._storages = storages

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, torch.storage.TypedStorage) or torch.is_storage(obj):
            return self._storages.name(obj)
        return self._storages.name_elements(obj) if isinstance(obj, _Elements) else None

    def save_global(self, obj: Any, name: str | None = None) -> None:
        module = self._modules.get(getattr(obj, "__module__", None) or "")
        if module is None:
            super().save_global(obj, name)
            return
        named = name or getattr(obj, "__qualname__", obj.__name__)
        self.write(pickle.GLOBAL + f"{module}\n{named}\n".encode())
        self.memoize(obj)

    def _save_class(self, obj: Any) -> None:
        if obj.__module__ in self._modules:
            self.save_global(obj)
        else:
            super().save_type(obj)


_Pickler.dispatch[type] = _Pickler._save_class
_Pickler.dispatch[FunctionType] = _Pickler.save_global


def write(path: Path, state: Any, modules: Mapping[str, str] = OLDEST) -> Path:
    """Writes a file of torch.save durably; parents are made. The file is whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    storages = _Storages()
    pickled = io.BytesIO()
    try:
        _Pickler(pickled, modules, storages).dump(state)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise NotPicklableError(
            f"write {path.name}: {_culprit(state)} cannot be pickled: {error}"
        ) from error
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.varve-part")
    try:
        _core.write_torch_file(
            str(part),
            pickled.getvalue(),
            [(memory.data_ptr(), _bytes_of(memory), cuda) for memory, cuda in storages.memory],
        )
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)
    _warn_of_classes(path)
    return path


def _warn_of_classes(path: Path) -> None:
    """Warns where a load refuses the file, which stays: torch.load opens it."""
    try:
        reader = _core.Reader(str(path))
        plain_values(reader, path.name, reader.object_names(), False)
    except UnsupportedError as error:
        warn(f"a file is written that Varve will not load: {error}", UserWarning)


def _culprit(state: Any) -> str:
    """Returns the name of the value of a dict that cannot be pickled."""
    for key, value in state.items() if isinstance(state, dict) else ():
        try:
            _Pickler(io.BytesIO(), {}, _Storages()).dump(value)
        except Exception:
            return f'the value of "{key}"'
    return "the state"


def sync(directory: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
