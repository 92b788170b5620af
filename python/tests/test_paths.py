"""Paths as people give them: relative ones, URLs, names that are no UTF-8, and things that are none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import varve
import varve.torch
import varve.torch.dcp as dcp

LONG = 600.0

#: Every function of one path, by what it does with a checkpoint "ck" in the working directory.
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "save": lambda path: varve.save({"w": np.ones(3)}, path, overwrite=True),
    "load": lambda path: varve.load({"w": np.zeros(3)}, path),
    "read": varve.read,
    "torch.save": lambda path: varve.torch.save({"w": torch.ones(3)}, path, overwrite=True),
    "torch.save alone": lambda path: varve.torch.save({"w": torch.ones(3)}, path, coordinate=False),
    "torch.load": lambda path: varve.torch.load({"w": torch.zeros(3, dtype=torch.double)}, path),
    "torch.read": varve.torch.read,
    "async_save": lambda path: varve.torch.async_save({"w": torch.ones(3)}, path, overwrite=True),
    "list_checkpoints": varve.list_checkpoints,
    "verify": varve.verify,
    "repair": varve.repair,
    "collect_garbage": varve.collect_garbage,
    "convert from": lambda path: varve.convert(path, "/tmp/never-written", "dcp"),
    "convert to": lambda path: varve.convert("ck", path, "dcp"),
    "diff a": lambda path: varve.diff(path, "ck"),
    "diff b": lambda path: varve.diff("ck", path),
    "dcp.FileSystemWriter": dcp.FileSystemWriter,
    "dcp.FileSystemReader": dcp.FileSystemReader,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a checkpoint "ck" in it."""
    monkeypatch.chdir(tmp_path)
    varve.save({"w": np.arange(3.0)}, "ck")
    return tmp_path


