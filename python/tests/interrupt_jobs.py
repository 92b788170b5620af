"""The ranks of test_interrupt_ranks.py. Arguments: rank, size, then its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import varve.torch
import varve.torch.dcp

MIB = 1 << 20

#: Seconds until the signal comes, and until a rank makes a call that is late: it comes before.
_SIGNAL = 0.3
_LATE = 0.8


def _outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    except Exception as error:
        blamed = getattr(error, "rank", None)
        return f"{type(error).__name__} of {blamed}: {error}"
    return "done"


def interrupt(rank: int, size: int, directory: str) -> dict[str, tuple[int, str, str]]:
    """Interrupts one rank after the other while it writes, reads or waits for a late rank.

    Returns of each case the rank, how its call ended here, and how the save after it did.
    """
    state = {f"w{one}": torch.full((12 * MIB,), one, dtype=torch.uint8) for one in range(size)}
    small = {"w": torch.ones(3)}
    varve.torch.save(state, f"{directory}/whole")

    def slow(done: int, total: int) -> None:
        time.sleep(1.0)

    def save(name: str, late: int | None = None, **options: Any) -> None:
        if rank == late:
            time.sleep(_LATE)
        varve.torch.save(state, f"{directory}/{name}", **options)

    def load(late: int | None = None, **options: Any) -> None:
        if rank == late:
            time.sleep(_LATE)
        varve.torch.load(state, f"{directory}/whole", **options)

    class Interrupted:
        """Asked for its state, it meets Ctrl-C on one rank."""

        def __init__(self, who: int) -> None:
            self.who = who

        def state_dict(self) -> dict[str, int]:
            if rank == self.who:
                raise KeyboardInterrupt
            return {"count": 1}

        def load_state_dict(self, state: object) -> None:
            pass

    def plan(who: int, late: int) -> None:
        if rank == late:
            time.sleep(_LATE)
        varve.torch.save({"o": Interrupted(who), "w": torch.ones(3)}, f"{directory}/planned-{who}")

    def plan_dcp(who: int) -> None:
        state = {"o": Interrupted(who), "w": torch.ones(3)}
        varve.torch.dcp.load(state, checkpoint_id=f"{directory}/of-dcp")

    found: dict[str, tuple[int, str, str]] = {}

    def case(name: str, who: int, call: Callable[[], None]) -> None:
        dist.barrier()
        timer = threading.Timer(_SIGNAL, os.kill, (os.getpid(), signal.SIGINT))
        if rank == who:
            timer.start()
        ended = _outcome(call)
        timer.cancel()
        dist.barrier()  # Each has failed before the next call of any.
        path = f"{directory}/next-{len(found)}"
        found[name] = (who, ended, _outcome(lambda: varve.torch.save(small, path)))

    varve.torch.dcp.save(
        {"o": {"count": 1}, "w": torch.ones(3)}, checkpoint_id=f"{directory}/of-dcp"
    )
    for who in range(size):
        late = (who - 1) % size
        for one in {(who + 1) % size, late} - {0}:
            case(f"plan on {who} before {one}", who, lambda who=who, one=one: plan(who, one))  # type: ignore[misc]
        case(f"plan of dcp on {who}", who, lambda who=who: plan_dcp(who))  # type: ignore[misc]
        case(f"write on {who}", who, lambda who=who: save(f"written-{who}", progress=slow))  # type: ignore[misc]
        case(f"read on {who}", who, lambda: load(progress=slow))
        case(f"wait in a save on {who}", who, lambda who=who, late=late: save(f"a-{who}", late))  # type: ignore[misc]
        case(f"wait in a load on {who}", who, lambda late=late: load(late))  # type: ignore[misc]
    return found
