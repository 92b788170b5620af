"""The directory of a checkpoint while ranks write into it.

All ranks may share one file system, or each node may have a disk of its own. The steps of a save:
  1. Rank 0 claims the name and makes a hidden staging directory beside it (src/publish/commit.cc).
     Its path goes to all ranks, or its error: then nothing has been written anywhere.
  2. Each rank looks for that directory. A rank that sees it shares rank 0's file system. Looking is
     repeated for a while, and asks the server: a client of NFS may remember that there is none. That a
     rank is on another disk is thus seen, not believed: two nodes on one file system never claim the
     same name twice.
  3. On another disk the rank that OLMo's environment variables make the first (`file_system_rank`)
     claims the name there and makes a staging directory. All paths go to all ranks; each uses the one
     that it sees. A rank that sees none ends the save for all.
  4. All ranks write files, each synced. Their names and sizes go to all ranks: a file counts only
     after its writer has said that it is durable.
  5. The other disks' directories are published, then rank 0's. Each gets `config.yaml` as its last
     file and takes the name in one step. A checkpoint of the name was whole and visible until then.
A crash before 5 leaves staging directories, which the next save of the name and gc remove. A crash in
5 leaves each disk with one whole checkpoint, the old or the new; rank 0's is old unless all are new.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from varve import _core
from varve._engine import local_path_text, log_conflicts
from varve.errors import CheckpointExistsError, PreconditionError
from varve.olmo import _ranks
from varve.olmo._errors import NoFileSystemError
from varve.olmo._steps import Steps

MARK = "config.yaml"

#: Seconds that a rank looks for rank 0's directory where disks may be the nodes' own, and where
#: it must be there.
_LOOK, _LOOK_LONG = 2.0, 10.0


class Directory:
    """One rank's view of the directory.

    Attributes:
        path: The staging directory that this rank sees, to write into.
        is_first: True on the rank that made it.
        is_shared: True where all ranks see the same one.
        is_joined: True where what all disks have is uploaded into one directory.
        files: Names and sizes of the files that this rank has written.
    """

    def __init__(self, path: str, overwrite: bool, steps: Steps, is_joined: bool) -> None:
        self._where = os.path.realpath(local_path_text(path))
        self._steps = steps
        self.is_joined = is_joined
        self.files: list[tuple[str, int]] = []
        self._commit: _core.FilesCommit | None = None
        self._overwrite = overwrite
        staging = steps.first(f"save {path}", self._begin)
        shared = bool(os.environ.get("OLMO_SHARED_FS"))
        seen = self._sees(staging, _LOOK_LONG if shared else _LOOK)
        others = steps.each(
            f"save {path}",
            lambda: None if seen or _ranks.file_system_rank() != 0 else self._begin(),
        )
        self.is_first = self._commit is not None
        self._stagings: list[str] = [staging, *(other for other in others if other is not None)]
        if seen:
            self._mine = 0
        chosen = steps.each(f"save {path}", lambda: 0 if seen else self._choose())
        self._mine = chosen[steps.rank]
        self.is_shared = all(choice == 0 for choice in chosen)
        self._group = [rank for rank, choice in enumerate(chosen) if choice == self._mine]
        self.path = Path(self._stagings[self._mine])

    def _begin(self) -> str:
        try:
            self._commit = _core.FilesCommit(self._where, self._overwrite, MARK)
        except CheckpointExistsError as error:
            raise CheckpointExistsError(
                f"{self._where} holds a checkpoint already; cfg.save_overwrite = True would replace it",
                path=self._where,
            ) from error
        return self._commit.staging

    def _choose(self) -> int:
        until = time.monotonic() + _LOOK_LONG
        while True:
            for i, staging in enumerate(self._stagings):
                if self._sees(staging, 0):
                    return i
            if time.monotonic() > until:
                raise NoFileSystemError(
                    f"this rank sees none of the staging directories {self._stagings}: its first rank on "
                    "this file system made none. Set FS_LOCAL_RANK to 0 on one rank of each file system, "
                    "or OLMO_SHARED_FS=1 if all share one",
                    path=self._where,
                )
            time.sleep(0.1)

    def _sees(self, path: str, seconds: float) -> bool:
        """Returns True where a staging directory is there, beside the name that this rank was given."""
        if os.path.dirname(path) != os.path.dirname(self._where):
            return False
        until = time.monotonic() + seconds
        while not os.path.isdir(path):
            if time.monotonic() > until:
                return False
            _core.ask_anew(path)
            time.sleep(0.05)
        return True

    def require_shared(self, layout: str) -> None:
        """Raises PreconditionError where ranks write to different disks, which a layout cannot have."""
        if not self.is_shared and not self.is_joined:
            raise PreconditionError(
                f"the layout {layout} is one directory of all ranks, and these ranks write to different "
                "disks: use storage that all nodes share, give a remote name as the directory, or use the "
                "local checkpointer",
                path=self._where,
            )

    def add(self, path: Path) -> None:
        """Notes a file of this rank's that is written and synced."""
        self.files.append((path.relative_to(self.path).as_posix(), path.stat().st_size))

    def publish(self, config: bytes) -> None:
        """Makes the directory the checkpoint, on every disk. Collective."""
        lists = self._steps.each(f"save {self._where}", lambda: self.files)
        mine = [(name, size) for rank in self._group for name, size in lists[rank]]
        rank = self._steps.rank
        self._steps.each(
            f"publish {self._where}",
            lambda: self._publish(mine, config) if self.is_first and rank != 0 else None,
        )
        self._steps.first(f"publish {self._where}", lambda: self._publish(mine, config))

    def _publish(self, files: list[tuple[str, int]], config: bytes) -> None:
        assert self._commit is not None
        log_conflicts(self._where, self._commit.publish(files, config))

    def abandon(self) -> None:
        """Removes the staging directory that this rank made. No-op when published."""
        commit, self._commit = self._commit, None
        if commit is not None:
            commit.abandon()


@contextmanager
def staging(
    path: str, overwrite: bool, steps: Steps, is_joined: bool = False
) -> Iterator[Directory]:
    """Gives a directory to write into, and removes it unless it was published."""
    directory = Directory(path, overwrite, steps, is_joined)
    try:
        yield directory
    finally:
        directory.abandon()
