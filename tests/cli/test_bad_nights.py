"""Mishaps of operators: files in the wrong place, typing errors, lost records, directories without permission."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import data_file, flip_a_bit

import varve

STEPS = ["step-00000010", "step-00000020", "step-00000030"]


def train(folder: Path, last: int, value: float = 1.0) -> int:
    """Saves every 10 steps up to `last`; returns the step that it began after."""
    state = {"w": np.full(4, value)}
    with varve.CheckpointManager(folder, every=10) as manager:
        at = manager.resume(state) or 0
        for step in range(at + 1, last + 1):
            manager.save(step, state, metrics={"loss": 1 / step}, files={"config.json": b"{}"})
    return at


@pytest.fixture
def steps(folder: Path) -> Path:
    train(folder, 30)
    return folder


@pytest.mark.parametrize("stray", ["varve.json", "data", "manifest.bin", ".metadata"])
def test_a_stray_file_in_the_directory_of_a_run_hides_no_step(
    run: Any, run_json: Any, steps: Path, stray: str
) -> None:
    newest = steps / STEPS[-1]
    if stray == ".metadata":
        varve.convert(newest, steps / "as-dcp", "dcp")
        for file in (steps / "as-dcp").iterdir():
            shutil.move(file, steps)
        (steps / "as-dcp").rmdir()
    else:
        shutil.copy(data_file(newest) if stray == "data" else newest / stray, steps)
    listed = [entry["name"] for entry in run_json("ls", steps)]
    assert set(STEPS) <= set(listed) and len(listed) <= 4
    assert run("latest", steps).stdout == f"{newest}\n"
    pruned = run_json("prune", steps, "--keep", "last=1", "--dry-run")
    assert [one["name"] for one in pruned["steps"]] == STEPS
    run("rm", steps, code=2)
    assert train(steps, 40) == 30
    assert [step.name for step in varve.steps(steps)] == [*STEPS, "step-00000040"]


def test_a_stray_file_hides_neither_a_displaced_step_nor_one_in_quarantine(
    run: Any, run_json: Any, steps: Path
) -> None:
    displaced = steps / ".step-%30%30%30%30%30%30%33%30.varve-old"
    (steps / STEPS[2]).rename(displaced)
    flip_a_bit(data_file(steps / STEPS[1]), 20)
    flip_a_bit(steps / STEPS[1] / "manifest.bin", 50)
    shutil.copy(steps / STEPS[0] / "varve.json", steps)
    assert run("latest", steps).stdout == f"{steps / STEPS[2]}\n"
    displaced.rename(steps / STEPS[2])
    for file in (steps / STEPS[2]).glob("data-*"):
        file.unlink()
    assert train(steps, 20) == 10
    states = [entry["state"] for entry in run_json("ls", steps)]
    assert states.count("quarantined") == 2


def test_a_step_with_a_checkpoint_in_it_is_a_step(run: Any, run_json: Any, steps: Path) -> None:
    varve.save({"o": np.ones(2)}, steps / STEPS[0] / "optimizer_0")
    shutil.copytree(steps / STEPS[1], steps / STEPS[2] / STEPS[1])
    assert run("latest", steps / STEPS[0]).stdout == f"{steps / STEPS[0]}\n"
    (steps / STEPS[2] / "manifest.bin").write_bytes(b"?")
    assert train(steps, 40) == 30
    run("rm", steps / STEPS[0])
    run("prune", steps, "--keep", "last=1")
    assert [step.name for step in varve.steps(steps)] == ["step-00000040"]


def test_a_repair_without_the_record_keeps_the_place_of_the_step_and_names_what_it_leaves(
    run: Any, run_json: Any, steps: Path
) -> None:
    with varve.CheckpointManager(steps, every=10) as manager:
        manager.restore(10, {"w": np.zeros(4)})
        manager.save(20, {"w": np.full(4, 2.0)})
    (steps / STEPS[2] / "varve.json").unlink()
    done = run("repair", steps / STEPS[2])
    assert "no part of the checkpoint now, but may have been: config.json" in done.stderr
    assert run("latest", steps).stdout == f"{steps / STEPS[1]}\n"
    found = {step.name: step for step in varve.steps(steps)}
    assert found[STEPS[2]].attempt == 1 and found[STEPS[2]].metrics == {"loss": 1 / 30}
    assert run_json("repair", steps / STEPS[2])["others"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("prune", "RUN", "--keep", "last=0"), "last 0 steps makes no sense"),
        (("prune", "RUN", "--keep", "best=0:loss"), "best 0 steps makes no sense"),
        (("prune", "RUN", "--keep", "last=1", "--name", "stp-"), 'no step\'s name is "stp-"'),
        (("convert", "STEP", "OUT", "--to", "hf", "--rename", "v.=x."), 'begins with "v."'),
        (("convert", "STEP", "OUT", "--to", "hf", "--shard-size", "0"), "0 bytes"),
        (("advise", "--size=-5"), '"-5" is not a number of bytes'),
    ],
)
def test_a_typing_error_is_an_error(
    run: Any, steps: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    places = {"RUN": steps, "STEP": steps / STEPS[0], "OUT": tmp_path / "out"}
    done = run(*(places.get(argument, argument) for argument in arguments), code=2)
    assert said in done.stderr
    assert [step.name for step in varve.steps(steps)] == STEPS and not (tmp_path / "out").exists()


def test_a_second_pin_without_a_reason_keeps_the_first_one(run: Any, steps: Path) -> None:
    step = steps / STEPS[0]
    run("pin", step, "--why", "for the paper")
    run("pin", step)
    assert varve.steps(steps)[0].pin == "for the paper"
    run("pin", step, "--why", "for the court")
    assert varve.steps(steps)[0].pin == "for the court"


def test_diff_of_a_damaged_checkpoint_is_no_difference(run: Any, steps: Path) -> None:
    file = data_file(steps / STEPS[1])
    flip_a_bit(file, file.stat().st_size - 10)
    assert "checksum mismatch" in run("diff", steps / STEPS[0], steps / STEPS[1], code=2).stderr


def test_rm_of_a_link_takes_only_one_that_leads_to_a_checkpoint(
    run: Any, steps: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(steps)
    assert "not to a checkpoint" in run("rm", tmp_path / "link", code=2).stderr
    (tmp_path / "best").symlink_to(steps / STEPS[0])
    run("rm", f"{tmp_path / 'best'}/")
    assert not (tmp_path / "best").is_symlink() and (tmp_path / "link").is_symlink()
    assert len(varve.steps(steps)) == 3


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may read; pytest's own may be its owner's alone."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        yield Path(made) / "run"


@pytest.fixture
def run_as_other(binary: Path) -> Any:
    """Runs the command line as a user without root's permissions."""
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        as_other = other if os.geteuid() == 0 else []
        return subprocess.run([*as_other, binary, *arguments], capture_output=True, text=True)

    try:
        may_run = call("--version").returncode == 0
    except PermissionError:
        may_run = False
    if not may_run:
        pytest.skip("another user may not run the command that is installed here")
    return call


