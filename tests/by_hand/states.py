"""What the checkpoints of this folder hold, and how it is compared. Needs torch alone, 2.6 or later."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import queue
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable|not initialized)")
warnings.filterwarnings("ignore", "(TypedStorage is deprecated|ComplexHalf support)")

#: What torch 2.6 has and stores; it also has shells without operations (bits8, int4), which are
#: never stored.
DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
]
NEW_DTYPES = ("float8_e8m0fnu", "float4_e2m1fn_x2")
#: Those that the safetensors format and torch's writer of it both have.
SAFETENSORS_DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]

#: [5, 6] of [8, 9].
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t[:5, :6].contiguous(),
    "transposed": lambda t: t[:6, :5].t(),
    "slack": lambda t: t[1:6, 2:8],
    "strided": lambda t: t[::2, ::2],
    "expanded": lambda t: t[:1, :6].expand(5, 6),
    "0-d": lambda t: t[3, 4],
    "empty": lambda t: t[:0, :3],
}

Place = Callable[[torch.Tensor, int], torch.Tensor]


def whole(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """The placement of a state that is not sharded."""
    return tensor


def bits(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Any bit patterns, NaNs too; the same for a name wherever this runs."""
    count = torch.Size(shape).numel() * dtype.itemsize
    content = hashlib.shake_256(name.encode()).digest(count)
    if dtype is torch.bool:
        content = bytes(byte & 1 for byte in content)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(dtype).reshape(shape)


