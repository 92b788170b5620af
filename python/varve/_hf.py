"""Saves as a folder that Hugging Face's tools open: what of a state goes there, under which names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from varve import _arguments, _core, _hf_config
from varve._files import Source
from varve._select import Rename, renamer
from varve._warn import warn
from varve.errors import InvalidArgumentError


@dataclass(frozen=True)
class HfOptions:
    """Options of a save with format="hf".

    Attributes:
        rename: The names in the folder: a dict of prefixes {name in the state: name in the folder}, of which
            the first that fits is applied, or a function from the one to the other (None leaves it out).
            By default those of the state, without what DDP and torch.compile put before all of them where
            `config` is a model ("module.", "_orig_mod.").
        dtype: Floating-point tensors and arrays are cast to this dtype of torch, or one with a name
            like "bfloat16" or "bf16"; the configuration then says so. The cast shards are copies, in
            memory until they have been written or staged.
        shard_size: Bytes of a file's tensors at most, or one tensor.
        config: The model's configuration: the model itself (a `PreTrainedModel` of transformers, also
            wrapped by FSDP, DDP or torch.compile), whose configuration is saved with its class and
            dtype, and its generation configuration; a directory whose configuration and tokenizer
            files are copied (those that `varve convert --hf-config` takes); a mapping, which becomes
            `config.json`; or an object with `to_json_string`, such as `model.config`. Rank 0's counts.
    """

    rename: Rename | None = None
    dtype: Any = None
    shard_size: int = 5_000_000_000
    config: str | os.PathLike[str] | Mapping[str, Any] | Any = None

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError for what is of another type."""
        _arguments.count("shard_size", self.shard_size)
        if self.dtype is not None:
            _floating(self.dtype)
        if self.rename is not None:
            renamer(self.rename)

    def tensors(self, tensors: list[tuple[str, Any]], arrays: Any) -> list[tuple[str, Any]]:
        """Returns the tensors under their new names, of tied ones the first of the state."""
        rename = self._renamer([name for name, _ in tensors])
        number = None if self.dtype is None else _floating(self.dtype)
        chosen: dict[str, tuple[str, Any]] = {}
        seen = set()
        for name, tensor in tensors:
            new = rename(name)
            if new is None:
                continue
            memory = arrays.memory(tensor, name)
            if memory is not None and memory in seen:
                continue
            seen.add(memory)
            new = _checked_name(name, new)
            if new in chosen:
                raise InvalidArgumentError(
                    f'rename: "{chosen[new][0]}" and "{name}" both become "{new}"'
                )
            chosen[new] = name, tensor
        if number is None:
            return [(new, tensor) for new, (_, tensor) in chosen.items()]
        from varve.torch import _casts  # Options alone need no torch.

        return [
            (new, _casts.cast(name, tensor, number, arrays))
            for new, (name, tensor) in chosen.items()
        ]

    def _renamer(self, names: list[str]) -> Callable[[str], str | None]:
        if self.rename is not None:
            return renamer(self.rename)
        before = _hf_config.wrapper_of(names)
        if before and _hf_config.is_module(self.config):
            return lambda name: name.removeprefix(before)
        if before:
            warn(
                f'all names begin with "{before}", as a wrapper of the model has put it there: '
                "from_pretrained will not find them. Pass the model as `config`, or strip_wrappers=True "
                f'to the save, or `rename={{"{before}": ""}}`',
                RuntimeWarning,
            )
        return lambda name: name

    def files(self, files: Mapping[str, Source] | None) -> Mapping[str, Source] | None:
        """Returns a save's `files`, and those of the configuration that are not among them."""
        if self.config is None or not isinstance(files, Mapping | None):
            return files
        made = _hf_config.files_of(self.config)
        if self.dtype is not None:
            made = _hf_config.with_dtype(made, _core.DTYPE_NAMES[_floating(self.dtype)])
        return {**made, **(files or {})}


def chosen(hf: Any, format: Any) -> HfOptions | None:
    """Returns the options of a save in this format; None where it is another than "hf".

    Raises InvalidArgumentError for options of another format, and for what are no options. Call it where
    other ranks learn of that.
    """
    if hf is not None and not isinstance(hf, HfOptions):
        raise _arguments.refuse("hf", hf, "varve.HfOptions")
    if format == "hf":
        return hf or HfOptions()
    if hf is not None:
        raise InvalidArgumentError('hf= is for format="hf"')
    return None


def shard_size(hf: Any) -> int:
    """Returns the size of a file for the engine's options; `hf` may be anything, see `chosen`."""
    return hf.shard_size if isinstance(hf, HfOptions) else HfOptions.shard_size


def _floating(dtype: Any) -> int:
    """Returns the engine's number of a floating-point dtype."""
    number = _arguments.dtype("dtype", dtype)
    if number is None or not _core.DTYPE_NAMES[number].startswith(("float", "bfloat")):
        raise _arguments.refuse("dtype", dtype, 'a floating-point dtype, such as "bfloat16"')
    return number


def _checked_name(name: str, new: Any) -> str:
    if not isinstance(new, str):
        raise InvalidArgumentError(f'rename: "{name}" becomes {new!r}, want a str or None')
    try:
        new.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f'rename: "{name}" becomes {new!r}, which cannot be a name: {error.reason}'
        ) from None
    return new


def warn_of_wrapped(wrapped: list[str]) -> None:
    """Warns of tensors whose inner ones alone get into the folder."""
    if wrapped:
        more = len(wrapped) - 1
        others = f" and {more} other{'s' if more > 1 else ''}" if more else ""
        warn(
            f'format="hf" writes the inner tensors of "{wrapped[0]}"{others} under torchao\'s names, without '
            "the classes: neither from_pretrained nor load makes tensors of them. Dequantize the state, "
            "or call the model's save_pretrained",
            UserWarning,
        )


def named_as_torchao(tensors: list[tuple[str, Any]], wrapped: list[str]) -> list[tuple[str, Any]]:
    """Returns tensors with the inner ones of wrapped tensors as torchao names them in safetensors files.

    The `qdata` of a "layer.weight" is "layer._weight_qdata" (torchao.prototype.safetensors, torchao 0.18).
    """
    if not wrapped:
        return tensors
    names = set(wrapped)

    def name_of(name: str) -> str:
        whole, _, inner = name.rpartition(".")
        if whole not in names:
            return name
        module, _, parameter = whole.rpartition(".")
        return f"{module}._{parameter}_{inner}" if module else f"_{parameter}_{inner}"

    return [(name_of(name), tensor) for name, tensor in tensors]