def test_a_step_that_may_not_be_read_is_not_passed_over(
    run_as_other: Any, open_folder: Path
) -> None:
    train(open_folder, 30)
    (open_folder / STEPS[2]).chmod(0)
    try:
        listed = run_as_other("ls", open_folder)
        assert "unreadable: " in listed.stdout and STEPS[2] in listed.stdout, listed
        latest = run_as_other("latest", open_folder)
        assert latest.returncode == 2 and latest.stdout == "", latest
        assert STEPS[2] in latest.stderr
    finally:
        (open_folder / STEPS[2]).chmod(0o755)


@pytest.mark.parametrize("mode", [0o000, 0o311, 0o644])
@pytest.mark.parametrize("verb", ["latest", "ls", "gc", "prune --keep last=1"])
def test_a_run_that_may_not_be_read_is_an_error_and_not_empty(
    verb: str, mode: int, run_as_other: Any, open_folder: Path
) -> None:
    train(open_folder, 10)
    (open_folder / "lost+found").mkdir(mode=0)  # That this may not be read hides no step.
    name, *options = verb.split()
    assert run_as_other("latest", open_folder).stdout == f"{open_folder / STEPS[0]}\n"
    open_folder.chmod(mode)
    try:
        done = run_as_other(name, open_folder, *options)
        assert done.returncode == 2 and done.stdout == "", done
        assert f"{open_folder}: Permission denied" in done.stderr
    finally:
        open_folder.chmod(0o755)


def test_a_dry_run_needs_no_permission_to_write(run_as_other: Any, open_folder: Path) -> None:
    train(open_folder, 30)
    open_folder.chmod(0o555)
    try:
        pruned = run_as_other("prune", open_folder, "--keep", "last=1", "--dry-run")
        assert pruned.returncode == 0 and "would remove 2 steps" in pruned.stdout, pruned
        removed = run_as_other("rm", open_folder / STEPS[0], "--dry-run")
        assert removed.returncode == 0 and "would remove" in removed.stdout, removed
        missing = run_as_other("rm", open_folder / "step-99", "--dry-run")
        assert missing.returncode == 2 and "nothing of that name" in missing.stderr, missing
        assert run_as_other("rm", open_folder / STEPS[0]).returncode == 2
    finally:
        open_folder.chmod(0o755)
    assert len(varve.steps(open_folder)) == 3


def test_a_step_that_the_file_system_does_not_answer_for_is_an_error_and_not_an_older_step(
    run: Any, steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "no_answer.c"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <errno.h>\n#include <string.h>\n"
        "#include <sys/stat.h>\nint fstatat(int at, const char* name, struct stat* info, int flags) {\n"
        f'  if (strcmp(name, "{STEPS[-1]}") == 0) {{ errno = EIO; return -1; }}\n'
        '  int (*real)(int, const char*, struct stat*, int) = dlsym(RTLD_NEXT, "fstatat");\n'
        "  return real(at, name, info, flags);\n}\n"
    )
    library = tmp_path / "no_answer.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    for arguments in (["latest", steps], ["ls", steps], ["prune", "--keep", "last=1", steps]):
        error = run(*arguments, code=2).stderr
        assert STEPS[-1] in error
        assert "Input/output error" in error
    monkeypatch.delenv("LD_PRELOAD")
    assert run("latest", steps).stdout.strip().endswith(STEPS[-1])
    assert sorted(path.name for path in steps.glob("step-*")) == STEPS
