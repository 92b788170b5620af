"""Arrays without torch: NumPy, DLPack and the buffer protocol, in and out."""

from __future__ import annotations

import array
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import varve
from varve import _core

WITHOUT_TORCH = """
import sys
import numpy as np
import varve

path = sys.argv[1]
state = {"w": np.arange(6.0).reshape(2, 3), "l": [np.int8([1]), {"k": (1, "a")}], "n": 5}
report = varve.save(state, path)
assert report.bytes_written > 0
target = {"w": np.zeros((2, 3)), "l": [], "n": None}
varve.load(target, path)
assert np.array_equal(target["w"], state["w"]) and target["n"] == 5
assert repr(varve.read(path)) == repr(state) == repr(target)
assert varve.verify(path) == []
varve.list_checkpoints(path), varve.collect_garbage(path), varve.repair(path)
assert "torch" not in sys.modules
"""


def test_everything_works_without_torch_being_imported(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path / "c")], check=True, timeout=600
    )


DTENSORS_LATE = """
import sys
import torch
import varve.torch

path = sys.argv[1]
varve.torch.save({"w": torch.arange(3.0)}, path)
assert varve.torch.read(path)["w"].tolist() == [0, 1, 2]
assert "torch.distributed.tensor" not in sys.modules

torch.distributed.init_process_group("gloo", init_method=f"file://{path}-store", rank=0, world_size=1)
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

mesh = init_device_mesh("cpu", (1,))
state = {"d": distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])}
varve.torch.save(state, path, overwrite=True)
target = {"d": distribute_tensor(torch.zeros(4), mesh, [Shard(0)])}
varve.torch.load(target, path)
assert isinstance(target["d"], DTensor) and target["d"].full_tensor().tolist() == [0, 1, 2, 3]
torch.distributed.destroy_process_group()
"""


def test_dtensors_are_imported_by_who_makes_them_and_taken_from_then_on(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", DTENSORS_LATE, str(tmp_path / "c")], check=True, timeout=600
    )


def test_torch_types_in_a_checkpoint_do_not_hinder_a_reader_without_torch(tmp_path: Path) -> None:
    import varve.torch

    varve.torch.save({"w": torch.arange(3.0), "size": torch.Size([1]), "n": 1}, tmp_path / "c")
    script = """
import sys
sys.modules["torch"] = None  # Makes the import fail.
import varve
assert varve.read(sys.argv[1], ["w", "n"])["w"].tolist() == [0, 1, 2]
try:
    varve.read(sys.argv[1])
except varve.UnsupportedError as error:
    assert '"size"' in str(error) and "torch is not installed" in str(error), error
else:
    raise AssertionError("a torch.Size was made without torch")
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "c")], check=True, timeout=600)


NUMPY_NAMES = [name for name in _core.DTYPE_NAMES if hasattr(np, name)]


@pytest.mark.parametrize("name", NUMPY_NAMES)
def test_every_numpy_dtype_round_trips_in_every_order(name: str, tmp_path: Path) -> None:
    base = (np.arange(24) % 5).astype(name).reshape(2, 3, 4)
    state = {
        "c": base,
        "f": np.asfortranarray(base),
        "t": base.transpose(1, 2, 0),
        "s": base[:, ::2, ::-3],
        "0d": base[0, 0, 1:2].reshape(()),
        "empty": base[:, :0],
        "broadcast": np.broadcast_to(base[0, 0], (3, 4)),
    }
    varve.save(state, tmp_path / "c")
    back = varve.read(tmp_path / "c")
    targets: dict[str, Any] = {k: np.zeros(v.shape[::-1], name).T for k, v in state.items()}
    varve.load(targets, tmp_path / "c")
    for key, value in state.items():
        for got in (back[key], targets[key]):
            assert (type(got), got.dtype, got.shape) == (np.ndarray, value.dtype, value.shape)
            assert np.array_equal(got, value)


class Producer:
    """Something that only speaks DLPack."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __dlpack__(self, **options: Any) -> Any:
        return self.held.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.held.__dlpack_device__()
        return device


@pytest.mark.parametrize("name", NUMPY_NAMES)
def test_dlpack_producers_are_saved_and_filled(name: str, tmp_path: Path) -> None:
    source = (np.arange(12) % 7).astype(name).reshape(3, 4)[:, ::2]
    varve.save({"a": Producer(source), "b": [Producer(source.T)]}, tmp_path / "c")
    back = varve.read(tmp_path / "c")
    assert back["a"].dtype == source.dtype
    assert np.array_equal(back["a"], source)
    assert np.array_equal(back["b"][0], source.T)
    memory = np.zeros((3, 4), name)
    varve.load(
        {"a": Producer(memory[:, 1::2]), "b": [Producer(np.zeros((2, 3), name))]}, tmp_path / "c"
    )
    assert np.array_equal(memory[:, 1::2], source)
    assert not memory[:, ::2].any()


