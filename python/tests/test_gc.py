"""What dead saves leave is recognised and removed; what belongs to a live one never is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import varve
from varve import _core, _engine
from varve._arrays import NumpyArrays

STAGING = ".step-1.varve-saving-aaaaaaaaaaaa"

#: Saves and stops in the middle of its writes, until a line comes in.
SAVER = """
import sys
import numpy as np
import varve
from varve import _core, _engine
from varve._arrays import NumpyArrays

def wait(done, total):
    if not told:
        told.append(True)
        print("saving", flush=True)
        sys.stdin.readline()

told = []
options = {"progress": wait, "overwrite": True}
rank = None
if sys.argv[2] == "alone":
    rank = _core.Coordinator(0, 2)
    options |= {"coordinate": False, "save_id": b"a" * 16}
state = {"w": np.full(1 << 20, 2, np.uint8)}
options = _core.SaveOptions(**options)
_engine.save(_engine.Content(state), sys.argv[1], NumpyArrays(), rank, options)
print("saved", flush=True)
"""


@contextmanager
def saver(path: Path, how: str = "together") -> Iterator[subprocess.Popen[str]]:
    """A process that is in the middle of saving `path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", SAVER, str(path), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "saving\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def finish(process: subprocess.Popen[str]) -> None:
    assert process.communicate("go on\n", timeout=600)[0] == "saved\n"


def entries(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def states(directory: Path) -> dict[str, str]:
    return {entry.name: entry.state for entry in varve.list_checkpoints(directory)}


def value(path: Path) -> int:
    assert varve.verify(path) == []
    return int(varve.read(path)["w"][0])


def make_staging(directory: Path) -> None:
    """What a save that was killed before its first byte leaves."""
    (directory / STAGING).mkdir()
    (directory / STAGING / "data-00000-of-00001.safetensors").write_bytes(b"half")


def test_a_dead_saves_directory_is_listed_as_stale_and_removed(
    tmp_path: Path,
) -> None:
    make_staging(tmp_path)
    assert states(tmp_path) == {STAGING: "stale"}
    assert varve.list_checkpoints(tmp_path)[0].bytes == 4
    assert varve.collect_garbage(tmp_path) == [str(tmp_path / STAGING)]
    assert entries(tmp_path) == []


def test_a_dry_run_names_what_it_would_remove_and_touches_nothing(tmp_path: Path) -> None:
    make_staging(tmp_path)
    assert varve.collect_garbage(tmp_path, dry_run=True) == [str(tmp_path / STAGING)]
    assert entries(tmp_path) == [STAGING]
    assert entries(tmp_path / STAGING) == ["data-00000-of-00001.safetensors"]


def test_listing_and_collecting_leave_everything_else_alone(tmp_path: Path) -> None:
    varve.save({"w": np.ones(4, np.uint8)}, tmp_path / "step-1")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / ".hidden").write_text("mine")
    (tmp_path / ".step-1.backup").mkdir()
    before = entries(tmp_path)
    assert states(tmp_path) == {"step-1": "whole"}
    assert varve.collect_garbage(tmp_path) == []
    assert entries(tmp_path) == before
    assert (tmp_path / "notes" / ".hidden").read_text() == "mine"


def test_the_next_save_of_the_name_removes_what_a_dead_one_left(tmp_path: Path) -> None:
    make_staging(tmp_path)
    (tmp_path / ".other.varve-saving-bbbbbbbbbbbb").mkdir()
    varve.save({"w": np.ones(4, np.uint8)}, tmp_path / "step-1")
    assert entries(tmp_path) == [".other.varve-saving-bbbbbbbbbbbb", "step-1"]
    assert value(tmp_path / "step-1") == 1


def test_a_live_save_is_listed_as_such_and_its_files_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    with saver(path) as process:
        ((name, state),) = states(tmp_path).items()
        assert name.startswith(".step-%31.varve-saving-")
        assert state == "saving"
        assert varve.collect_garbage(tmp_path) == []
        with pytest.raises(varve.CheckpointNotFoundError):
            varve.read(path)
        with pytest.raises(varve.PreconditionError, match=r"another save of .* is under way"):
            varve.save({"w": np.ones(4, np.uint8)}, path)
        finish(process)
    assert entries(tmp_path) == ["step-1"]
    assert value(path) == 2


def test_a_live_overwrite_keeps_the_old_checkpoint_readable_until_it_is_done(
    tmp_path: Path,
) -> None:
    path = tmp_path / "step-1"
    varve.save({"w": np.ones(4, np.uint8)}, path)
    with saver(path) as process:
        assert varve.collect_garbage(tmp_path) == []
        assert value(path) == 1
        assert sorted(states(tmp_path).values()) == ["saving", "whole"]
        finish(process)
    assert value(path) == 2
    assert entries(tmp_path) == ["step-1"]


@pytest.mark.parametrize("clean", ["gc", "save"])
def test_a_save_killed_in_its_writes_shows_no_checkpoint_and_is_cleaned_up(
    clean: str, tmp_path: Path
) -> None:
    path = tmp_path / "step-1"
    with saver(path) as process:
        kill(process)
    assert list(states(tmp_path).values()) == ["stale"]
    with pytest.raises(varve.CheckpointNotFoundError):
        varve.read(path)
    if clean == "gc":
        assert varve.collect_garbage(tmp_path)
        assert entries(tmp_path) == []
    varve.save({"w": np.ones(4, np.uint8)}, path)
    assert value(path) == 1
    assert entries(tmp_path) == ["step-1"]


def test_an_overwrite_killed_in_its_writes_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    varve.save({"w": np.ones(4, np.uint8)}, path)
    with saver(path) as process:
        kill(process)
    assert value(path) == 1
    assert varve.collect_garbage(tmp_path)
    assert entries(tmp_path) == ["step-1"]
    assert value(path) == 1


def test_a_checkpoint_that_an_overwrite_had_displaced_is_found_and_put_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "step-1"
    varve.save({"w": np.ones(4, np.uint8)}, path)
    path.rename(tmp_path / ".step-1.varve-old")
    make_staging(tmp_path)
    assert states(tmp_path) == {"step-1": "displaced", STAGING: "stale"}
    assert value(path) == 1
    varve.collect_garbage(tmp_path)
    assert entries(tmp_path) == ["step-1"]
    assert value(path) == 1


def test_a_displaced_checkpoint_beside_its_successor_is_garbage(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    varve.save({"w": np.ones(4, np.uint8)}, path)
    path.rename(tmp_path / ".step-1.varve-old")
    varve.save({"w": np.full(4, 2, np.uint8)}, tmp_path / "step-2")
    (tmp_path / "step-2").rename(path)
    assert varve.collect_garbage(tmp_path) == [str(tmp_path / ".step-1.varve-old")]
    assert value(path) == 2


def test_parts_of_an_uncoordinated_save_are_kept_while_it_lives_and_removed_after(
    tmp_path: Path,
) -> None:
    path = tmp_path / "step-1"

    with saver(path, "alone") as process:
        options = _core.SaveOptions(coordinate=False, save_id=b"a" * 16)
        state = {"w": np.full(1 << 20, 2, np.uint8)}
        ranks = _core.Coordinator(1, 2)
        _engine.save(_engine.Content(state), path, NumpyArrays(), ranks, options)
        before = entries(path)
        assert [name for name in before if name.endswith(".varve-part")]
        assert varve.collect_garbage(tmp_path) == []
        assert varve.collect_garbage(path) == []
        assert entries(path) == before
        assert states(tmp_path) == {"step-1": "incomplete"}
        kill(process)
    assert varve.collect_garbage(tmp_path)
    (left,) = entries(path)
    assert left.startswith("data-00001-of-00002")
    assert states(tmp_path) == {"step-1": "incomplete"}


def stopped_export(directory: Path) -> subprocess.Popen[bytes]:
    """An export of step-1 that stands still in the middle of its writes."""
    command = [Path(sys.executable).with_name("varve"), "export", "step-1", "out.safetensors"]
    while True:
        export = subprocess.Popen([*command, "--overwrite"], cwd=directory)
        while export.poll() is None and not (directory / ".out.safetensors.varve-part").exists():
            pass
        export.send_signal(signal.SIGSTOP)
        os.waitpid(export.pid, os.WUNTRACED)
        if (directory / ".out.safetensors.varve-part").exists():
            return export
        export.kill()  # It was faster: once more.
        export.wait()


def test_part_of_a_file_is_kept_while_its_export_lives_and_removed_after(tmp_path: Path) -> None:
    varve.save({"w": np.zeros(64 << 20, np.uint8)}, tmp_path / "step-1")
    with stopped_export(tmp_path) as export:
        (tmp_path / "out.safetensors").unlink(missing_ok=True)
        part = tmp_path / ".out.safetensors.varve-part"
        assert varve.collect_garbage(tmp_path) == []
        assert part.exists()
        export.kill()
    assert str(part) in varve.collect_garbage(tmp_path)
    assert entries(tmp_path) == ["step-1"]


def test_a_part_without_a_lock_beside_it_is_not_ours_to_remove(tmp_path: Path) -> None:
    (tmp_path / ".notes.varve-part").write_text("mine")
    assert varve.collect_garbage(tmp_path) == []
    assert entries(tmp_path) == [".notes.varve-part"]


@pytest.mark.parametrize("missing", ["parent/step-1", "a/b/c/step-1"])
def test_parents_are_made_as_needed(missing: str, tmp_path: Path) -> None:
    varve.save({"w": np.ones(4, np.uint8)}, tmp_path / missing)
    assert value(tmp_path / missing) == 1


def test_collecting_in_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(varve.CheckpointNotFoundError):
        varve.collect_garbage(tmp_path / "nowhere")
