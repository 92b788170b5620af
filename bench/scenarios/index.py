"""What does the index of a DCP checkpoint of a million chunks take to write and to read?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.context import Context
from bench.files import bytes_under, remove
from bench.measure import Sample, interleave
from bench.results import Result

_RANKS = 1000
_TENSORS = 1000
_TIMES_TORCH = {"encode": 7.5, "decode": 4.4}
# Torch takes half a minute for each.
_MAX_ROUNDS = 3

ENGINE = "varve"
TORCH = "torch"

# In a process of its own, as the engine's arm is: so the peak is that of the one task.
_TORCH_DECODE = """
import json, pickle, re, sys, time
import torch.distributed.checkpoint as dcp
wall, cpu = time.perf_counter(), time.process_time()
metadata = dcp.FileSystemReader(sys.argv[1]).read_metadata()
decode = time.perf_counter() - wall, time.process_time() - cpu
peak = 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
wall, cpu = time.perf_counter(), time.process_time()
pickle.dumps(metadata)
encode = time.perf_counter() - wall, time.process_time() - cpu
chosen = {"decode": decode, "encode": encode}[sys.argv[2]]
print(json.dumps({"seconds": chosen[0], "cpu_seconds": chosen[1], "peak_bytes": peak}))
"""


def run(context: Context) -> list[Result]:
    """Encodes and decodes the same index with the engine and with torch, in turns."""
    words = f"{_RANKS} x {_TENSORS} chunks"
    if context.index_codec is None:
        reason = {ENGINE: "--index-codec is not given; CMake builds it with VARVE_BUILD_BENCH"}
        return [Result("index", f"The index of {words}.", 0, {}, reason, ())]
    directory = context.directory / "index"
    codec = [str(context.index_codec)]
    encode = [*codec, "encode", str(directory), str(_RANKS), str(_TENSORS)]
    _run(encode)
    torch = [sys.executable, "-c", _TORCH_DECODE, str(directory)]
    size = bytes_under(directory / ".metadata")
    results = [
        _result(context, "encode", words, size, encode, [*torch, "encode"]),
        _result(
            context, "decode", words, size, [*codec, "decode", str(directory)], [*torch, "decode"]
        ),
    ]
    results[1].expect_peak(ENGINE, 500e6)
    remove(directory)
    return results


def _result(
    context: Context, verb: str, words: str, size: int, ours: Sequence[str], torchs: Sequence[str]
) -> Result:
    turns: dict[str, Callable[[], Sample]] = {
        ENGINE: partial(_run, ours),
        TORCH: partial(_run, torchs),
    }
    rounds = interleave(turns, rounds=min(context.rounds, _MAX_ROUNDS), warmups=0)
    question = f"To {verb} the index of {words}, in a fresh process."
    result = Result.of(f"index {verb}", question, size, rounds, {}, (TORCH,))
    result.expect_speed(ENGINE, TORCH, _TIMES_TORCH[verb])
    return result


def _run(command: Sequence[str | Path]) -> Sample:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(done.stderr.strip() or f"{command[0]} exited with {done.returncode}")
    line = json.loads(done.stdout.splitlines()[-1])
    return Sample(line["seconds"], line["cpu_seconds"], line["peak_bytes"])
