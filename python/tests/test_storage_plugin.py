"""Stores that a program registers: what Varve does with them, and with what they raise."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
import torch
from command_line import command
from disks import mounted
from ranks import run_ranks
from storage_jobs import load_ranks, save_ranks
from storage_stores import MemoryStore, Overwrites, sqlite_store

import varve
import varve.torch
from varve.storage import ObjectInfo, ObjectStore

HERE = str(Path(__file__).parent)


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    """A store in memory, registered as "mem"."""
    made = MemoryStore()
    varve.register_storage("mem", made)
    yield made
    varve.unregister_storage("mem")


def state(value: int = 1) -> dict[str, Any]:
    return {"model": {"w": np.full((700, 1000), value, dtype=np.int64)}, "step": value}


def environment() -> dict[str, str]:
    """The environment of programs that find this folder's modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, *filter(None, sys.path)])}


def run_python(program: str, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment(),
        **more,
    )


# ---- what works on such a store ----


@pytest.mark.parametrize("kind", ["sqlite", "obstore"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["save", "async_save"])
def test_ranks_save_overwrite_and_load(kind: str, asynchronous: bool, tmp_path: Path) -> None:
    folder, path = str(tmp_path), "own://run/step-1"
    for value in (1, 2):
        run_ranks(2, save_ranks, kind, folder, path, value, asynchronous)
        assert run_ranks(2, load_ranks, kind, folder, path) == [(value, True)] * 2


def test_a_large_file_goes_there_in_parts(store: MemoryStore) -> None:
    varve.save(state(5), "mem://b/run/step-5")
    assert "put" in store.calls
    sizes = [len(content) for content, _, _ in store.objects.values()]
    assert max(sizes) > 5 * store.part_bytes
    assert not store.uploads
    assert np.array_equal(varve.read("mem://b/run/step-5")["model"]["w"], state(5)["model"]["w"])


def test_the_catalogue_knows_its_checkpoints(store: MemoryStore) -> None:
    for step in (1, 2):
        varve.save(state(step), f"mem://b/run/step-{step}")
    assert varve.latest("mem://b/run") == "mem://b/run/step-2"
    assert [one.name for one in varve.list_checkpoints("mem://b/run")] == ["step-1", "step-2"]
    assert len(varve.diff("mem://b/run/step-1", "mem://b/run/step-2")) == 2
    name = next(name for name in store.objects if "data-00000" in name)
    content, modified, version = store.objects[name]
    store.objects[name] = (content[:-100] + b"x" * 100, modified, version)
    assert [one.tensors for one in varve.verify("mem://b/run/step-1")] == [["model.w", "step"]]
    assert varve.verify("mem://b/run/step-2") == []
    varve.remove("mem://b/run/step-1")
    assert {name.split("/")[2] for name in store.objects} == {"step-2"}


def test_gc_removes_objects_and_uploads_of_dead_saves_when_they_are_a_day_old(
    store: MemoryStore,
) -> None:
    varve.save(state(), "mem://b/run/step-1")
    dead = "b/run/step-2/varve-data-" + "0" * 32
    store.put(f"{dead}/data-00000-of-00002.safetensors", memoryview(b"x"), False)
    upload = store.start_upload(f"{dead}/data-00001-of-00002.safetensors", 1 << 20)
    assert varve.collect_garbage("mem://b/run") == []
    old = time.time() - 2 * 86_400
    for name, (content, _, version) in list(store.objects.items()):
        if name.startswith(dead):
            store.objects[name] = (content, old, version)
    store.uploads[upload] = (store.uploads[upload][0], old, {})
    assert varve.collect_garbage("mem://b/run") == [f"mem://{dead}"]
    assert not store.uploads
    assert not any(name.startswith(dead) for name in store.objects)
    assert varve.verify("mem://b/run/step-1") == []


def test_a_manager_keeps_a_run_there(store: MemoryStore) -> None:
    del store
    run = "mem://b/run"
    with varve.torch.CheckpointManager(
        run, every=varve.Every(steps=1), keep=varve.Keep(last=2)
    ) as manager:
        for step in range(1, 5):
            manager.save(step, {"w": torch.full((1000,), step)})
            manager.wait()
    assert [one.name for one in varve.list_checkpoints(run)] == ["step-00000003", "step-00000004"]
    loaded = {"w": torch.zeros(1000, dtype=torch.int64)}
    with varve.torch.CheckpointManager(run, every=varve.Every(steps=1)) as manager:
        assert manager.resume(loaded) == 4
    assert int(loaded["w"][0]) == 4


def test_other_formats_conversions_and_uploads_go_there(store: MemoryStore, tmp_path: Path) -> None:
    saved = {"w": torch.arange(300_000), "step": 3}
    varve.torch.save(saved, "mem://b/dcp", format="dcp")
    assert "b/dcp/.metadata" in store.objects
    varve.torch.save(saved, tmp_path / "c", upload_to="mem://b/up")
    varve.convert("mem://b/up", "mem://b/hf", "hf")
    for path in ("mem://b/dcp", "mem://b/up", "mem://b/hf", tmp_path / "c"):
        assert torch.equal(varve.torch.read(path, flat=True)["w"], saved["w"])
    assert not store.uploads


def test_the_agent_does_not_see_it_and_the_error_says_so(store: MemoryStore, agent: str) -> None:
    del agent
    stager = varve.torch.Stager(executor="process")
    handle = varve.torch.async_save({"w": torch.ones(10)}, "mem://b/x", stager=stager)
    with pytest.raises(varve.UnsupportedError, match=r"not seen by other processes.*thread"):
        handle.result(60)
    stager.close()
    assert not any("varve.json" in name for name in store.objects)


# ---- schemes ----


@pytest.mark.parametrize("scheme", ["s3", "file", "https", "M", "m", "a b", "", "x://"])
def test_a_scheme_of_varves_or_none_is_refused(scheme: str) -> None:
    with pytest.raises(varve.InvalidArgumentError, match="register a storage"):
        varve.register_storage(scheme, MemoryStore())


def test_a_second_store_of_a_scheme_needs_replace(store: MemoryStore) -> None:
    with pytest.raises(varve.CheckpointExistsError, match="replace=True"):
        varve.register_storage("mem", MemoryStore())
    varve.save(state(), "mem://b/x")
    varve.register_storage("mem", MemoryStore(), replace=True)
    with pytest.raises(varve.CheckpointNotFoundError):
        varve.read("mem://b/x")
    assert store.objects


@pytest.mark.parametrize("given", [None, MemoryStore, object(), {}])
def test_what_is_no_store_is_refused(given: Any) -> None:
    with pytest.raises(varve.InvalidArgumentError, match=r"varve\.storage\.ObjectStore"):
        varve.register_storage("none", given)
    with pytest.raises(varve.CheckpointNotFoundError):
        varve.unregister_storage("none")


def test_an_unknown_scheme_is_refused_and_those_there_are_are_named(store: MemoryStore) -> None:
    del store
    with pytest.raises(varve.InvalidArgumentError, match=r"hdfs:// here.*s3://.*mem://"):
        varve.save(state(), "hdfs://b/x")
    with pytest.raises(varve.InvalidArgumentError, match=r'no "\."'):
        varve.save(state(), "mem://b/../x")


def test_the_command_line_says_that_it_does_not_see_it(store: MemoryStore) -> None:
    del store
    told = command("ls", "mem://b", code=2)
    assert "seen by that program alone, not by the command line" in told


# ---- what stores raise and return ----


class Raises(MemoryStore):
    """Raises in one method, for names that hold a text."""

    def __init__(self, method: str, raises: Callable[[], BaseException], text: str = "data-"):
        super().__init__()
        inner = getattr(self, method)

        def instead(name: str, *more: Any) -> Any:
            if text in name:
                raise raises()
            return inner(name, *more)

        setattr(self, method, instead)


@pytest.mark.parametrize(
    ("raised", "kind", "number"),
    [
        (PermissionError(errno.EACCES, "no"), varve.PreconditionError, None),
        (OSError(errno.ENOSPC, "full"), varve.OutOfSpaceError, errno.ENOSPC),
        (OSError(errno.EIO, "cable"), varve.UnavailableError, errno.EIO),
        (TimeoutError("slow"), varve.UnavailableError, None),
        (FileNotFoundError("no bucket"), varve.UnavailableError, None),
        (NotImplementedError("never"), varve.UnsupportedError, None),
        (MemoryError(), varve.OutOfSpaceError, None),
        (KeyError("a mistake"), varve.UnavailableError, None),
        (KeyboardInterrupt(), varve.CancelledError, None),
        (SystemExit(3), varve.CancelledError, None),
        (varve.PreconditionError("as it is"), varve.PreconditionError, None),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, BaseException) else None,
)
def test_an_exception_becomes_the_error_of_its_kind(
    raised: BaseException, kind: type[varve.Error], number: int | None
) -> None:
    varve.register_storage("bad", Raises("upload_part", lambda: raised))
    try:
        with pytest.raises(kind) as caught:
            varve.save(state(), "bad://b/x")
    finally:
        varve.unregister_storage("bad")
    text = str(caught.value)
    assert "upload part" in text and "bad://b/x" in text
    assert (str(raised) or type(raised).__name__) in text
    if number is not None:
        assert getattr(caught.value, "errno", None) == number
    if isinstance(raised, KeyError):
        assert "test_storage_plugin.py:" in text  # Where the mistake is.


def test_a_save_that_fails_leaves_nothing_that_is_seen() -> None:
    store = Raises("put", lambda: OSError(errno.EIO, "cable"), "varve.json")
    varve.register_storage("bad", store)
    try:
        with pytest.raises(varve.UnavailableError, match="is not known"):
            varve.save(state(), "bad://b/x")
        with pytest.raises(varve.CheckpointNotFoundError):
            varve.read("bad://b/x")
    finally:
        varve.unregister_storage("bad")
    assert not store.uploads


class ReturnsBytes(MemoryStore):
    def read(self, name: str, offset: int, into: memoryview, version: str) -> Any:
        return self.objects[name][0][offset : offset + len(into)]


class HoldsOn(MemoryStore):
    def put(self, name: str, data: memoryview, if_absent: bool) -> None:
        super().put(name, data, if_absent)
        self.array = np.frombuffer(data, np.uint8)


class ReturnsNumbers(MemoryStore):
    def start_upload(self, name: str, part_bytes: int) -> Any:
        return int(super().start_upload(name, part_bytes))


class ListsElsewhere(MemoryStore):
    def list(self, prefix: str, unfinished: bool) -> Any:
        return [*super().list(prefix, unfinished), ObjectInfo("elsewhere")]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (ReturnsBytes, "returns None"),
        (HoldsOn, "still uses the memory"),
        (ReturnsNumbers, "another type"),
        (ListsElsewhere, "elsewhere"),
    ],
)
def test_a_store_that_breaks_the_rules_gets_an_error(made: type[MemoryStore], text: str) -> None:
    varve.register_storage("bad", made())
    try:
        with pytest.raises(varve.PreconditionError, match=text):
            varve.save(state(), "bad://b/x")
    finally:
        varve.unregister_storage("bad")


