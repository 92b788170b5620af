"""Saves as a folder that Hugging Face's tools open: what of a state goes there, under which names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from varve import _arguments, _core
from varve._files import Source
from varve._select import Rename, renamer
from varve.errors import InvalidArgumentError


@dataclass(frozen=True)
class HfOptions:
    """Options of a save with format="hf".

    Attributes:
        rename: The names in the folder: a dict of prefixes {name in the state: name in the folder}, of which
            the first that fits is applied, or a function from the one to the other (None leaves it out).
        dtype: Floating-point tensors are cast to this torch dtype, "bfloat16" for example. The cast
            shards are copies, in memory until they have been written or staged.
        shard_size: Bytes of a file's tensors at most, or one tensor.
        config: The model's configuration: a directory whose configuration and tokenizer files are copied
            (those that `varve convert --config` takes), a mapping, which becomes `config.json`, or an object
            with `to_json_string`, such as `model.config`. Rank 0's counts.
    """

    rename: Rename | None = None
    dtype: Any = None
    shard_size: int = 5_000_000_000
    config: str | os.PathLike[str] | Mapping[str, Any] | Any = None

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError for what is of another type."""
        _arguments.count("shard_size", self.shard_size)
        if self.rename is not None:
            renamer(self.rename)

    def tensors(self, tensors: list[tuple[str, Any]], arrays: Any) -> list[tuple[str, Any]]:
        """Returns the tensors under their new names, of tied ones the first of the state."""
        rename = (lambda name: name) if self.rename is None else renamer(self.rename)
        chosen: dict[str, Any] = {}
        seen = set()
        for name, tensor in tensors:
            new = rename(name)
            if new is None:
                continue
            memory = arrays.memory(tensor)
            if memory is not None and memory in seen:
                continue
            seen.add(memory)
            if not isinstance(new, str):
                raise InvalidArgumentError(f'rename: "{name}" becomes {new!r}, want a str or None')
            if new in chosen:
                raise InvalidArgumentError(f'rename: two tensors become "{new}"')
            chosen[new] = tensor if self.dtype is None else _cast(tensor, self.dtype)
        return list(chosen.items())

    def files(self, files: Mapping[str, Source] | None) -> Mapping[str, Source] | None:
        """Returns a save's `files`, and those of the configuration that are not among them."""
        config = self.config
        if config is None:
            return files
        made: dict[str, Source] = {}
        if isinstance(config, (str, os.PathLike)):
            made.update(_core.read_hf_config(os.fspath(config)))
        elif isinstance(config, Mapping):
            made["config.json"] = json.dumps(dict(config), indent=2).encode()
        elif hasattr(config, "to_json_string"):
            made["config.json"] = config.to_json_string().encode()
        else:
            raise _arguments.refuse(
                "config", config, "a directory, a mapping, or an object with to_json_string"
            )
        return made | dict(files or {})


def chosen(hf: HfOptions | None, format: Any) -> HfOptions | None:
    """Returns the options of a save in this format; None where it is another than "hf".

    Raises InvalidArgumentError for options of another format, and for what are no options.
    """
    if hf is not None and not isinstance(hf, HfOptions):
        raise _arguments.refuse("hf", hf, "varve.HfOptions")
    if format == "hf":
        return hf or HfOptions()
    if hf is not None:
        raise InvalidArgumentError('hf= is for format="hf"')
    return None


def _cast(tensor: Any, dtype: Any) -> Any:
    import torch

    wanted = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(wanted, torch.dtype) or not wanted.is_floating_point:
        raise InvalidArgumentError(
            f'dtype={dtype!r}: want a floating-point dtype of torch, "bfloat16" for example'
        )
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        return tensor
    return tensor.detach().to(wanted)
