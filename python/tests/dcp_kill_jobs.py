"""Functions that the killed processes of dcp/test_in_place.py run."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import torch
import torch.distributed.checkpoint as torch_dcp

import varve.torch.dcp as dcp

warnings.filterwarnings("ignore", "torch.distributed is (disabled|not initialized)")


def save_in_place_for_ever(path: str, first: int, started: Any, rank_local: bool) -> None:
    """Saves states of ever higher numbers into a directory that holds other things."""
    torch.set_num_threads(1)
    number = first
    started.set()
    while True:
        dcp.save(numbered(number), checkpoint_id=path, use_collectives=not rank_local)
        number += 1


def numbered(number: int) -> dict[str, Any]:
    """A state that shows a mix."""
    return {
        "w": torch.full((200_000,), number, dtype=torch.int64),
        "v": torch.full((7,), number, dtype=torch.int64),
        "n": number,
    }


def save_and_be_killed(path: str, number: int, phase: str, rank_local: bool) -> None:
    """Saves, and kills itself when `phase` has been reached."""

    class Writer(dcp.FileSystemWriter):
        def prepare_local_plan(self, plan: Any) -> Any:
            plan = super().prepare_local_plan(plan)
            if rank_local:
                _die_in("claimed", phase)
            return plan

        def prepare_global_plan(self, plans: Any) -> Any:
            plans = super().prepare_global_plan(plans)
            _die_in("claimed", phase)
            return plans

        def write_data(self, plan: Any, planner: Any) -> Any:
            if phase == "written in part":
                part = torch_dcp.SavePlan(plan.items[:1], storage_data=plan.storage_data)
                super().write_data(part, planner)
                _die_in("written in part", phase)
            written = super().write_data(plan, planner)
            _die_in("written", phase)
            return written

        def finish(self, metadata: Any, results: Any) -> None:
            super().finish(metadata, results)
            _die_in("published", phase)

    dcp.save(numbered(number), storage_writer=Writer(path), use_collectives=not rank_local)


def _die_in(reached: str, phase: str) -> None:
    if reached == phase:
        os.kill(os.getpid(), signal.SIGKILL)
