"""What exceptions tell programs: code, rank, path, errno; and that messages stay messages."""

from __future__ import annotations

import copy
import errno
import marshal
import os
import pickle
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
import torch
from rank_jobs import fail_for_late_rank, fail_with_facts
from ranks import run_ranks
from storage_stores import MemoryStore

import varve
import varve.errors
import varve.torch
import varve.torch.dcp
from varve.torch import async_save

ROOT = Path(__file__).parents[2]


def test_there_is_one_type_for_each_code_of_the_engine() -> None:
    header = (ROOT / "include" / "varve" / "status.h").read_text()
    codes = re.search(r"enum class StatusCode.*?\n};", header, re.DOTALL)
    assert codes is not None
    names = re.findall(r"^  k(\w+) = [1-9]", codes[0], re.MULTILINE)
    assert list(varve.errors.BY_CODE) == names
    assert all(kind.code == name for name, kind in varve.errors.BY_CODE.items())


ABSENT: dict[str, Callable[[Path], object]] = {
    "load": lambda path: varve.load({"a": np.ones(1)}, path),
    "torch load": lambda path: varve.torch.load({"a": torch.ones(1)}, path),
    "read": lambda path: varve.torch.read(path),
    "open": lambda path: varve.open(path),
    "verify": lambda path: varve.verify(path),
    "remove": lambda path: varve.remove(path),
    "files": lambda path: varve.files(path),
    "convert": lambda path: varve.convert(path, f"{path}.out", "safetensors"),
}


