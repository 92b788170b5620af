"""The base class of OLMo's checkpointers: it saves the configuration, restores, and reads whole states."""

from __future__ import annotations

import os
import tempfile
from abc import ABCMeta, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch.nn import Module
from torch.optim import Optimizer

from varve._arguments import RemoteOverwrite, check_remote_overwrite
from varve._core import Channel
from varve._engine import is_remote
from varve._upload import Copy
from varve.errors import InvalidArgumentError
from varve.olmo import _remote, _whole
from varve.olmo._directory import MARK, Directory, staging
from varve.olmo._files import PathOrStr, any_path, refuse_second_copy
from varve.olmo._pickle import OLDEST, write
from varve.olmo._restore import Source, restore
from varve.olmo._spool import Spool
from varve.olmo._steps import TIMEOUT, Steps
from varve.olmo._whole import WholeState
from varve.torch._coordinator import collective, name_of


class Config(Protocol):
    """The part of OLMo's `TrainConfig` that checkpointers use."""

    save_overwrite: bool

    def save(self, path: Any) -> None:
        """Writes the configuration to a file."""


def thread_count_or_default(thread_count: int | None) -> int:
    """Returns the given number of threads, or OLMo's default.

    Raises InvalidArgumentError for a number below 1 (a ValueError).
    """
    if thread_count is not None and thread_count <= 0:
        raise InvalidArgumentError(f"thread_count={thread_count}: want at least 1")
    given = os.environ.get("OLMO_NUM_THREADS")
    return thread_count or (int(given) if given else min(32, (os.cpu_count() or 1) + 4))


@dataclass(frozen=True)
class Training:
    """The wrapped model, its optimizer and this rank's state of the trainer, which one call saves."""

    model: Module
    optim: Optimizer
    state: dict[str, Any]


