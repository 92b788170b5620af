"""The decisions that the ranks of a job agree on while it trains: to save, to end, to give up.

Clocks, signals and failures differ between ranks. So rank 0 decides, and every rank learns its verdict
before it takes the step that it is for. The messages travel while training computes:

  1. The calls of `CheckpointManager.save` are counted from 0 on, on each rank. A verdict is for a window:
     some calls in a row.
  2. In the last call of a window each rank posts what it knows (its step, a signal that it got), and its
     thread sends that to rank 0. Rank 0's thread waits for all of them: so no verdict is made before all
     ranks have come there, and a rank that ended is named.
  3. Rank 0 decides (`Chair.decide`, which is pure but for what it is given) and sends every rank the verdict.
     "Save" and "stop" hold for the first call of the next window; its length is chosen so that
     messages are exchanged a few times a second at most, however fast the steps are.
  4. In the next call each rank takes the verdict, which as a rule is there already. A rank that comes earlier
     waits: no rank can be ahead of the others by more than a window.
     One that has missed a save in which the others wait for it tells them so meanwhile.
  5. Ranks that are at different steps get an error that names two of them, all of them the same. A rank that
     has missed a call is ahead of the others for good, counted in calls. So the next messages are
     for a step and not for a call: each rank posts again at its first step after all that were
     posted, and the counts begin anew there.

A single process is its own chair: it decides in each call, and has no thread.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from varve._core import Channel
from varve.errors import Error, InvalidArgumentError, UnavailableError

#: Seconds between two exchanges, at least; one for each thousand ranks is added to it.
_PAUSE = 0.2

#: Most calls that a verdict is for. Steps may become slower at any time.
_LONGEST = 50

#: Time limit for a rank to come to the next decision, in seconds. It holds the longest step, which has no
#: bound (an evaluation, a compilation): a stopped rank looks like a slow one. `timeout`, which is for ranks that
#: are in one call, does not count. A rank that dies is noticed at once.
_STEP_TIMEOUT = 7 * 24 * 3600.0

#: Seconds in which the messages under way arrive when the manager is closed.
_LAST = 10.0


@dataclass(frozen=True)
class Posted:
    """The knowledge of one rank at the end of a window."""

    step: int
    stop: str = ""  #: Why it wants to end: "SIGTERM".


@dataclass(frozen=True)
class Verdict:
    """The actions of all ranks in a window."""

    calls: int = 1  #: Length of the window.
    save: str = ""  #: Why to save in its first call.
    stop: str = ""  #: Why to save and end in its first call.
    error: str = ""  #: Why the ranks cannot go on together.
    give_up: str = ""  #: The saves that have failed, where that ends the training.
    meet: int = 0  #: With an error: from which step on the ranks post again.


class Chair:
    """Rank 0's decisions. `wishes` returns why to save, why to stop and why to give up, as of now."""

    def __init__(self, wishes: Callable[[], tuple[str, str, str]], pause: float = _PAUSE) -> None:
        self._wishes = wishes
        self._pause = pause
        self._before: tuple[float, int] | None = None  # Time and length of the last window.
        self._made = 0  # Verdicts; the first two are both made in the first call.

    def decide(self, posted: list[Posted], now: float) -> Verdict:
        """Returns the verdict on what the ranks have posted, by rank."""
        first = posted[0].step
        for rank, one in enumerate(posted):
            if one.step != first:
                return Verdict(
                    error=f"rank {rank} is at step {one.step} while rank 0 is at step {first}: all "
                    "ranks must call save for the same steps",
                    meet=1 + max(one.step for one in posted),
                )
        save, stop, give_up = self._wishes()
        for rank, one in enumerate(posted):
            if not stop and one.stop:
                stop = one.stop if len(posted) == 1 else f"{one.stop} on rank {rank}"
        calls = 1
        self._made += 1
        if self._before is not None and self._made > 2:
            then, length = self._before
            a_call = max((now - then) / length, 1e-9)
            pause = self._pause + len(posted) / 1000
            calls = max(1, min(int(pause / a_call), 2 * length, _LONGEST))
        self._before = (now, calls)
        return Verdict(calls, save, stop, "", give_up)