def _entries(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_address_of_another_store_is_refused_and_makes_no_directory(
    here: Path, name: str
) -> None:
    before = _entries(here)
    with pytest.raises(varve.InvalidArgumentError, match=r"hdfs://bucket/x.*no storage.*file://"):
        FUNCTIONS[name]("hdfs://bucket/x")
    assert _entries(here) == before


@pytest.mark.parametrize("path", ["S3://bucket/x", "HTTPS://host/x", "R2://bucket/x"])
def test_a_scheme_in_large_letters_is_named(path: str) -> None:
    with pytest.raises(varve.InvalidArgumentError, match=r"small letters: .*://"):
        varve.load({"w": np.zeros(1)}, path)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_name_that_pathlib_has_shortened_is_refused_and_makes_no_directory(
    here: Path, name: str
) -> None:
    before = _entries(here)
    with pytest.raises(varve.InvalidArgumentError, match=r"pathlib.*give that name as a str"):
        FUNCTIONS[name](Path("s3://bucket/x"))
    assert _entries(here) == before


@pytest.mark.parametrize("path", ["~", "~/run", Path("~/run")])
def test_a_home_that_no_shell_has_replaced_is_refused_and_makes_no_directory(
    here: Path, path: Any
) -> None:
    before = _entries(here)
    managers = {
        "manager": varve.CheckpointManager,
        "torch manager": varve.torch.CheckpointManager,
        "upload_to": lambda path: varve.CheckpointManager("run", upload_to=path),
    }
    for name, function in {**FUNCTIONS, **managers}.items():
        with pytest.raises(varve.InvalidArgumentError) as caught:
            function(path)
        assert "os.path.expanduser" in str(caught.value), name
    assert _entries(here) == before
    varve.save({"w": np.ones(1)}, f"./{path}/own")
    assert (here / str(path) / "own" / "varve.json").exists()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("path", [None, 3, ["ck"], ""])
def test_what_is_no_path_is_an_error_of_ours(here: Path, name: str, path: Any) -> None:
    with pytest.raises(varve.InvalidArgumentError):
        FUNCTIONS[name](path)


@pytest.mark.parametrize("name", ["load", "read", "torch.read", "verify", "repair", "diff a"])
def test_a_file_url_is_a_path(here: Path, name: str) -> None:
    FUNCTIONS[name](f"file://{here}/ck")
    FUNCTIONS[name](os.fsencode(here / "ck"))
    with pytest.raises(varve.InvalidArgumentError, match="file:///data"):
        FUNCTIONS[name]("file://ck")


def test_saves_to_a_file_url(here: Path) -> None:
    varve.save({"w": np.ones(2)}, f"file://{here}/a")
    dcp.save({"w": torch.ones(2)}, checkpoint_id=f"file://localhost{here}/b")
    assert varve.read("a")["w"].tolist() == varve.read("b")["w"].tolist() == [1, 1]
    assert {entry.name for entry in varve.list_checkpoints(".")} == {"a", "b", "ck"}


def test_queued_saves_appear_where_they_were_asked_for(here: Path) -> None:
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    handles = []
    for i in range(4):
        handles.append(varve.torch.async_save({"w": torch.full((1 << 16,), i)}, f"run/step-{i}"))
    os.chdir(elsewhere)
    for handle in handles:
        handle.result(LONG)
    assert _entries(elsewhere) == set()
    for i in range(4):
        assert varve.read(here / f"run/step-{i}")["w"][0] == i


def test_readers_and_writers_of_dcp_stay_where_they_were_made(here: Path) -> None:
    (here / "elsewhere").mkdir()
    dcp.save({"w": torch.arange(3.0)}, checkpoint_id="old")
    writer, reader = dcp.FileSystemWriter("new"), dcp.FileSystemReader("old")
    os.chdir("elsewhere")
    state = {"w": torch.zeros(3)}
    dcp.load(state, storage_reader=reader)
    dcp.save(state, storage_writer=writer)
    assert _entries(here / "elsewhere") == set()
    assert varve.read(here / "new")["w"].tolist() == [0, 1, 2]


def test_dot_dot_leads_where_the_file_system_says(here: Path) -> None:
    (here / "far/away").mkdir(parents=True)
    (here / "link").symlink_to("far/away")
    varve.save({"w": np.ones(1)}, "link/../ck")
    assert (here / "far/ck/varve.json").exists()
    assert varve.read("link/../ck")["w"].size == 1
    assert varve.read("ck")["w"].size == 3


def test_a_working_directory_that_was_removed_is_named_as_the_cause(here: Path) -> None:
    (here / "gone").mkdir()
    calls = [
        "varve.save({'w': numpy.ones(1)}, 'ck')",
        "varve.torch.save(state, 'ck')",
        "varve.torch.load(state, 'ck')",
        "dcp.save(state, checkpoint_id='ck')",
        "dcp.load(state, checkpoint_id='ck')",
    ]
    script = (
        "import os, numpy, torch, varve.torch\n"
        "from varve.torch import dcp\n"
        "state = {'w': torch.ones(1)}\n"
        "os.chdir('gone'); os.rmdir('../gone')\n"
        f"for call in {calls}:\n"
        "    try:\n        eval(call)\n"
        "    except varve.UnavailableError as error:\n        print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=here)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("working directory") == len(calls)


@pytest.mark.parametrize("name", [b"caf\xe9", b"\xff\xfe-1", "Umläut-日本".encode()])
def test_names_of_any_bytes_work(here: Path, name: bytes) -> None:
    path = os.fsdecode(name)
    varve.torch.save({"w": torch.arange(4.0)}, path)
    varve.torch.save({"w": torch.arange(4.0)}, path, overwrite=True)
    assert name in os.listdir(b".")
    assert varve.read(name)["w"].tolist() == [0, 1, 2, 3]
    state = {"w": torch.zeros(4)}
    varve.torch.load(state, path)
    assert varve.verify(path) == []
    assert path in {entry.name for entry in varve.list_checkpoints(".")}
    varve.convert(path, path + "-dcp", "dcp")
    assert varve.diff(path, path + "-dcp") == []
    varve.torch.async_save(state, path + "-2").result(LONG)
    dcp.save(state, checkpoint_id=path + "-3")
    dcp.load(state, checkpoint_id=path + "-3")
    varve.torch.save(state, path + "-4", coordinate=False)
    with pytest.raises(varve.CheckpointExistsError):
        varve.torch.save(state, path)
    with pytest.raises(varve.CheckpointNotFoundError):
        varve.read(path + "-none")


def test_a_name_without_bytes_is_refused_by_name(here: Path) -> None:
    with pytest.raises(varve.InvalidArgumentError, match="ud800"):
        varve.read("ck\ud800")


@pytest.mark.parametrize("verb", ["ls", "inspect", "verify", "repair", "gc"])
def test_the_command_line_refuses_addresses_of_other_stores_and_takes_file_urls(
    here: Path, verb: str
) -> None:
    command = os.path.join(os.path.dirname(sys.executable), "varve")

    def run(path: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([command, verb, path], capture_output=True, text=True, check=False)

    refused = run("gs://bucket/x")
    assert refused.returncode == 2
    assert "no storage serves gs://" in refused.stderr
    assert run(f"file://{here}/ck").returncode == 0
    assert os.listdir(here) == ["ck"]


@pytest.mark.parametrize("name", ["link/step-1", "link/a/step-1"])
def test_a_directory_that_cannot_be_made_is_no_missing_checkpoint(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(
        varve.UnavailableError, match=r"directory .*/link.* cannot be made: .*No such"
    ):
        varve.save({"n": 1}, tmp_path / name)


def test_a_directory_of_checkpoints_is_named_as_one(tmp_path: Path) -> None:
    for step in (9, 10):
        varve.save({"n": step}, tmp_path / f"step-{step}")
    said = (
        f"a directory of 2 checkpoints; the newest is {tmp_path}/step-10; `varve latest {tmp_path}`"
    )
    for call in (
        lambda: varve.load({"n": 0}, tmp_path),
        lambda: varve.read(tmp_path),
        lambda: varve.verify(tmp_path),
        lambda: varve.diff(tmp_path, tmp_path),
    ):
        with pytest.raises(varve.CheckpointNotFoundError) as caught:
            call()
        assert said in str(caught.value)