@pytest.mark.parametrize("call", ABSENT)
def test_an_absent_checkpoint_is_a_file_that_is_not_there(call: str, tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    with pytest.raises(FileNotFoundError) as caught:
        ABSENT[call](path)
    error = caught.value
    assert isinstance(error, varve.CheckpointNotFoundError)
    assert (error.code, error.errno) == ("NotFound", errno.ENOENT)
    assert error.strerror == os.strerror(errno.ENOENT)
    assert error.path == error.filename
    assert error.path == str(path)
    assert str(error) == error.args[0]
    assert str(path) in str(error)


def test_a_name_that_is_taken_is_a_file_that_exists(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    varve.save({}, path)
    with pytest.raises(FileExistsError) as caught:
        varve.save({}, path)
    error = caught.value
    assert isinstance(error, varve.CheckpointExistsError)
    assert (error.code, error.errno, error.filename) == (
        "AlreadyExists",
        errno.EEXIST,
        str(path),
    )


def test_a_full_disk_has_the_errno_of_the_system(tmp_path: Path) -> None:
    # A limit on the size of files is a full disk that needs no root.
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            varve.save({"w": np.ones(1 << 20)}, tmp_path / "step-1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    error = caught.value
    assert isinstance(error, varve.OutOfSpaceError)
    assert (error.code, error.errno, error.rank) == ("OutOfSpace", errno.EFBIG, 0)
    assert error.filename is not None
    assert str(tmp_path) in error.filename


def test_a_save_whose_directory_is_removed_meanwhile_finds_no_checkpoint_missing(
    tmp_path: Path,
) -> None:
    def clean_up(done: int, of: int) -> None:
        if done == of:
            for staging in tmp_path.glob(".a.varve-saving-*"):
                shutil.rmtree(staging)

    expected = r"\.a\.varve-saving-\w+ was removed while the save wrote there.*save again"
    with pytest.raises(varve.UnavailableError, match=expected):
        varve.save({"w": np.ones(3)}, tmp_path / "a", progress=clean_up)
    varve.save({"w": np.ones(3)}, tmp_path / "a")


def test_damage_names_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    varve.save({"w": np.ones(1000)}, path)
    [file] = path.glob("*.safetensors")
    os.truncate(file, file.stat().st_size - 8)
    with pytest.raises(varve.CorruptCheckpointError) as caught:
        varve.read(path)
    assert caught.value.code == "DataLoss"
    assert caught.value.path is not None
    assert caught.value.path.startswith(str(path))


def test_an_error_of_a_call_alone_has_a_code_and_knows_no_rank() -> None:
    with pytest.raises(ValueError) as caught:
        varve.convert("a", "b", "nonsense")
    error = caught.value
    assert isinstance(error, varve.InvalidArgumentError)
    assert (error.code, error.rank, error.path) == ("InvalidArgument", None, None)
    assert not hasattr(error, "errno")


def errors_on_ranks(tmp_path: Path, what: str) -> list[tuple[Any, ...]]:
    varve.torch.save({"w": torch.ones(3)}, tmp_path / "there")
    return run_ranks(3, fail_with_facts, str(tmp_path), what)


@pytest.mark.parametrize("what", ["save", "async_save", "dcp save", "dcp save alone"])
def test_every_rank_learns_which_rank_failed(what: str, tmp_path: Path) -> None:
    kind = "CheckpointError" if what.startswith("dcp") else "InvalidArgumentError"
    for name, code, rank, *_ in errors_on_ranks(tmp_path, what):
        assert (name, rank) == (kind, 1)
        assert code == ("Unknown" if what.startswith("dcp") else "InvalidArgument")


def test_a_checkpoint_that_one_rank_does_not_find_is_not_found_on_all(tmp_path: Path) -> None:
    for name, code, rank, path, number in errors_on_ranks(tmp_path, "load"):
        assert (name, code, rank) == ("CheckpointNotFoundError", "NotFound", 1)
        assert (path, number) == (str(tmp_path / "elsewhere" / "there"), errno.ENOENT)


def test_a_save_in_the_background_fails_with_the_same_facts(tmp_path: Path) -> None:
    varve.save({}, tmp_path / "taken")
    handle = async_save({"w": torch.ones(3)}, tmp_path / "taken")
    error = handle.exception(60)
    assert isinstance(error, varve.CheckpointExistsError)
    assert (error.code, error.errno) == ("AlreadyExists", errno.EEXIST)
    assert error.filename == str(tmp_path / "taken")


AS_NOBODY = """
import os, sys
import varve
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    varve.save({}, sys.argv[1] + "/denied/step-1")
except PermissionError as error:
    assert isinstance(error, varve.InvalidArgumentError), error
    assert (error.errno, error.strerror) == (13, "Permission denied"), error.errno
    assert error.filename == error.path and "/denied" in error.path, error.path
    assert str(error) == error.args[0] and "/denied" in str(error), str(error)
else:
    raise AssertionError("saved into a directory that may not be entered")
"""


def test_a_directory_that_is_denied_is_a_permission_error() -> None:
    with tempfile.TemporaryDirectory() as parent:
        os.chmod(parent, 0o755)
        os.mkdir(f"{parent}/denied", mode=0o000)
        done = programs.run(AS_NOBODY, parent)
        assert done.returncode == 0, done.stderr


def test_a_name_that_is_too_long_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too long") as caught:
        varve.save({}, tmp_path / ("x" * 300))
    assert isinstance(caught.value, varve.InvalidArgumentError)
    assert caught.value.errno == errno.ENAMETOOLONG


def test_a_rank_that_does_not_come_is_a_timeout(tmp_path: Path) -> None:
    waited, late = run_ranks(2, fail_for_late_rank, str(tmp_path))
    assert waited == ("NoAnswerError", "Unavailable", 1, errno.ETIMEDOUT, True)
    assert late[1:3] == ("Unavailable", 0)


def test_a_wrong_argument_is_a_value_error_and_a_type_error(tmp_path: Path) -> None:
    for builtin in (ValueError, TypeError):
        with pytest.raises(builtin, match="overwrite"):
            varve.save({}, tmp_path / "a", overwrite="yes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is not a path"):
        varve.read(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("module", ["varve", "varve.torch"])
def test_a_path_without_a_checkpoint_has_a_traceback_of_its_own_alone(module: str) -> None:
    code = f"import {module}; {module}.read('/nothing/here')"
    done = programs.run(code)
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.endswith(
        "CheckpointNotFoundError: there is no checkpoint at /nothing/here\n"
    )


EXAMPLES = [
    varve.InvalidArgumentError("denied", path="/run/c", errno=errno.EACCES),
    varve.InvalidArgumentError("read only", path="/run/c", errno=errno.EROFS),
    varve.UnavailableError("late", rank=3, errno=errno.ETIMEDOUT),
    varve.PreconditionError("403", path="s3://bucket/c", errno=errno.EACCES),
    varve.OutOfSpaceError("full", path="/run/f", rank=3, errno=errno.EDQUOT),
    varve.CheckpointNotFoundError("none", path="/run/c"),
    varve.CorruptCheckpointError("damaged", path="/run/c", rank=0),
    varve.InvalidArgumentError("lost", reason="StagerLost"),
    varve.torch.dcp.CheckpointError("failed", {}),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_exception_survives_pickling(error: Any, again: Callable[[Any], Any]) -> None:
    made = again(error)
    assert type(made) is type(error)
    assert str(made) == str(error)
    for name in ("code", "rank", "path", "reason", "errno", "filename", "strerror", "failures"):
        assert getattr(made, name, None) == getattr(error, name, None), name


def test_an_io_error_without_a_system_call_has_no_errno() -> None:
    error = varve.UnavailableError("rank 3 did not come", rank=3)
    assert (error.errno, error.strerror, error.filename) == (None, None, None)
    assert str(error) == "rank 3 did not come"


def test_what_a_store_raises_from_c_has_its_class() -> None:
    """CPython before 3.12 keeps it as a class and a text until Python code catches it."""

    class Truncated(MemoryStore):
        def read(self, *call: Any) -> None:
            marshal.loads(b"")

    varve.register_storage("cut", Truncated())
    try:
        with pytest.raises(varve.CorruptCheckpointError, match="EOFError: EOF read"):
            varve.save({"w": np.zeros(3)}, "cut://b/c")  # It tries the store first.
    finally:
        varve.unregister_storage("cut")