def single() -> dict[str, Any]:
    """What one process has: every dtype and layout, values, containers, an optimizer that took a step."""
    tensors: dict[str, Any] = {
        f"{name} {layout}": make(bits(name, (8, 9), getattr(torch, name)))
        for name in DTYPES
        for layout, make in LAYOUTS.items()
    }
    tensors["conjugated"] = bits("conj", (4, 5), torch.complex64).conj()
    tensors["negated"] = bits("neg", (4, 5), torch.complex64).conj().imag
    tensors["large"] = torch.arange(300_000.0).reshape(600, 500)
    tensors["parameter"] = torch.nn.Parameter(torch.arange(6.0))
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Linear(10, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    return {
        "tensors": tensors,
        "model": model.state_dict(),
        "optim": optimizer.state_dict(),
        "nested": {
            "list": [torch.arange(3), {"deep": [{"x": 1}, 2]}, [torch.ones(2)]],
            "3": "three",
        },
        "values": values(),
    }


def values() -> dict[str, Any]:
    return {
        "text": "é\0\n",
        "int": -(2**80),
        "true": True,
        "float": -0.0,
        "nan": float("nan"),
        "none": None,
        "bytes": b"\x00\xff",
        "tuple": (1, "a", (2.5, None)),
        "with a tensor": (torch.arange(3), 1),
        "plain list": [1, [2, 3]],
        "complex": 1 - 2j,
        "set": {7},
        "dtype": torch.float16,
        "size": torch.Size([2, 3]),
    }


def sharded(place: Place) -> dict[str, Any]:
    """What several ranks have; `place` shards a tensor along a dimension, or leaves it whole."""
    every = {
        f"{name} {dim}": place(bits(name, (7, 5), getattr(torch, name)), dim)
        for name in DTYPES
        for dim in (0, 1)
    }
    shapes = {"layers.0.weight": (10, 6), "layers.0.bias": (10,), "head.weight": (2, 300)}
    # As torch.distributed.checkpoint.state_dict.get_state_dict names what FSDP2 and Adam hold.
    model = {n: place(bits(n, s, torch.float32), 0) for n, s in shapes.items()}
    moments = {
        name: {
            "step": torch.tensor(3.0),
            "exp_avg": place(bits(f"{name} m", shape, torch.float32), 0),
            "exp_avg_sq": place(bits(f"{name} v", shape, torch.float32), 0),
        }
        for name, shape in shapes.items()
    }
    groups = [{"lr": 0.1, "betas": (0.9, 0.999), "params": list(shapes), "foreach": None}]
    return {
        "every": every,
        "model": model,
        "optim": {"state": moments, "param_groups": groups},
        "plain": torch.arange(10),
        "column-major": place(bits("t", (5, 9), torch.float64).t(), 1),
        "step": 3,
        "name": "a run",
    }


def on_mesh(size: int, other: bool = False) -> Place:
    """Shards evenly along the dimension that a state asks for, or along the one after it."""
    mesh = init_device_mesh("cpu", (size,))

    def place(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        dim = (dim + other) % tensor.dim()
        local = part(tensor, dim, size, dist.get_rank()).clone()
        return DTensor.from_local(
            local,
            mesh,
            [Shard(dim) if size > 1 else Replicate()],
            run_check=False,
            shape=tensor.shape,
            stride=tensor.contiguous().stride(),
        )

    return place


def part(tensor: torch.Tensor, dim: int, size: int, rank: int) -> torch.Tensor:
    """What rank `rank` has of a tensor that is sharded along a dimension."""
    step = -(-tensor.shape[dim] // size)
    begin = min(rank * step, tensor.shape[dim])
    return tensor.narrow(dim, begin, min(step, tensor.shape[dim] - begin))


def content(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes()


def entry(leaf: Any) -> dict[str, Any]:
    if not isinstance(leaf, torch.Tensor):
        return {"value": f"{type(leaf).__name__} {leaf!r}"}
    digest = hashlib.sha256(content(leaf)).hexdigest()
    return {"dtype": str(leaf.dtype), "shape": list(leaf.shape), "sha256": digest}


def entries(state: dict[str, Any]) -> dict[str, Any]:
    """By flat name, as torch flattens: dtype, shape and digest of a tensor, type and repr of a value."""
    flat, paths = flatten_state_dict(state)
    return {name: {**entry(leaf), "path": repr(paths[name])} for name, leaf in flat.items()}


def compare(found: dict[str, Any], expected: dict[str, Any], paths: bool = True) -> None:
    """Both by flat name, as `entries` gives them."""
    wrong = [f"missing {name!r}" for name in expected.keys() - found.keys()]
    wrong += [f"unexpected {name!r}" for name in found.keys() - expected.keys()]
    for name in expected.keys() & found.keys():
        for key in expected[name].keys() - (set() if paths else {"path"}):
            if found[name].get(key) != expected[name][key]:
                wrong.append(f"{name!r}: {key} {found[name].get(key)}, not {expected[name][key]}")
    if wrong:
        raise AssertionError(f"{len(wrong)} differences: " + "; ".join(sorted(wrong)[:3]))


class Cases:
    """Runs cases, prints a line for each and a total."""

    def __init__(self) -> None:
        self.ran = self.failed = self.skipped = 0

    def run(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        self.ran += 1
        try:
            function(*args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # As which torch raises a failed load.
            self.failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
        else:
            print(f"ok      {name}", flush=True)

    def skip(self, name: str, why: str) -> None:
        self.skipped += 1
        print(f"skipped {name}: {why}", flush=True)

    def total(self, who: str) -> int:
        print(f"{who}: {self.ran} cases, {self.failed} failed, {self.skipped} skipped", flush=True)
        return 1 if self.failed else 0


def _rank(rank: int, size: int, store: str, results: Any, function: Any, args: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        outcome = function(*args)
        dist.barrier()
        results.put((rank, True, outcome))
    except BaseException:
        results.put((rank, False, traceback.format_exc()))
    results.close()
    results.join_thread()
    os._exit(0)  # Gloo's threads may abort an interpreter that shuts down in order.


def ranks(size: int, function: Callable[..., Any], *args: Any) -> Any:
    """Runs `function(*args)` on `size` gloo ranks; returns what rank 0 returned."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    outcomes: dict[int, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        store = str(Path(directory, "store"))
        processes = [
            context.Process(target=_rank, args=(rank, size, store, results, function, args))
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        try:
            while len(outcomes) < size:
                rank, fine, outcome = results.get(timeout=300)
                if not fine:
                    raise AssertionError(f"rank {rank}: {outcome}")
                outcomes[rank] = outcome
        except queue.Empty:
            raise AssertionError(f"only ranks {sorted(outcomes)} gave a result") from None
        finally:
            for process in processes:
                process.join(timeout=10)
                if process.is_alive():
                    process.kill()
    return outcomes[0]
