"""What needs a process of its own: memory used, torch's other allocators, a killed trainer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gpu_support as gpu
import pytest
import torch

import varve.agent
import varve.torch

pytestmark = pytest.mark.gpu

needs_cuda = pytest.mark.skipif(gpu.DEVICE == "cpu", reason="needs CUDA itself")

LONGEST_WAIT = 60  # Seconds after which a process counts as hung.


def _start(job: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
    script = "import sys\nimport gpu_support as gpu, torch, varve.torch\n" + textwrap.dedent(job)
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end(process: subprocess.Popen[str], seconds: int = LONGEST_WAIT) -> str:
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 0, err[-4000:]
    return out


_MEMORY = """
    import json
    from pathlib import Path

    mib = int(sys.argv[2])
    state = {f"w{i}": gpu.random(mib * 32768) for i in range(8)}
    destination = gpu.zeros_like(state)
    torch.equal(destination["w0"].cpu(), state["w0"].cpu())  # Torch loads what it needs.
    path = Path(sys.argv[1]) / "saved"
    out = {"state": sum(t.nbytes for t in state.values())}
    with gpu.watched(gpu.resident_bytes) as host, gpu.watched(gpu.device_bytes_in_use) as device:
        varve.torch.save(state, path)
        out["save"] = host(), device()
    for source in ("storage", "page cache"):
        gpu.drop_cache(path)
        if source == "page cache":
            gpu.warm_cache(path)
        for tensor in destination.values():
            tensor.zero_()
        with gpu.watched(gpu.resident_bytes) as host:
            with gpu.watched(gpu.device_bytes_in_use) as device:
                varve.torch.load(destination, path)
                out[source] = host(), device()
        gpu.require_same(destination, state, source)
    print(json.dumps(out))
"""


def test_saves_and_loads_take_little_memory_of_host_and_device(tmp_path: Path) -> None:
    mib = 1024 if gpu.DEVICE == "cuda" else 64
    out: dict[str, Any] = json.loads(_end(_start(_MEMORY, tmp_path, mib)).splitlines()[-1])
    for what in ("save", "storage", "page cache"):
        host, device = out[what]
        assert host <= 350 * gpu.MIB, (what, out)
        assert device <= 0.02 * out["state"], (what, out)


_ALLOCATOR = """
    from pathlib import Path
    from varve.torch import async_save

    state = gpu.every_kind() | {f"w{i}": gpu.random(4_000_001) for i in range(8)}
    directory = Path(sys.argv[1])
    for way in ("save", "blocking", "overlapped"):
        path = directory / way
        if way == "save":
            varve.torch.save(state, path)
        else:
            async_save(state, path, staging=way).result()
        gpu.require_same(varve.torch.read(path), state, way)
        torch.cuda.empty_cache()
        destination = gpu.zeros_like(state)
        varve.torch.load(destination, path)
        gpu.require_same(destination, state, way + ", loaded")
        del destination
    gpu.require_same(varve.torch.read(path, device="cuda"), state, "read")
    print(torch.cuda.memory.get_allocator_backend())
"""


@needs_cuda
def test_other_allocators_of_torch_are_served(tmp_path: Path) -> None:
    settings = {
        "expandable": "expandable_segments:True",
        "async": "backend:cudaMallocAsync",
    }
    jobs = {}
    for name, setting in settings.items():
        (tmp_path / name).mkdir()
        jobs[name] = _start(_ALLOCATOR, tmp_path / name, PYTORCH_CUDA_ALLOC_CONF=setting)
    out = {name: _end(job).split()[-1] for name, job in jobs.items()}
    assert out == {"expandable": "native", "async": "cudaMallocAsync"}


_KILLED = """
    import os, signal
    from varve.torch import Stager, async_save

    torch.manual_seed(11)
    state = {f"w{i}": gpu.random(8 << 20) for i in range(8)}
    stager = Stager(executor="process", memory_budget=1 << 30)
    stager.prepare(state)
    handle = async_save(state, sys.argv[1], stager=stager)
    handle.wait_staged()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_trainer_that_is_killed_leaves_what_the_agent_has(agent: str, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    trainer = _start(_KILLED, path)
    _, err = trainer.communicate(timeout=LONGEST_WAIT)
    assert trainer.returncode == -signal.SIGKILL, err[-4000:]
    varve.agent.drain(60.0)
    torch.manual_seed(11)
    wanted = {f"w{i}": gpu.random(8 << 20) for i in range(8)}
    for use_agent in (True, False):
        destination = gpu.zeros_like(wanted)
        varve.torch.load(destination, path, use_agent=use_agent)
        gpu.require_same(destination, wanted, f"use_agent={use_agent}")


_COMPILED = """
    from pathlib import Path
    from varve.torch import Stager, async_save

    state = {f"w{i}": gpu.random(8 << 20) for i in range(4)}
    values = gpu.random(256, 256)

    def step(values):
        return (values @ values).sin() + 1

    wanted = step(values)
    compiled = torch.compile(step, mode="reduce-overhead")
    with Stager(memory_budget=1 << 30) as stager:
        for turn in range(4):
            path = Path(sys.argv[1]) / str(turn)
            handle = async_save(state, path, stager=stager, staging="overlapped")
            for _ in range(5):
                found = compiled(values).clone()
            assert torch.allclose(found, wanted, atol=1e-3), turn
            handle.result()
            gpu.require_same(varve.torch.read(path), state, str(turn))
"""


@needs_cuda
def test_torch_compile_captures_graphs_during_saves(tmp_path: Path) -> None:
    job = _start(_COMPILED, tmp_path)
    try:
        _end(job, seconds=25)
    except subprocess.TimeoutExpired:
        pytest.skip("torch.compile took more than 25 s here")
    except AssertionError as error:
        if "triton" in str(error).lower() and "varve" not in str(error):
            pytest.skip(f"torch.compile does not work here: {str(error)[-200:]}")
        raise


_RANKS = """
    import json, os, warnings
    import torch.distributed as dist
    import varve.torch.dcp as dcp

    directory, rank = sys.argv[1], int(sys.argv[2])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2)
    large = torch.arange(3_000_000.0, device=gpu.DEVICE)
    state = {
        "equal": large, "equal and turned": large.view(1000, 3000).t(), "small": large[:9],
        "differs": large + rank, "differs and is turned": large.view(3000, 1000).t() - rank,
    }
    ways = {
        "save": varve.torch.save,
        "async_save": lambda state, path: varve.torch.async_save(state, path).result(),
        "drop-in save": lambda state, path: dcp.save(state, checkpoint_id=path),
        "drop-in async_save": lambda state, path: dcp.async_save(state, checkpoint_id=path).result(),
    }
    out = {}
    for way, save in ways.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            save(state, f"{directory}/{way}/saved")
        texts = [str(w.message) for w in caught if w.category is varve.ReplicasDifferWarning]
        out[way] = [[name for name in state if f" {name}," in text + "," or f" {name}." in text]
                    for text in texts]
    print(json.dumps(out))
    varve.torch._stager.end_all()
    sys.stdout.flush()
    os._exit(0)  # Gloo may abort an interpreter that ends in order.
"""


def test_replicas_of_two_ranks_are_compared_where_they_are(tmp_path: Path) -> None:
    ranks = [_start(_RANKS, tmp_path, rank) for rank in range(2)]
    first, second = (json.loads(_end(rank).splitlines()[-1]) for rank in ranks)
    assert list(first.values()) == [[["differs", "differs and is turned"]]] * 4
    assert not any(second.values()), "rank 0 warns, for all"
