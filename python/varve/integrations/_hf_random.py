"""The states of a rank's random number generators, as plain values."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def capture(device: torch.device, *, all_devices: bool) -> dict[str, Any]:
    """Returns the states of Python, NumPy, torch on the CPU and, where `device` is another, on that.

    Torch's states become bytes: in a checkpoint they are then values, and no tensors of the model.

    Args:
        device: The device that this rank trains on.
        all_devices: Take those of all visible devices of that type, for one process that uses several.
    """
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": _bytes(torch.get_rng_state()),
    }
    if device.type != "cpu":
        module: Any = torch.get_device_module(device)
        some = module.get_rng_state_all() if all_devices else [module.get_rng_state(device)]
        states["device_type"] = device.type
        states["devices"] = [_bytes(state) for state in some]
    return states


def restore(states: dict[str, Any], device: torch.device) -> None:
    """Sets the states that `capture` has returned; those of another type of device are left out."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(_tensor(states["torch"]))
    if states.get("device_type") != device.type:
        return
    module: Any = torch.get_device_module(device)
    saved = [_tensor(state) for state in states["devices"]]
    if len(saved) == 1:
        module.set_rng_state(saved[0], device)
    else:
        for index, state in enumerate(saved[: module.device_count()]):
            module.set_rng_state(state, index)


def _bytes(state: torch.Tensor) -> bytes:
    return state.cpu().numpy().tobytes()


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
