"""Saves in the background, and what must wait for them: links and removals, in the order of the calls.

A framework saves, then removes the checkpoint that the new one replaces, as if the save had ended. Here
both are only asked for, and a thread does them in that order:

1. A removal is done when the saves before it have ended. If the last of them failed, the checkpoint
   stays: it may be the newest good one.
2. A link (`last.ckpt`) is moved when its target is durable, by one rename. If the save of the target
   failed, the link stays where it was.
3. The target of a link is removed once the link has moved.

The thread runs while there is something to wait for, and no longer. So an adapter that is idle leaves no
thread behind, and can be pickled and forked, as launchers of frameworks do with it.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import varve
import varve.torch
from varve._engine import is_remote
from varve._forks import leave_to_parent
from varve.integrations._removal import remove_unless_held

_log = logging.getLogger("varve")


class Saves:
    """The saves of one owner, in the order of their calls. Threads: `add` to `settle` by one thread.

    A copy in another process, by pickle or by fork, has none of them.
    """

    def __init__(self) -> None:
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        """The first failure that has not been taken. Guarded by `_lock`."""
        self._asked: dict[str, int] = {}
        """Actions that are not done yet, by path. Guarded by `_lock`."""
        self._actions: deque[tuple[str, Callable[[], None]]] = deque()
        """Actions that are not begun, in order. Guarded by `_lock`."""
        self._running = False
        """Whether `_thread` does actions: until there are none. Guarded by `_lock`."""
        self._thread: threading.Thread | None = None
        # Of the thread that does actions, one at a time:
        self._failed: set[str] = set()
        self._last_failed = False
        self._postponed: list[str] = []

    def __reduce__(self) -> Any:
        return Saves, ()

    def add(self, path: str, save: Future[Any]) -> None:
        """Takes a save that has begun."""
        self._ask(path, lambda: self._end_of(path, save))

    def remove(self, path: str) -> None:
        """Removes a checkpoint once the saves that have begun are durable: in the call if none is under way."""
        self._ask_or_do(path, lambda: self._remove(path))

    def link(self, target: str, link: str) -> None:
        """Lets the symbolic link `link` point to `target` once that is durable; likewise."""
        self._ask_or_do(link, lambda: self._move(target, link))

    def is_asked(self, path: str) -> bool:
        """Returns True while a save, removal or link of a path is not done."""
        with self._lock:
            return path in self._asked

    def take_failure(self) -> BaseException | None:
        """Returns the first failure of a save since the last call, once."""
        with self._lock:
            failure, self._failure = self._failure, None
            return failure

    def settle(self) -> None:
        """Waits until all that was asked for is done, and the thread has ended."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _ask_or_do(self, path: str, action: Callable[[], None]) -> None:
        with self._lock:
            idle = not self._running
        if idle:
            self._do(path, action)
        else:
            self._ask(path, action)

    def _ask(self, path: str, action: Callable[[], None]) -> None:
        with self._lock:
            self._asked[path] = self._asked.get(path, 0) + 1
            self._actions.append((path, action))
            if not self._running:
                self._running = True
                self._thread = threading.Thread(target=self._run, name="varve-saves", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._actions:
                    self._running = False
                    return
                path, action = self._actions.popleft()
            self._do(path, action)
            with self._lock:
                self._asked[path] -= 1
                if self._asked[path] == 0:
                    del self._asked[path]

    @staticmethod
    def _do(path: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # Of a link or removal; the training does without.
            _log.warning("%s: %s: %s", path, type(error).__name__, error)

    def _end_of(self, path: str, save: Future[Any]) -> None:
        failure = save.exception()
        self._last_failed = failure is not None
        self._failed.discard(path)
        if failure is not None:
            self._failed.add(path)
            with self._lock:
                self._failure = self._failure or failure

    def _remove(self, path: str) -> None:
        if self._last_failed:
            _log.warning("%s stays, for the save that was to replace it has failed", path)
        elif is_remote(path):
            remove_unless_held(path)
        elif _is_linked_to(path):
            _log.info("%s is removed when no link points to it", path)
            self._postponed.append(path)
        elif os.path.isdir(path):
            remove_unless_held(path)
        elif os.path.lexists(path):  # A file of torch.save, from before Varve.
            os.remove(path)

    def _move(self, target: str, link: str) -> None:
        if target in self._failed:
            _log.warning("%s stays as it is, for the save of %s has failed", link, target)
            return
        if os.path.isdir(link) and not os.path.islink(link):
            varve.remove(link)  # A checkpoint of that name, which a link is to replace.
        new = f"{link}.varve-link"
        if os.path.lexists(new):
            os.remove(new)
        os.symlink(os.path.relpath(target, os.path.dirname(link)), new)
        os.replace(new, link)
        postponed, self._postponed = self._postponed, []
        for path in postponed:
            self._remove(path)


class LazyStager:
    """The stager of an adapter: made when it is first used, in the process that uses it."""

    def __init__(self) -> None:
        self._stager: varve.torch.Stager | None = None
        _all.add(self)

    def _begin(self) -> None:
        self._stager = None

    def __reduce__(self) -> Any:
        return LazyStager, ()

    def get(self, process_group: Any = None, **options: Any) -> varve.torch.Stager:
        """Returns the stager; makes it with these options where there is none."""
        if self._stager is None:
            self._stager = varve.torch.Stager(process_group, **options)
        return self._stager

    def close(self) -> None:
        """Waits for its saves and closes it; the next use makes another."""
        stager, self._stager = self._stager, None
        if stager is not None:
            stager.close()


#: The state that a forked child begins anew with.
_all: weakref.WeakSet[Saves | LazyStager] = weakref.WeakSet()


def _in_child() -> None:
    """Forgets, in a forked child, the saves of its parent, whose threads it does not have."""
    for one in _all:
        if isinstance(one, Saves):
            leave_to_parent(one._actions)
        one._begin()


os.register_at_fork(after_in_child=_in_child)


def _is_linked_to(path: str) -> bool:
    """Returns True where a symbolic link beside a checkpoint points to it."""
    folder, real = os.path.dirname(path), os.path.realpath(path)
    if os.path.islink(path) or not os.path.isdir(folder):
        return False
    links = [entry.path for entry in os.scandir(folder) if entry.is_symlink()]
    return any(os.path.realpath(link) == real for link in links)


def failed_in_the_call(save: varve.torch.SaveHandle) -> bool:
    """Returns True for a save whose copy has failed. Does not wait for one that is being made."""
    copied = save.staging_completion
    return copied.done() and copied.exception() is not None


def is_awaited(path: str) -> bool:
    """Returns True for a checkpoint that must be durable when the call returns.

    Lightning saves `hpc_ckpt_N.ckpt` and then lets SLURM requeue the job, which kills it.
    """
    return os.path.basename(path).startswith("hpc_ckpt_")