class Checkpointer(metaclass=ABCMeta):
    """Saves and restores a training run in one of OLMo's layouts.

    Every method but `unshard_checkpoint` is collective: all ranks call it. It ends the same way on all of
    them; a failure on one rank raises on every rank. Models may be wrapped by FSDP (both versions) or DDP,
    or not at all.
    """

    def __init__(
        self,
        cfg: Config,
        thread_count: int | None = None,
        *,
        class_paths: Literal["oldest", "installed"] = "oldest",
        remote_overwrite: RemoteOverwrite = "refuse",
        upload_in_background: bool = False,
    ) -> None:
        """Takes the configuration.

        Args:
            cfg: Any object with `save_overwrite` and `save(path)`.
            thread_count: Accepted, at least 1; by default `OLMO_NUM_THREADS`. The engine has threads of
                its own.
            class_paths: The modules of classes in written pickles: "oldest" as torch 2.0 and NumPy 1 call
                them, which OLMo's own software opens, "installed" as this torch and NumPy do.
            remote_overwrite: Whether a save may remove a checkpoint at a remote `dir` or `upload_to` in an object
                store, where `cfg.save_overwrite` is true. Files have fixed names, so an old checkpoint has no place
                beside the new one. "refuse" keeps the old one and fails. "in_place" removes its `config.yaml`
                first, then writes the files, and writes `config.yaml` last.
            upload_in_background: `save_checkpoint` returns when the local checkpoint is durable; see
                `wait_for_uploads`.
        """
        check_remote_overwrite(remote_overwrite)
        if class_paths not in ("oldest", "installed"):
            raise InvalidArgumentError(f'class_paths={class_paths!r}: want "oldest" or "installed"')
        self.cfg = cfg
        self.thread_count = thread_count_or_default(thread_count)
        self._modules = OLDEST if class_paths == "oldest" else {}
        self.remote_overwrite = remote_overwrite
        self.upload_in_background = upload_in_background
        self._uploads: _remote.Uploads | None = None

    def _write_files(self, directory: Directory, steps: Steps, files: dict[str, Any]) -> None:
        """Writes this rank's files of torch.save. Collective: no rank goes on before all have."""

        def run() -> None:
            for name, state in files.items():
                directory.add(write(directory.path / name, state, self._modules))

        steps.each(f"write {directory.path}", run)

    def save_checkpoint(
        self,
        dir: PathOrStr,
        dist_model: Module,
        optim: Optimizer,
        train_state: dict[str, Any] | None = None,
        *,
        upload_to: str | None = None,
        trainer_state: dict[str, Any] | None = None,
    ) -> None:
        """Saves a model, its optimizer and the state of the trainer as the directory `dir`.

        The checkpoint appears whole, with `config.yaml` written last. With `cfg.save_overwrite` a
        checkpoint at `dir` is what readers see until the new one is durable, and files that are not its
        own are kept. Tensors must not change until this returns.

        Args:
            dir: A local directory. On shared storage it is one; on disks of nodes each node gets its own
                with the files of its ranks. See `varve.olmo`. Or a remote one, "s3://bucket/run/step100": the files
                are written in `TMPDIR`, uploaded, and removed there.
            dist_model: The wrapped model.
            optim: Made from the wrapped model's parameters.
            train_state: Anything that torch.save can store; each rank's own. A warning names classes that
                `restore_checkpoint` would refuse.
            upload_to: A directory, as a rule a remote one ("s3://bucket/run/step100"), that gets a copy of all
                files, `config.yaml` last. The call returns when both are durable.
            trainer_state: Another name of `train_state`.

        Raises:
            CheckpointExistsError: There is a checkpoint, and `cfg.save_overwrite` is false (a
                FileExistsError).
            PreconditionError: `dir` holds something that is no checkpoint, or another save of it is
                under way.
            NoFileSystemError: A rank does not see a directory to write into (a TimeoutError).
            OutOfSpaceError, UnavailableError: Writing failed or a rank is lost; each is named.
            OLMoNetworkError: The upload has failed. The local checkpoint is published and stays; of a remote
                `dir` there is no checkpoint then, and none on a disk.
        """
        training = Training(dist_model, optim, _one_of(train_state, trainer_state))
        path = any_path(dir, "dir")
        uploads = upload_to is not None or is_remote(path)
        if uploads and self.upload_in_background and self._uploads is None:
            self._uploads = _remote.Uploads()
        if is_remote(path):
            self._save_remote(path, upload_to, training)
            return
        source = os.path.realpath(path)
        target = None if upload_to is None else any_path(upload_to, "upload_to")
        _remote.wait_until_uploaded(path)
        with collective(None, TIMEOUT, name_of("save", path)) as coordinator:
            steps = Steps(coordinator)
            config = steps.first(f"save {path}", lambda: _saved(self.cfg)).encode("latin-1")
            with staging(path, bool(self.cfg.save_overwrite), steps) as directory:
                self._write(directory, steps, training)
                copy = None if target is None else self._copy(source, target, directory)
                with _remote.promised(copy, steps):
                    directory.publish(config)
            if copy is not None:
                self._upload(copy, coordinator)

    def _save_remote(self, target: str, upload_to: str | None, training: Training) -> None:
        """Saves as a directory in an object store. Collective."""

        def begin() -> str:
            refuse_second_copy(target, upload_to)
            _remote.check_free(target, bool(self.cfg.save_overwrite), self.remote_overwrite)
            return _saved(self.cfg)

        with collective(None, TIMEOUT, name_of("save", target)) as coordinator:
            steps = Steps(coordinator)
            config = steps.first(f"save {target}", begin).encode("latin-1")
            spool = Spool(target, steps)
            try:
                with (
                    spool.written(),
                    staging(spool.path, False, steps, is_joined=True) as directory,
                ):
                    self._write(directory, steps, training)
                    directory.publish(config)
                self._upload(self._copy(spool.path, target, directory), coordinator, spool)
            except BaseException:
                spool.end()
                raise

    def _copy(self, source: str, target: str, directory: Directory) -> Copy:
        """Returns the upload of a directory in which all files are written."""
        files = [name for name, _size in directory.files]
        overwrite = bool(self.cfg.save_overwrite)
        return _remote.copy_of(source, target, overwrite, self.remote_overwrite, files)

    def _upload(self, copy: Copy, coordinator: Channel | None, spool: Spool | None = None) -> None:
        if self._uploads is not None:
            self._uploads.later(copy, spool)
        else:
            _remote.make(copy, coordinator, spool)

    def wait_for_uploads(self) -> None:
        """Waits for the uploads in the background. Raises the error of one that has failed, on all ranks.

        Its local checkpoint stays, and `varve upload` repeats the upload; of a remote `dir` there is none. The end of the interpreter waits too.
        """
        if self._uploads is not None:
            self._uploads.wait()

    @abstractmethod
    def _write(self, directory: Directory, steps: Steps, training: Training) -> None:
        """Writes this rank's files into the directory, synced, and adds them to it. Collective."""

    def restore_checkpoint(
        self,
        load_path: PathOrStr,
        dist_model: Module,
        optim: Optimizer,
        *,
        local_cache: PathOrStr | None = None,
        load_optimizer_state: bool = True,
    ) -> dict[str, Any]:
        """Restores a model and an optimizer in place, and returns the state of the trainer.

        Reads a checkpoint of any of OLMo's layouts, or of Varve's own, that any number of ranks has saved.
        The trainer's state is this rank's, or rank 0's where fewer ranks have saved.

        Args:
            load_path: A remote directory, or a local one that all ranks see. Where the same number of ranks saved with the
                layout local, each rank's own files suffice: the disk of its node.
            dist_model: The wrapped model.
            optim: Made from the wrapped model's parameters; its groups keep what the configuration sets.
            local_cache: A local directory to read instead, where it is a mirror of `load_path`. A mirror of a
                remote directory is compared with that first.
            load_optimizer_state: False leaves the optimizer as it is.

        Raises:
            CheckpointNotFoundError: There is no checkpoint (a FileNotFoundError).
            InvalidArgumentError: Names or shapes differ; the message has the first of them.
            WrongGroupsError: The optimizer's groups differ (an AssertionError).
            CorruptCheckpointError: Stored bytes are damaged; file and tensor are named.
        """
        path = _remote.readable(load_path, local_cache)
        found: list[tuple[Source, dict[str, Any]]] = []

        def look() -> bool:
            source = Source(path, own_ranks=True)
            found.append((source, source.trainer_state()))
            return source.is_own_ranks

        def fill(coordinator: Channel | None) -> None:
            restore(found[0][0], dist_model, optim if load_optimizer_state else None, coordinator)

        with collective(None, TIMEOUT, name_of("restore", path)) as coordinator:
            steps = Steps(coordinator)
            if any(steps.each(f"restore {path}", look)):
                steps.each(f"restore {path}", lambda: fill(None))
            else:
                fill(coordinator)
        return found[0][1]

    def unshard_checkpoint(
        self,
        load_path: PathOrStr,
        *,
        local_cache: PathOrStr | None = None,
        load_optimizer_state: bool = True,
        load_trainer_state: bool = True,
        device: torch.device | None = None,
    ) -> WholeState:
        """Reads a checkpoint as whole states, in one process and without torch.distributed.

        Returns the model, the optimizer and the trainer of rank 0; None for what is not asked for. The
        tensors are writable, and no other process sees what is written. On the CPU they are private maps
        of unnamed files in the temporary directory (TMPDIR). If TMPDIR is on a disk, the kernel can drop
        unchanged pages when it needs memory. If TMPDIR has no room, the tensors are in memory.
        `varve.unshard` writes the state to files that stay.
        """
        path = _remote.readable(load_path, local_cache)
        if device is None or torch.device(device).type == "cpu":
            return _whole.mapped(path, load_optimizer_state, load_trainer_state)
        return _whole.read(path, load_optimizer_state, load_trainer_state, device)


def _one_of(train_state: Any, trainer_state: Any) -> dict[str, Any]:
    if train_state is not None and trainer_state is not None:
        raise InvalidArgumentError("train_state and trainer_state are one argument: pass either")
    state = trainer_state if train_state is None else train_state
    if state is None:
        return {}
    if not isinstance(state, dict):
        raise InvalidArgumentError(f"train_state is a {type(state).__name__}: want a dict")
    return state


def _saved(cfg: Config) -> str:
    """Returns the bytes that a configuration saves, one character each."""
    with tempfile.TemporaryDirectory(prefix="varve-olmo-") as folder:
        path = Path(folder) / MARK
        cfg.save(path)
        return path.read_bytes().decode("latin-1")
