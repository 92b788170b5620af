"""The tensors that an optimizer makes for a parameter in its first step, where a checkpoint has others.

The author of a class's `step` decides what its state is made of. torch's optimizers make what `zeros_like`
makes of the parameter. torchao's low-bit ones have a method that makes a tensor of their class for a part
of the parameter: that also gives a sharded state its layout. Of other optimizers nothing is known.

A state that is there tells by itself what its optimizer makes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from varve._objects import Entry, Source
from varve._values import TensorLeaf, Wrapped
from varve.errors import InvalidArgumentError
from varve.torch import _wrapped
from varve.torch._shards import NUMBERS, PLAIN, dtensor_around, is_dtensor, is_shard

#: Keys of states whose tensors are single numbers.
_NUMBERS = frozenset(("step", "eta", "mu", "mu_product"))

#: torch's optimizers whose `load_state_dict` needs the step of every state.
_COUNTING = (
    torch.optim.Adadelta,
    torch.optim.Adafactor,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.AdamW,
    torch.optim.ASGD,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.SparseAdam,
)

_DTYPE_NAMES = {number: str(dtype).removeprefix("torch.") for dtype, number in NUMBERS.items()}

_PLAIN = "a plain tensor"
_DICT = "a dict"


class FirstStates:
    """The states that an optimizer makes of parameters, compared with the stored ones.

    Args:
        title: Begins the messages of errors.
        adapts: The program changes state dicts before the optimizer loads them, and may know what fits.
        cast: A tensor of another class with the same inner tensors will do.
        overlap: So will one of another size: the part that both have is filled.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        title: str,
        source: Source,
        adapts: bool,
        cast: bool,
        overlap: bool = False,
    ) -> None:
        self._optimizer: Any = optimizer
        self._title = title
        self._which = title[title.rindex("the optimizer") :]
        self._source = source
        self._adapts = adapts
        self._cast = cast
        self._overlap = overlap
        self._author = str(getattr(type(optimizer).step, "__module__", "")).split(".")[0]
        self._low_bit = _low_bit(optimizer) if self._author == "torchao" else ""
        self._unknown: set[str] = set()
        self._kept_plain: list[str] = []
        self._dicts = False
        self._other_classes = False

    def plan(self, entry: Entry, present: Any) -> None:
        """Notes in an entry what of it the optimizer would not have made, and what makes its tensors.

        Raises InvalidArgumentError where the parameter is divided among ranks and the layout of the state is
        not known.
        """
        there = present if isinstance(present, Mapping) else {}
        if not there and not self._adapts and self._lacks_step(entry.stored):
            self._other_classes = True
            kind = type(self._optimizer).__name__
            entry.unlike.append(f"{entry.name} (stored without a step, wanted the state of {kind})")
            return
        wrapped: dict[str, Any] = {}
        for key, leaf in _tensors(entry.stored):
            name = f"{entry.name}.{key}"
            here = _kind(there[key]) if isinstance(there.get(key), torch.Tensor) else ""
            if type(leaf) is not Wrapped and isinstance(leaf, Mapping):
                stored, wanted = _DICT, self._instead_of_dict(entry.parameter, here)
                if not wanted:
                    continue
            elif type(leaf) is not Wrapped:
                stored = _PLAIN
                wanted = "" if here == stored else self._instead_of_plain(entry, key, name, here)
                if (
                    not there
                    and not self._adapts
                    and (sizes := self._other_sizes(entry, key, name))
                ):
                    entry.unlike.append(f"{name} ({sizes})")
            elif here == leaf.kind or (self._cast and _casts(there.get(key), leaf)):
                continue  # The two are compared when it is filled.
            else:
                stored = leaf.kind
                wanted = self._instead_of(stored, entry.parameter, here, name)
                if not wanted and is_shard(entry.parameter):
                    wrapped[key] = leaf
            if wanted and not self._adapts:
                self._other_classes = True
                entry.unlike.append(f"{name} (stored {_a(stored)}, wanted {_a(wanted)})")
            elif here and here != stored:
                entry.dropped.add(key)
        if wrapped and not entry.unlike:
            entry.make = lambda: self._make(entry, wrapped)

    def notes(self) -> list[str]:
        """Returns what is taken as it is stored, though the optimizer may not have made it so."""
        kind = type(self._optimizer)
        notes = []
        if self._kept_plain:
            notes.append(
                f"{self._which} is a {kind.__name__}, and {len(self._kept_plain)} tensors of its state are stored "
                f'plain, "{self._kept_plain[0]}" for example, where it makes a {self._low_bit}: they stay plain'
            )
        if not self._unknown:
            return notes
        return [
            *notes,
            f"{self._which} is a {kind.__module__}.{kind.__qualname__}, and which tensors that makes in its first "
            f"step is not known: the stored ones ({', '.join(sorted(self._unknown))}) are taken as they are",
        ]

    def remedy(self) -> str:
        """Returns what to do where the state of another optimizer is stored; "" where only sizes differ."""
        if not self._other_classes:
            return ""
        kind = type(self._optimizer).__name__
        if self._dicts and self._low_bit:
            return (
                f"{self._which} ({kind}) makes the tensors that the stored dicts may be the inner ones of: "
                "let it take a step before the load, which then fills those that are there"
            )
        return (
            f"{self._which} ({kind}) would go on with the state of another optimizer, which no option "
            "converts. Load it into one of the class that was saved; or take the state with read(), make its "
            "tensors as this one has them (a wrapped tensor's dequantize() makes a plain one), and give it to "
            "load_state_dict; or choose the other entries with keys= and begin with new moments"
        )

    # ---- what is wanted ----

    def _instead_of(self, stored: str, parameter: Any, here: str, name: str) -> str:
        """Returns what the optimizer makes where a tensor made of others is stored; "" for the same.

        `here` is the class of the tensor that it has, "" for none.
        """
        if self._low_bit:
            return "" if stored == self._low_bit else self._low_bit
        if self._author == "torch" and not here and stored == "torch.sparse_coo":
            return ""  # SGD begins with a copy of the gradient.
        wanted = here or self._of_torch(parameter)
        if wanted:
            return "" if stored == wanted else wanted
        if is_shard(parameter):
            raise InvalidArgumentError(
                f'{self._title}: "{name}" is a {stored}, and its parameter is divided among the ranks. How a '
                f"{type(self._optimizer).__name__} divides such a state is not known before its first step. Nothing was "
                "loaded. Let the optimizer take a step before the load: the tensors that are there are filled; or load "
                "into what get_state_dict of torch.distributed.checkpoint.state_dict returns, which does so"
            )
        self._unknown.add(stored)
        return ""

    def _instead_of_dict(self, parameter: Any, here: str) -> str:
        """Returns what the optimizer has or makes where a dict of tensors is stored; "" where one may do."""
        if here and here != _PLAIN:
            return ""  # The dict may have its inner tensors, as formats have that know no classes.
        wanted = here or self._low_bit or self._of_torch(parameter) or ""
        self._dicts = self._dicts or bool(wanted)
        return wanted

    def _instead_of_plain(self, entry: Entry, key: Any, name: str, here: str) -> str:
        """Returns what the optimizer makes where a plain tensor is stored; "" for a plain one."""
        parameter = entry.parameter
        made_plain = not self._low_bit and type(_local(parameter)) in PLAIN
        if key == "step" or (made_plain and not here):
            return ""
        if self._source.geometry(name)[1] != tuple(parameter.shape):
            return ""
        if self._low_bit:
            # It leaves small parts plain, and those of the world that saved may have been small.
            if self._is_low_bit(_local(parameter).numel()):
                self._kept_plain.append(name)
            return ""
        wanted = here or self._of_torch(parameter) or ""
        return "" if wanted == _PLAIN else wanted

    def _lacks_step(self, stored: Any) -> bool:
        """Returns True for a stored state that this optimizer's `load_state_dict` could not take."""
        counts = self._author == "torch" and isinstance(self._optimizer, _COUNTING)
        return counts and isinstance(stored, Mapping) and bool(stored) and "step" not in stored

    def _other_sizes(self, entry: Entry, key: Any, name: str) -> str:
        """Returns how the shape of a stored tensor is none that torch's optimizer makes; "" where it may be one."""
        optimizer, parameter = self._optimizer, entry.parameter
        if self._author != "torch" or key in _NUMBERS or is_shard(parameter):
            return ""
        number, stored = self._source.geometry(name)
        wanted = tuple(parameter.shape)
        if not stored or stored == wanted or isinstance(optimizer, torch.optim.LBFGS):
            return ""  # LBFGS keeps one flat tensor of all parameters.
        if len(stored) == len(wanted):
            # Adafactor keeps a matrix's rows and columns, as matrices of one column and one row.
            factored = isinstance(optimizer, torch.optim.Adafactor)
            if self._overlap or (factored and all(map(_fits, stored, wanted))):
                return ""
        dtype = _DTYPE_NAMES[number]
        return f"stored {dtype}{list(stored)}, wanted {dtype}{list(wanted)}"

    def _is_low_bit(self, size: int) -> bool:
        """Returns True where a low-bit optimizer has its own tensors for so many elements."""
        made = self._optimizer._new_buffer(torch.empty(size, device="meta"), True)
        return type(made) is not torch.Tensor

    def _of_torch(self, parameter: Any) -> str | None:
        """Returns what `zeros_like` makes of a parameter; None where the optimizer may make another thing."""
        local = _local(parameter)
        if self._author not in ("torch", "torchao"):
            return None
        if type(local) in PLAIN:
            return _PLAIN
        try:
            return _kind(torch.zeros_like(local))
        except Exception:  # Of a class that has no zeros.
            return None

    # ---- new state in the layout of a parameter ----

    def _make(self, entry: Entry, wrapped: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns tensors to fill, and those of which this rank holds nothing."""
        to_fill: dict[str, Any] = {}
        empty: dict[str, Any] = {}
        for key in wrapped:
            if not self._low_bit:
                to_fill[key] = torch.zeros_like(entry.parameter)
            elif _local(entry.parameter).numel() == 0:
                empty[key] = torch.zeros_like(entry.parameter).detach()
            else:
                to_fill[key] = self._low_bit_zeros(entry, key)
        return to_fill, empty

    def _low_bit_zeros(self, entry: Entry, key: str) -> Any:
        """Returns a state of torchao's, with blocks of the stored size, in the layout of its parameter."""
        parameter, local = entry.parameter, _local(entry.parameter)
        name = f"{entry.name}.{key}"
        whole = all(getattr(each, "dim", 0) == 0 for each in parameter.placements)
        scales = max(math.prod(self._source.geometry(f"{name}.scale")[1]), 1)
        block = (parameter.numel() if whole else local.numel()) // scales
        if block == 0 or local.numel() % block:
            raise InvalidArgumentError(
                f'{self._title}: "{name}" has a scale for each {block} elements, and this rank\'s part of the parameter, '
                f"{list(local.shape)} of {list(parameter.shape)}, is no whole number of these. Nothing was loaded. Load on "
                "the number of ranks that saved it, or another whose parts are whole blocks; or take the state with "
                "read(), make it plain with dequantize(), and give it to load_state_dict"
            )
        made = self._optimizer._subclass_zeros(local, key == "exp_avg", block)
        return dtensor_around(made, parameter).to(parameter.device)


def _tensors(stored: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the tensors of a stored state of a parameter that have keys of their own, and its dicts."""
    if isinstance(stored, Mapping) and type(stored) is not Wrapped:
        for key, leaf in stored.items():
            if isinstance(leaf, (TensorLeaf, Mapping)):
                yield key, leaf


def _fits(stored: int, wanted: int) -> bool:
    return stored in (1, wanted)


def _local(tensor: Any) -> Any:
    return tensor._local_tensor if is_dtensor(tensor) else tensor


def _kind(tensor: Any) -> str:
    """Returns the class of a tensor that is made of others, as messages have it."""
    local = _local(tensor)  # Nearly all are plain.
    if type(local) in PLAIN and local.dtype in NUMBERS and local.layout is torch.strided:
        return _PLAIN
    apart = _wrapped.take_apart("", tensor)
    return _PLAIN if apart is None else apart.name.replace(":", ".")


def _casts(tensor: Any, stored: Wrapped) -> bool:
    """Returns True where a tensor of another class has the same inner tensors and attributes."""
    apart = _wrapped.take_apart("", tensor)
    return apart is not None and not _wrapped.difference(tensor, apart, stored, True)


def _a(kind: str) -> str:
    return kind if kind in (_PLAIN, _DICT) else f"a {kind}"


def _low_bit(optimizer: Any) -> str:
    """Returns the class of an optimizer's state, of those of torchao that have one; else ""."""
    size = getattr(optimizer, "block_size", None)
    if not isinstance(size, int) or not hasattr(optimizer, "_new_buffer"):
        return ""
    try:
        zeros = optimizer._subclass_zeros(torch.empty(size, device="meta"), True, size)
    except Exception:  # Another version of torchao.
        return ""
    kind = _kind(zeros)
    return "" if kind == _PLAIN else kind