def test_torch_tensors_are_dlpack_producers_like_any_other(tmp_path: Path) -> None:
    varve.save({"t": torch.arange(6.0).reshape(2, 3).t()}, tmp_path / "c")
    assert varve.read(tmp_path / "c")["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    target = torch.zeros(3, 2)
    varve.load({"t": target}, tmp_path / "c")
    assert target.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_conjugated_and_negated_torch_tensors_are_stored_by_their_values(tmp_path: Path) -> None:
    plain = torch.tensor([1 + 2j, 3 - 1j])
    conjugated, negated = plain.conj(), plain.conj().imag
    assert conjugated.is_conj() and negated.is_neg()
    varve.save({"c": conjugated, "n": negated}, tmp_path / "c")
    found = varve.read(tmp_path / "c")
    assert found["c"].tolist() == [1 - 2j, 3 + 1j]
    assert found["n"].tolist() == [-2.0, 1.0]

    target = torch.zeros(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.complex64)
    varve.load({"c": target[0].conj(), "n": target[1].conj().imag}, tmp_path / "c")
    assert target[0].tolist() == [1 + 2j, 3 - 1j]
    assert target[1].imag.tolist() == [2.0, -1.0]


class Unreachable(Producer):
    """Memory on an accelerator."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("not on the CPU")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def test_memory_on_a_device_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(varve.InvalidArgumentError, match=r'"a\.b".*not in CPU memory'):
        varve.save({"a": {"b": Unreachable(None)}}, tmp_path / "c")


def view(values: Any) -> memoryview:
    return memoryview(values)


@pytest.mark.parametrize(
    "source",
    [
        memoryview(bytearray(range(12))),
        view(np.arange(12.0).reshape(3, 4)),
        view(np.arange(12, dtype=np.int16))[::2],
        memoryview(b"read-only is fine to save"),
        array.array("d", [1.5, 2.5]),
        array.array("H", range(5)),
        array.array("b"),
    ],
    ids=lambda v: f"{type(v).__name__}-{np.asarray(v).dtype}",
)
def test_buffers_are_saved_as_arrays(source: Any, tmp_path: Path) -> None:
    varve.save({"a": source}, tmp_path / "c")
    back = varve.read(tmp_path / "c")["a"]
    assert back.dtype == np.asarray(source).dtype
    assert np.array_equal(back, np.asarray(source))


def test_buffers_are_filled_in_place(tmp_path: Path) -> None:
    varve.save({"m": np.arange(6.0), "a": np.arange(3, dtype=np.int32)}, tmp_path / "c")
    memory = np.zeros(12)
    numbers = array.array("i", [0, 0, 0])
    state = {"m": view(memory)[::2], "a": numbers}
    varve.load(state, tmp_path / "c")
    assert memory.tolist() == [0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    assert state["a"] is numbers
    assert numbers.tolist() == [0, 1, 2]


def read_only(values: Any) -> Any:
    values.flags.writeable = False
    return values


@pytest.mark.parametrize(
    "target",
    [
        read_only(np.zeros(4, np.uint8)),
        np.broadcast_to(np.uint8(0), (4,)),
        memoryview(b"\0\0\0\0"),
        Producer(read_only(np.zeros(4, np.uint8))),
        np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (4,), (0,), writeable=True),
    ],
    ids=["array", "broadcast", "memoryview", "dlpack", "overlapping"],
)
def test_a_target_that_may_not_be_written_is_refused_and_nothing_changes(
    target: Any, tmp_path: Path
) -> None:
    varve.save({"a": np.ones(3), "b": np.full(4, 9, np.uint8)}, tmp_path / "c")
    state = {"a": np.zeros(3), "b": target}
    with pytest.raises(varve.InvalidArgumentError, match='"b"'):
        varve.load(state, tmp_path / "c")
    assert not state["a"].any()
    if not isinstance(target, Producer):
        assert bytes(np.asarray(target)) == b"\0\0\0\0"


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros(3, dtype=[("a", "i4"), ("b", "i8")])["b"],
        view(np.zeros(3, dtype="c")),
        view(np.zeros(3, dtype=">i4")),
        array.array("u", "abc"),
    ],
    ids=["uneven strides", "characters", "byte order", "text"],
)
def test_memory_that_is_no_array_of_a_stored_dtype_is_refused_by_name(
    bad: Any, tmp_path: Path
) -> None:
    with pytest.raises(varve.InvalidArgumentError, match=r'"a\.b"'):
        varve.save({"a": {"b": bad}}, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_unaligned_memory_is_saved_and_filled(tmp_path: Path) -> None:
    source = np.frombuffer(bytearray(range(33)), np.float64, 4, offset=1)
    varve.save({"a": source}, tmp_path / "c")
    target = np.frombuffer(bytearray(33), np.float64, 4, offset=1)
    varve.load({"a": target}, tmp_path / "c")
    assert target.tobytes() == source.tobytes() == bytes(range(1, 33))


def test_memory_maps_are_saved_and_filled(tmp_path: Path) -> None:
    source = np.memmap(tmp_path / "m", np.float32, "w+", shape=(5, 7))
    source[:] = np.arange(35).reshape(5, 7)
    varve.save({"a": source}, tmp_path / "c")
    assert type(varve.read(tmp_path / "c")["a"]) is np.ndarray
    source[:] = 0
    varve.load({"a": source}, tmp_path / "c")
    assert source.sum() == 34 * 35 / 2


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float4_e2m1fn_x2], ids=str
)
def test_dtypes_that_numpy_lacks_need_ml_dtypes(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import varve.torch

    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    tensor = torch.zeros(4, dtype=torch.uint8).view(dtype)
    varve.torch.save({"a": {"b": tensor}, "c": np.ones(2)}, tmp_path / "c")
    with pytest.raises(varve.UnsupportedError, match=r'"a\.b".*ml_dtypes'):
        varve.read(tmp_path / "c")
    assert varve.read(tmp_path / "c", "c")["c"].tolist() == [1, 1]


def test_every_dtype_of_the_engine_has_a_name_torch_knows() -> None:
    assert [n for n in _core.DTYPE_NAMES if not isinstance(getattr(torch, n), torch.dtype)] == []


def test_progress_reports_the_last_byte(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    varve.save({"a": np.zeros(1 << 20)}, tmp_path / "c", progress=lambda *p: seen.append(p))
    assert seen[-1][0] == seen[-1][1] >= 8 << 20
    assert seen == sorted(seen)
