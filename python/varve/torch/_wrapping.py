"""Saves and loads of tensors that are made of others; see `_wrapped` and `_by_torch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from varve import _classes, _core
from varve._values import Wrapped
from varve.torch import _by_torch, _whole, _wrapped
from varve.torch._devices import on_host
from varve.torch._shards import NUMBERS, Share, is_sharded_tensor

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


class Wrapping:
    """The Wrapping of `varve.torch`; see `varve._tree.Wrapping`.

    Args:
        fresh: Takes the tensors that are made in place of those on the meta device, by their ids.
    """

    def __init__(self, fresh: dict[int, torch.Tensor]) -> None:
        self._fresh = fresh
        #: Offsets and lengths of jagged tensors, by device, dtype and content.
        self._ragged: dict[Any, torch.Tensor] = {}

    def take_apart(self, fqn: str, tensor: Any) -> _wrapped.Apart | None:
        """Returns the inner tensors of one that is made of others; None for one of plain memory."""
        if type(tensor) in _PLAIN and tensor.layout is torch.strided:
            if tensor.dtype in NUMBERS and not tensor.is_nested:
                return None
        elif not isinstance(tensor, (torch.Tensor, Share)) or is_sharded_tensor(tensor):
            return None
        return _wrapped.take_apart(fqn, tensor)

    def text_of(self, fqn: str, tensor: Any, apart: _wrapped.Apart) -> bytes:
        """Returns what the structure says of a tensor that is made of others."""
        return _wrapped.text_of(fqn, tensor, apart)

    def difference(
        self,
        tensor: Any,
        apart: _wrapped.Apart,
        stored: Wrapped,
        cast: bool,
        shape_of: Callable[[str], tuple[int, ...]],
    ) -> str:
        """Returns in what a stored tensor made of others is another than one to fill; "" where it fits."""
        unlike = _wrapped.difference(tensor, apart, stored, cast)
        return unlike or _wrapped.packed(apart, stored, shape_of)

    def with_memory(self, tensor: Any, apart: _wrapped.Apart) -> Any:
        """Returns a tensor made of others in place of one on the meta device."""
        default = torch.get_default_device()
        device = torch.device("cpu") if default.type == "meta" else default
        return self.adopt(tensor, _wrapped.like(tensor, apart, device))

    def adopt(self, tensor: Any, made: Any) -> Any:
        """Returns a new tensor as it takes the place of another: a Parameter stays one."""
        if not isinstance(made, torch.Tensor):
            return made
        if isinstance(tensor, torch.nn.Parameter) and not isinstance(made, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        if isinstance(tensor, torch.Tensor) and tensor.is_meta:
            self._fresh[id(made)] = made
        return made

    def pickle_of(self, fqn: str, tensor: Any) -> tuple[bytes, list[str]] | None:
        """Returns a pickle of a tensor made of others, and the names of its storages; see `_whole`."""
        return _whole.pickled(fqn, tensor)

    def put_together(self, fqn: str, text: bytes, inner: dict[str, Any]) -> Any:
        """Returns a tensor made of others, or a dict of these."""
        if _classes.split(text)[0] == "torch:jagged":
            inner = {name: self._one(name, tensor) for name, tensor in inner.items()}
        return _wrapped.put_together(text, inner, fqn)

    def _one(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the same object for the same raggedness: torch compares two jagged tensors by it."""
        if name == "values":
            return tensor
        key = tensor.device, tensor.dtype, on_host(tensor).numpy().tobytes()
        return self._ragged.setdefault(key, tensor)

    def pickled(
        self, reader: _core.Reader, fqn: str, tensor: Any, apart: _wrapped.Apart
    ) -> tuple[str, Callable[[], Any]]:
        """Returns how what torch has pickled differs from a tensor to fill, and what fills or gives it."""
        if reader.format != "dcp":
            return "a plain tensor", lambda: None
        return _by_torch.plan(reader, fqn, tensor, apart)

    def whole_pickled(self, reader: _core.Reader, fqn: str) -> Any:
        """Returns the whole tensor that torch has pickled as objects of its class, None for a plain one."""
        return _by_torch.whole(reader, fqn) if reader.format == "dcp" else None