class Agreement:
    """A rank's part. Threads: `verdict` and `post` are called by one thread.

    Args:
        channel: Connects the ranks; None for a single process.
        chair: On rank 0.
    """

    def __init__(self, channel: Channel | None, chair: Chair | None) -> None:
        self._channel = channel
        self._chair = chair
        self._left = 0  # Calls that the verdict is still for.
        self._fresh = False  # The next call is the first that the verdict is for.
        self._meet = 0  # The step from which on calls are counted anew.
        self._verdict = Verdict()
        self._changed = threading.Condition()
        self._posted: Posted | None = None
        self._answer: Verdict | BaseException | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        if channel is not None:
            self._thread = threading.Thread(
                target=self._exchange_all, name="varve agreement", daemon=True
            )
            self._thread.start()

    def verdict(
        self,
        step: int,
        posted: Callable[[], Posted],
        waits: Callable[[], None] = lambda: None,
    ) -> Verdict:
        """Returns what to do in this call; only the first of a window saves, stops or fails.

        `posted` is called where the ranks exchange messages for the next window, `waits` each second while
        the others have not come there.
        """
        if self._channel is None:
            assert self._chair is not None
            return self._chair.decide([posted()], time.monotonic())
        if self._meet:
            if step >= self._meet:
                self._meet = 0
                self._post(posted())
            return Verdict()
        if self._left == 0:
            if not self._asked():  # The first call.
                self._post(posted())
            self._verdict = self._take(waits)
            self._left = self._verdict.calls
            self._fresh = True
        verdict = self._verdict if self._fresh else Verdict()
        self._fresh = False
        if verdict.error:
            self._left = 0
            if step >= verdict.meet:
                self._post(posted())
            else:
                self._meet = verdict.meet
            raise InvalidArgumentError(f"save of step {step}: {verdict.error}")
        self._left -= 1
        if self._left == 0:
            self._post(posted())
        return verdict

    def close(self) -> None:
        """Ends the exchange; messages under way may arrive for a while."""
        if self._channel is None or self._closed:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._posted is None, _LAST)
            self._closed = True
            self._changed.notify_all()
        self._channel.interrupt()
        assert self._thread is not None
        self._thread.join(_LAST)
        self._channel.hang_up()

    def _asked(self) -> bool:
        with self._changed:
            return self._posted is not None or self._answer is not None

    def _post(self, posted: Posted) -> None:
        with self._changed:
            self._posted = posted
            self._changed.notify_all()

    def _take(self, waits: Callable[[], None]) -> Verdict:
        while True:
            with self._changed:
                # Not without end in one go: Ctrl-C would wait.
                if self._answer is None:
                    self._changed.wait(1.0)
                answer, self._answer = self._answer, None
            if answer is not None:
                break
            waits()
        if isinstance(answer, BaseException):
            self._answer = answer  # For the next call too.
            raise answer
        return answer

    # ---- the thread ----

    def _exchange_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._posted is not None or self._closed)
                if self._closed or self._posted is None:
                    return
                posted = self._posted
            answer: Verdict | BaseException
            try:
                answer = self._exchange(posted)
            except BaseException as error:
                answer = error
            with self._changed:
                self._answer = answer
                self._posted = None
                self._changed.notify_all()
            if isinstance(answer, BaseException):
                return

    def _exchange(self, mine: Posted) -> Verdict:
        channel = self._channel
        assert channel is not None
        if self._chair is None:
            try:
                channel.send(0, json.dumps(asdict(mine)).encode(), _STEP_TIMEOUT)
                return Verdict(**json.loads(channel.receive(0, _STEP_TIMEOUT)))
            except UnavailableError as error:
                raise UnavailableError(f"the manager of the run: rank 0 {error}", rank=0) from error
        posted = [mine]
        for rank in range(1, channel.size):
            try:
                posted.append(Posted(**json.loads(channel.receive(rank, _STEP_TIMEOUT))))
            except Error as error:
                raise UnavailableError(
                    f"the manager of the run: rank {rank} {error}", rank=rank
                ) from error
        verdict = self._chair.decide(posted, time.monotonic())
        text = json.dumps(asdict(verdict)).encode()
        for rank in range(1, channel.size):
            try:
                channel.send(rank, text, _STEP_TIMEOUT)
            except UnavailableError as error:
                raise UnavailableError(
                    f"the manager of the run: rank {rank} {error}", rank=rank
                ) from error
        return verdict


def weakly(method: Callable[..., Any], otherwise: Any) -> Callable[..., Any]:
    """Returns a function that calls a method while its object is there, and returns `otherwise` then."""
    known = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        found = known()
        return otherwise if found is None else found(*arguments)

    return call
