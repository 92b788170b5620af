"""Lies in OLMo-core's first layout: slices of tensors, of which `metadata.json` says what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attack import CORRUPT, UNSUPPORTED, attack
from formats import dct, lst, num, pickled, safetensors, text, touch

NAME = "rank_0.safetensors"


def entry(shape: list[int], files: dict[str, Any], dtype: str = "F32") -> dict[str, Any]:
    specs = {name: {"flattened_offsets": ranges} for name, ranges in files.items()}
    return {"shape": shape, "is_sharded": True, "dtype": dtype, "shard_spec_per_file": specs}


def write(path: Path, tensors: dict[str, Any], *ranks: dict[str, tuple[str, bytes]]) -> None:
    """Writes one folder. A rank is given as dtype and bytes of each slice, of elements of 1 or 4 bytes."""
    path.mkdir(parents=True)
    for number, rank in enumerate(ranks):
        header, data = {}, b""
        for name, (dtype, content) in rank.items():
            count = len(content) // {"U8": 1, "F32": 4, "I64": 8}[dtype]
            place = [len(data), len(data) + len(content)]
            header[name] = {"dtype": dtype, "shape": [count], "data_offsets": place}
            data += content
        (path / f"rank_{number}.safetensors").write_bytes(safetensors(header, data))
    (path / "metadata.json").write_text(json.dumps({"tensors": tensors}))


def core(folder: Path, shape: list[int], files: dict[str, Any]) -> Path:
    """A model with one tensor, of which the file of rank 0 holds four elements."""
    write(folder / "core" / "model", {"w": entry(shape, files)}, {"w": ("F32", bytes(16))})
    return folder / "core"


@attack(CORRUPT, "expected rank_{R}.safetensors")
def core_path_climbs_out(folder: Path, canary: Path) -> Path:
    """Another directory's file becomes a tensor."""
    return core(folder, [8], {NAME: [[0, 4]], "../../rank_0.safetensors": [[4, 8]]})


@attack(CORRUPT, "names the files of 999999999 ranks")
def core_claims_a_billion_ranks(folder: Path, canary: Path) -> Path:
    """A list of a billion names, or a loop over them."""
    return core(folder, [8], {NAME: [[0, 4]], "rank_999999998.safetensors": [[4, 8]]})


@attack(CORRUPT, "larger than 2^62 bytes")
def core_shape_overflows(folder: Path, canary: Path) -> Path:
    """The product of the sizes is 0 in 64 bits."""
    return core(folder, [2**32, 2**32], {NAME: [[0, 4]]})


@attack(CORRUPT, "more than once")
def core_ranges_add_up_to_nothing(folder: Path, canary: Path) -> Path:
    """2^10 ranges of 2^54 elements are 0 in 64 bits, and 4 more are the slice's length."""
    return core(folder, [2**54], {NAME: [[0, 4]] + [[0, 2**54]] * 2**10})


@attack(CORRUPT, "holds something else than numbers from 0")
def core_range_is_negative(folder: Path, canary: Path) -> Path:
    """A slice that begins before its tensor."""
    return core(folder, [8], {NAME: [[-4, 0]]})


@attack(CORRUPT, "[6, 10] is none of the 8 elements")
def core_range_ends_outside(folder: Path, canary: Path) -> Path:
    """A slice that ends behind its tensor: what follows it in memory is overwritten."""
    return core(folder, [8], {NAME: [[6, 10]]})


@attack(CORRUPT, "by metadata.json it has 8 elements")
def core_slice_is_shorter_than_its_range(folder: Path, canary: Path) -> Path:
    """What is read is what follows in the file."""
    return core(folder, [8], {NAME: [[0, 8]]})


@attack(CORRUPT, "store different values of it")
def core_slices_overlap(folder: Path, canary: Path) -> Path:
    """Which bytes are loaded depends on the order of reading."""
    files = {NAME: [[0, 4]], "rank_1.safetensors": [[2, 6]]}
    one = {"w": ("F32", b"\x01" * 16)}
    write(folder / "core" / "model", {"w": entry([6], files)}, {"w": ("F32", bytes(16))}, one)
    return folder / "core"


@attack(CORRUPT, "no chunk holds", reads=("verify", "convert"))
def core_tensor_is_an_endless_hole(folder: Path, canary: Path) -> Path:
    """An exbibyte of which nothing is stored but 16 bytes."""
    return core(folder, [2**58], {NAME: [[0, 4]]})


def optimizer(folder: Path, group: bytes, count: int = 1) -> Path:
    path = core(folder, [4], {NAME: [[0, 4]]})
    slices = {
        "num_param_groups": ("I64", count.to_bytes(8, "little", signed=True)),
        "param_group0": ("U8", pickled(group)),
        "state_keys": ("U8", pickled(b"]")),
    }
    whole = {
        name: entry(
            [len(content)] if dtype == "U8" else [],
            {NAME: [[0, len(content) if dtype == "U8" else 1]]},
            dtype,
        )
        for name, (dtype, content) in slices.items()
    }
    write(path / "optim", whole, slices)
    return path


@attack(UNSUPPORTED, "os.system", reads=("read",))
def core_group_runs_a_program(folder: Path, canary: Path) -> Path:
    """OLMo-core gives the tensor's bytes to pickle.loads."""
    return optimizer(folder, dct(text("params"), b"]", text("lr"), touch(canary)))


@attack(CORRUPT, "param_group1")
def core_claims_groups_without_end(folder: Path, canary: Path) -> Path:
    """A list of 2^64 - 1 groups."""
    return optimizer(folder, dct(text("params"), lst(num(0))), -1)