class Without(MemoryStore):
    """Without conditional writes and uploads."""

    start_upload = ObjectStore.start_upload
    upload_part = ObjectStore.upload_part
    end_upload = ObjectStore.end_upload

    def put(self, name: str, data: memoryview, if_absent: bool) -> None:
        if if_absent:
            raise NotImplementedError("no conditions here")
        super().put(name, data, if_absent)


@pytest.mark.parametrize("made", [Without, Overwrites])
def test_a_store_without_conditions_is_used_with_a_warning_or_refused(
    made: type[MemoryStore], caplog: pytest.LogCaptureFixture
) -> None:
    varve.register_storage("weak", made())
    try:
        with caplog.at_level("WARNING", "varve.engine"):
            varve.save(state(3), "weak://b/x")
            deadline = time.monotonic() + 10
            while "if absent" not in caplog.text and time.monotonic() < deadline:
                time.sleep(0.01)
        assert "the later one wins without a message" in caplog.text
        assert varve.read("weak://b/x")["step"] == 3
        with pytest.raises(varve.CheckpointExistsError):
            varve.save(state(4), "weak://b/x")
        varve.register_storage("weak", made(), replace=True, publish="strict")
        with pytest.raises(varve.UnsupportedError, match="if absent"):
            varve.save(state(3), "weak://b/x")
    finally:
        varve.unregister_storage("weak")


