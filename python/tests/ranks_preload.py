"""What the fork server of `ranks` imports once, so that no rank imports it again."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import threading
from pathlib import Path

# `ranks` put this folder in front for the server alone: a rank's own subprocesses get what the tests have.
_, _, _others = os.environ.pop("PYTHONPATH", "").partition(os.pathsep)
if _others:
    os.environ["PYTHONPATH"] = _others

importlib.import_module("torch")
_THREADS = len(os.listdir("/proc/self/task"))  # OpenBLAS's, which a fork stops and starts.

# The first DTensor of a process imports torch._dynamo.
_JOBS = sorted(path.stem for path in Path(__file__).parent.glob("*_jobs.py"))
for _name in ("torch.distributed.tensor", "torch._dynamo", "varve.torch", "lightning", *_JOBS):
    # Frameworks that the jobs import may not be installed, and CUDA's driver may not be there.
    with contextlib.suppress(ImportError, OSError):
        importlib.import_module(_name)

# A fork copies no thread. OpenMP's begin with the first large tensor, and ranks would wait for them.
assert threading.active_count() == 1, threading.enumerate()
assert len(os.listdir("/proc/self/task")) == _THREADS, (
    "a module of jobs computes when it is imported"
)
# A rank's collector would write to each of these objects, and so copy nearly all pages of the server.
gc.collect()
gc.freeze()
