"""The files of a model's configuration in a folder of Hugging Face's layout, from what a caller has."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from varve import _arguments, _core
from varve.errors import InvalidArgumentError

_NAME = "config.json"
_WANT = (
    "a transformers model, a directory, a mapping, or an object with to_json_string, such as "
    "model.config"
)

#: The children by which FSDP, DDP and torch.compile hold the model that they wrap.
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "module")


def files_of(config: Any) -> dict[str, bytes]:
    """Returns the files by name.

    Raises:
        InvalidArgumentError: `config` is nothing that has a configuration, or JSON cannot hold it.
        CheckpointNotFoundError: A directory has no configuration.
    """
    if isinstance(config, (str, os.PathLike)):
        if os.path.isfile(config):
            raise _arguments.refuse("config", config, "the directory, not a file in it")
        return dict(_core.read_hf_config(os.fspath(config)))
    if isinstance(config, Mapping):
        return {_NAME: _encoded(dict(config))}
    if isinstance(config, type):
        raise _arguments.refuse("config", config, f"an object, not a class: {_WANT}")
    if is_module(config):
        return _files_of_model(_unwrapped(config))
    if hasattr(config, "to_json_string"):
        return {_NAME: config.to_json_string().encode()}
    raise _arguments.refuse("config", config, _WANT)


def with_dtype(files: Mapping[str, bytes], dtype: str) -> dict[str, bytes]:
    """Returns the files with a `config.json` that says what the tensors were cast to."""
    if _NAME not in files:
        return dict(files)
    try:
        config = json.loads(files[_NAME])
    except ValueError as error:
        raise InvalidArgumentError(f"config: {_NAME} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise InvalidArgumentError(f"config: {_NAME} is not a JSON object")
    _set_dtype(config, dtype)
    config["dtype"] = dtype
    return {**files, _NAME: _encoded(config)}


def _set_dtype(config: dict[str, Any], dtype: str) -> None:
    """Sets the dtype where a configuration, or that of a part such as the text model, has one."""
    for name in ("dtype", "torch_dtype"):
        if name in config:
            config[name] = dtype
    for name, part in config.items():
        if name.endswith("_config") and name != "quantization_config" and isinstance(part, dict):
            _set_dtype(part, dtype)


def _encoded(config: dict[Any, Any]) -> bytes:
    try:
        return (json.dumps(config, indent=2) + "\n").encode()
    except (TypeError, ValueError) as error:
        place, value = _not_json(config, "") or ("", config)
        raise InvalidArgumentError(
            f'config: "{place}" is {_arguments.shown(value)}, which JSON cannot hold ({error}); give its '
            "name or number"
        ) from None


def _not_json(value: Any, place: str) -> tuple[str, Any] | None:
    """Returns where the first value is that JSON cannot hold, and the value."""
    if value is None or isinstance(value, (str, int, float)):
        return None
    if isinstance(value, dict):
        inner = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        inner = [(str(key), item) for key, item in enumerate(value)]
    else:
        return place, value
    for key, item in inner:
        found = _not_json(item, f"{place}.{key}" if place else key)
        if found is not None:
            return found
    return None


def wrapper_of(names: Sequence[str]) -> str:
    """Returns what wrappers of a model have put before all names: "module._orig_mod.", as a rule ""."""
    before = ""
    while names:
        added = next(
            (f"{before}{name}." for name in _WRAPPED if names[0].startswith(f"{before}{name}.")), ""
        )
        if not added or not all(name.startswith(added) for name in names):
            break
        before = added
    return before


def is_module(value: Any) -> bool:
    """Returns whether it is a module of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _unwrapped(given: Any) -> Any:
    """Returns the model of transformers that is in a module's wrappers."""
    base = getattr(sys.modules.get("transformers"), "PreTrainedModel", ())
    model = given
    while not isinstance(model, base):
        inner = [model._modules[name] for name in _WRAPPED if model._modules.get(name) is not None]
        if not inner:
            raise InvalidArgumentError(
                f"config: a {type(given).__name__} is no model of transformers; want {_WANT}"
            )
        model = inner[0]
    return model


def _files_of_model(model: Any) -> dict[str, bytes]:
    """Returns what its `save_pretrained` writes of the configuration; the model stays as it is."""
    config = json.loads(model.config.to_json_string())
    config["architectures"] = [_class_name(model)]
    config["dtype"] = str(model.dtype).removeprefix("torch.")
    if "torch_dtype" in config:
        config["torch_dtype"] = config["dtype"]
    files = {_NAME: _encoded(config)}
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        files["generation_config.json"] = generation.to_json_string().encode()
    return files


def _class_name(model: Any) -> str:
    """Returns the name of the model's own class, under those that FSDP2 and the like make of it."""
    for kind in type(model).__mro__:
        if kind.__module__ != "torch" and not kind.__module__.startswith("torch."):
            return str(kind.__name__)
    return type(model).__name__