def test_of_threads_that_save_one_name_one_wins(store: MemoryStore) -> None:
    outcomes: list[str] = []

    def save(value: int) -> None:
        try:
            varve.save(state(value), "mem://b/x")
            outcomes.append("saved")
        except varve.CheckpointExistsError:
            outcomes.append("refused")

    threads = [threading.Thread(target=save, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 3 + ["saved"]
    assert len({name.split("/")[2] for name in store.objects}) == 2  # A record, and its data.


# ---- signals, exit and forks ----

SLOW = """
import sys, time, numpy as np, varve, varve.torch, torch
from storage_stores import sqlite_store

class Slow(sqlite_store()):
    def put(self, name, data, if_absent):
        time.sleep(1.5 if "data-" in name else 0)
        super().put(name, data, if_absent)

varve.register_storage("slow", Slow(sys.argv[1]))
"""


def test_ctrl_c_ends_a_save_when_the_call_returns(tmp_path: Path) -> None:
    database = str(tmp_path / "objects.db")
    program = SLOW + (
        "import os, signal, threading\n"
        "threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n    varve.save({'w': np.zeros(1000)}, 'slow://b/x')\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    ended = programs.run(program, database, env=environment())
    assert ended.stdout == "interrupted\n", ended.stdout + ended.stderr
    store = sqlite_store()(database)
    assert not any("varve.json" in one.name for one in store._infos("1 = ?", 1))


def test_a_save_under_way_is_finished_at_exit(tmp_path: Path) -> None:
    database = str(tmp_path / "objects.db")
    program = SLOW + "varve.torch.async_save({'w': torch.ones(1000)}, 'slow://b/x')\n"
    ended = programs.run(program, database, env=environment())
    assert ended.returncode == 0, ended.stderr
    varve.register_storage("slow", sqlite_store()(database))
    try:
        assert torch.equal(varve.torch.read("slow://b/x")["w"], torch.ones(1000))
    finally:
        varve.unregister_storage("slow")


def test_a_store_is_called_no_more_once_the_interpreter_ends(tmp_path: Path) -> None:
    # The thread saves for ever; the interpreter ends in the middle of it.
    program = SLOW + (
        "import threading\n"
        "def forever():\n"
        "    while True:\n"
        "        varve.save({'w': np.zeros(10)}, 'slow://b/x', overwrite=True)\n"
        "threading.Thread(target=forever, daemon=True).start()\n"
        "time.sleep(0.5)\n"
        "print('ends')\n"
    )
    ended = programs.run(program, tmp_path / "objects.db", env=environment())
    assert ended.stdout == "ends\n"
    assert ended.returncode == 0, ended.stderr


def test_a_forked_child_uses_the_store(tmp_path: Path) -> None:
    program = SLOW + (
        "import os\n"
        "varve.save({'step': 1}, 'slow://b/x')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    varve.save({'step': 2}, 'slow://b/y')\n"
        "    os._exit(varve.read('slow://b/x')['step'] + 6)\n"
        "status = os.waitpid(child, 0)[1]\n"
        "print(os.waitstatus_to_exitcode(status), varve.read('slow://b/y')['step'])\n"
    )
    ended = programs.run(program, tmp_path / "objects.db", env=environment())
    assert ended.stdout == "7 2\n", ended.stderr


# ---- obstore ----


def test_without_obstore_the_error_says_how_to_get_it() -> None:
    program = (
        "import sys; sys.modules['obstore'] = None\n"
        "import varve\n"
        "try:\n    varve.save({}, 'gs://bucket/x')\n"
        "except varve.InvalidArgumentError as error:\n    print(error)\n"
    )
    ended = run_python(program)
    assert "pip install varve[obstore]" in ended.stdout, ended.stderr


def test_a_scheme_of_obstores_that_the_program_has_registered_is_the_programs() -> None:
    varve.register_storage("gs", MemoryStore())
    try:
        varve.save({"step": 1}, "gs://bucket/x")
        assert varve.read("gs://bucket/x")["step"] == 1
    finally:
        varve.unregister_storage("gs")


def test_obstore_is_registered_at_the_first_name_and_its_errors_are_shown() -> None:
    program = (
        "import varve\n"
        "try:\n    varve.save({}, 'az://container/x')\n"
        "except varve.UnavailableError as error:\n    print(error)\n"
    )
    environment = {name: value for name, value in os.environ.items() if "AZURE" not in name}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert "az://container" in ended.stdout, ended.stderr
    assert "Account must be specified" in ended.stdout


def test_a_child_that_was_forked_after_obstore_was_used_gets_an_error(tmp_path: Path) -> None:
    program = (
        "import os, sys, varve\n"
        "from obstore.store import LocalStore\n"
        "from varve.storage.obstore import ObstoreStore\n"
        "varve.register_storage('disk', ObstoreStore(LocalStore(sys.argv[1])))\n"
        "varve.save({'step': 1}, 'disk://b/x')\n"
        "if os.fork() == 0:\n"
        "    try:\n        varve.read('disk://b/x')\n"
        "    except varve.PreconditionError as error:\n        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    ended = run_python(program, str(tmp_path))
    assert "forked" in ended.stdout and "spawn" in ended.stdout, ended.stderr


def test_parts_that_find_no_room_name_the_directory(tmp_path: Path) -> None:
    from obstore.store import MemoryStore as Memory

    from varve.storage.obstore import ObstoreStore

    state = {"w": np.zeros(4 << 20)}
    varve.register_storage("lab", ObstoreStore(Memory(), spool=tmp_path / "not-there"))
    try:
        with pytest.raises(varve.UnavailableError, match="not-there"):
            varve.save(state, "lab://b/x")
        with mounted("tmpfs", "size=1m", tmp_path / "small") as small:
            varve.register_storage("lab", ObstoreStore(Memory(), spool=small), replace=True)
            with pytest.raises(varve.OutOfSpaceError, match=f"in {small}, where parts"):
                varve.save(state, "lab://b/x")
    finally:
        varve.unregister_storage("lab")
