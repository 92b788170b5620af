"""install() makes torch.distributed.checkpoint's own names save and load with Varve."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dcp_install_jobs as jobs
import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from dcp_install_jobs import by_varve
from ranks import run_ranks
from torch.distributed.checkpoint import (
    FileSystemReader,
    FileSystemWriter,
    filesystem,
    state_dict_loader,
    state_dict_saver,
)

import varve
import varve.torch.dcp as dcp

STATE = {"a": torch.arange(3000.0), "n": 5}
NAMES = ("save", "async_save", "load", "save_state_dict", "load_state_dict")
TORCHS = {name: getattr(torch_dcp, name) for name in NAMES}

#: A library that took the name before Varve was installed.
taken_before = torch_dcp.save


@pytest.fixture(autouse=True)
def _uninstalled() -> Iterator[None]:
    yield
    dcp.uninstall()
    assert {name: getattr(torch_dcp, name) for name in NAMES} == TORCHS


@pytest.fixture
def info(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "varve")
    dcp._install._state.logged.clear()
    return caplog


def is_installed() -> bool:
    ours = [getattr(torch_dcp, name) is not TORCHS[name] for name in NAMES]
    assert len(set(ours)) == 1, "all names or none"
    return ours[0]


def loaded(path: Path, **options: Any) -> dict[str, Any]:
    state = {"a": torch.zeros(3000), "n": 0}
    torch_dcp.load(state, **options or {"checkpoint_id": path})
    assert torch.equal(state["a"], STATE["a"]) and state["n"] == 5
    return state


def test_names_looked_up_at_the_call_are_varves(tmp_path: Path) -> None:
    dcp.install()
    torch_dcp.save(dict(STATE), checkpoint_id=tmp_path / "package")
    state_dict_saver.save(dict(STATE), checkpoint_id=tmp_path / "module")
    from torch.distributed.checkpoint import save

    save(dict(STATE), checkpoint_id=tmp_path / "at the call")
    for name in ("package", "module", "at the call"):
        assert by_varve(str(tmp_path / name)), name
        loaded(tmp_path / name)
    assert state_dict_loader.load is torch_dcp.load


def test_a_name_that_was_taken_before_stays_torchs(tmp_path: Path) -> None:
    dcp.install()
    taken_before(dict(STATE), checkpoint_id=tmp_path / "step")
    assert not by_varve(str(tmp_path / "step"))


def test_a_name_that_was_taken_while_installed_is_torchs_after_uninstall(tmp_path: Path) -> None:
    dcp.install()
    taken = torch_dcp.save
    dcp.uninstall()
    taken(dict(STATE), checkpoint_id=tmp_path / "step")
    assert not by_varve(str(tmp_path / "step"))


def test_install_twice_is_once_and_uninstall_without_install_is_nothing() -> None:
    dcp.uninstall()
    assert not is_installed()
    dcp.install()
    dcp.install()
    assert is_installed()
    dcp.uninstall()
    assert not is_installed()
    dcp.uninstall()
    assert not is_installed()


def test_context_managers_nest_and_leave_what_install_did() -> None:
    with dcp.installed():
        with dcp.installed():
            assert is_installed()
        assert is_installed()
        dcp.uninstall()  # Undoes no context manager.
        assert is_installed()
    assert not is_installed()
    dcp.install()
    with pytest.raises(KeyError), dcp.installed():
        raise KeyError
    assert is_installed()


def test_context_managers_of_several_threads_end_with_the_last() -> None:
    both_open, first_closed = threading.Barrier(2), threading.Event()
    seen = []

    def outlives_the_first() -> None:
        with dcp.installed():
            both_open.wait(60)
            first_closed.wait(60)
            seen.append(is_installed())

    thread = threading.Thread(target=outlives_the_first)
    thread.start()
    with dcp.installed():
        both_open.wait(60)
    first_closed.set()
    thread.join()
    assert seen == [True]
    assert not is_installed()


def test_the_signatures_are_torchs() -> None:
    import inspect

    dcp.install()
    for name in NAMES:
        assert inspect.signature(getattr(torch_dcp, name)) == inspect.signature(TORCHS[name])


def test_a_replacement_by_other_software_stays(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    dcp.install()
    ours = torch_dcp.save
    theirs = torch_dcp.save = lambda *args, **kwargs: ours(*args, **kwargs)
    try:
        dcp.uninstall()
        assert torch_dcp.save is theirs
        assert "save was replaced by other software" in caplog.text
        torch_dcp.save(dict(STATE), checkpoint_id=tmp_path / "step")
        assert not by_varve(str(tmp_path / "step")), "ours passes the call on"
    finally:
        torch_dcp.save = TORCHS["save"]


def test_a_stock_writer_and_reader_are_varves_with_the_same_options(tmp_path: Path) -> None:
    dcp.install()
    path = tmp_path / "step"
    writer = FileSystemWriter(path, single_file_per_rank=False, sync_files=False, overwrite=False)
    torch_dcp.save(dict(STATE), storage_writer=writer)
    assert by_varve(str(path))
    assert len(list(path.glob("*.distcp"))) == 2, "a file for each item"
    with pytest.raises(dcp.CheckpointError, match="already holds a checkpoint"):
        torch_dcp.save(dict(STATE), storage_writer=writer)
    loaded(path, storage_reader=FileSystemReader(path))
    assert varve.verify(path) == []


def test_checkpoint_id_goes_before_the_path_of_a_stock_storage(tmp_path: Path) -> None:
    dcp.install()
    writer = FileSystemWriter(tmp_path / "unused")
    torch_dcp.save(dict(STATE), checkpoint_id=tmp_path / "step", storage_writer=writer)
    assert by_varve(str(tmp_path / "step")) and not (tmp_path / "unused").exists()
    reader = FileSystemReader(tmp_path / "unused")
    loaded(tmp_path, checkpoint_id=tmp_path / "step", storage_reader=reader)


def test_storages_given_by_position_are_taken(tmp_path: Path) -> None:
    dcp.install()
    torch_dcp.save(dict(STATE), FileSystemWriter(tmp_path / "step"))
    with pytest.warns(FutureWarning, match="deprecated"):
        torch_dcp.save_state_dict(dict(STATE), FileSystemWriter(tmp_path / "old"), None, 0, True)
    state = {"n": 0}
    with pytest.warns(FutureWarning, match="deprecated"):
        torch_dcp.load_state_dict(state, FileSystemReader(tmp_path / "old"), no_dist=True)
    assert state["n"] == 5
    assert by_varve(str(tmp_path / "step")) and by_varve(str(tmp_path / "old"))


def test_planners_and_no_dist_are_taken(tmp_path: Path) -> None:
    dcp.install()
    planner = torch_dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=True)
    path = tmp_path / "step"
    torch_dcp.save(dict(STATE), checkpoint_id=path, planner=planner, no_dist=True)
    assert by_varve(str(path))
    state = {"n": 0, "not there": 1}
    planner = torch_dcp.DefaultLoadPlanner(allow_partial_load=True)
    torch_dcp.load(state, checkpoint_id=path, planner=planner, no_dist=True)
    assert state == {"n": 5, "not there": 1}


@pytest.mark.parametrize("kind", ["THREAD", "PROCESS", "stager"])
def test_async_saves_are_varves(kind: str, agent: str, tmp_path: Path, one_rank: None) -> None:
    staging = pytest.importorskip("torch.distributed.checkpoint.staging")
    dcp.install()
    if kind == "stager":
        stager = staging.DefaultStager(staging.StagingOptions(False, False, True, False))
        options: dict[str, Any] = {"async_stager": stager}
    else:
        kinds = state_dict_saver.AsyncCheckpointerType
        options = {"async_checkpointer_type": getattr(kinds, kind)}
    save: Any = torch_dcp.async_save(dict(STATE), checkpoint_id=tmp_path / "step", **options)
    if kind == "stager":
        assert isinstance(save, state_dict_saver.AsyncSaveResponse)
    getattr(save, "upload_completion", save).result()
    assert by_varve(str(tmp_path / "step"))
    loaded(tmp_path / "step")
    dcp.close()


class Altered(FileSystemWriter):
    """A writer of a library's own."""


def test_other_writers_are_torchs_and_the_log_says_so_once(
    info: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    dcp.install()
    for name in ("1", "2"):
        torch_dcp.save(dict(STATE), storage_writer=Altered(tmp_path / name))
        assert not by_varve(str(tmp_path / name))
    assert info.text.count("a storage of type Altered") == 1


def test_a_stock_storage_that_was_altered_is_torchs(tmp_path: Path) -> None:
    dcp.install()
    calls = []
    writer = FileSystemWriter(tmp_path / "step")
    write = writer.write_data
    writer.write_data = lambda *args: (calls.append(1), write(*args))[1]  # type: ignore[method-assign]
    torch_dcp.save(dict(STATE), storage_writer=writer)
    assert calls == [1] and not by_varve(str(tmp_path / "step"))


@pytest.mark.skipif(
    not hasattr(filesystem, "SerializationFormat"), reason="this torch has one serialization format"
)
def test_a_stock_writer_of_another_serialization_is_torchs(tmp_path: Path) -> None:
    dcp.install()
    pytest.importorskip("safetensors")
    writer = FileSystemWriter(
        tmp_path / "step", serialization_format=filesystem.SerializationFormat.SAFETENSORS
    )
    torch_dcp.save({"a": torch.ones(3)}, storage_writer=writer)
    assert not by_varve(str(tmp_path / "step"))


def test_ids_with_a_scheme_are_torchs(info: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    fsspec: Any = pytest.importorskip("fsspec")
    dcp.install()
    torch_dcp.save(dict(STATE), checkpoint_id="memory://varve-test/step")
    assert "an id that is not a path" in info.text
    files = fsspec.filesystem("memory").ls("/varve-test/step", detail=False)
    assert "/varve-test/step/.metadata" in files
    loaded(tmp_path, checkpoint_id="memory://varve-test/step")


def test_what_varve_cannot_read_torch_reads(tmp_path: Path) -> None:
    quantized = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    TORCHS["save"]({"q": quantized, "n": 5}, checkpoint_id=tmp_path / "step")
    with pytest.raises(dcp.CheckpointError):
        dcp.load({"n": 0}, checkpoint_id=tmp_path / "step")
    dcp.install()
    state = {"n": 0}
    torch_dcp.load(state, checkpoint_id=tmp_path / "step")
    assert state["n"] == 5


def test_every_option_of_the_stock_storages_is_known() -> None:
    assert set() == dcp._install._NEW_OPTIONS


def test_stock_storages_of_a_torch_with_more_options_are_torchs(
    info: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcp.install()
    monkeypatch.setattr(dcp._install, "_NEW_OPTIONS", {"compression"})
    torch_dcp.save(dict(STATE), storage_writer=FileSystemWriter(tmp_path / "step"))
    assert not by_varve(str(tmp_path / "step"))
    assert "options that Varve does not know (compression)" in info.text


def test_arguments_that_torch_refuses_are_refused_by_torch(tmp_path: Path) -> None:
    dcp.install()
    with pytest.raises(TypeError, match="unexpected keyword"):
        torch_dcp.save(dict(STATE), checkpoint_id=tmp_path / "step", no_such_argument=1)
    with pytest.raises(TypeError):
        torch_dcp.save()
    with pytest.raises(RuntimeError, match="checkpoint_id"):
        torch_dcp.save(dict(STATE))


def test_failures_are_caught_as_torchs_callers_catch_them(tmp_path: Path) -> None:
    dcp.install()
    with pytest.raises(torch_dcp.CheckpointException):
        torch_dcp.load(dict(STATE), checkpoint_id=tmp_path / "nothing here")


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )


def test_import_varve_imports_torch_only_where_varve_dcp_is_1() -> None:
    code = "import sys, varve; print('torch' in sys.modules)"
    assert python(code, VARVE_DCP="").stdout == "False\n"
    assert python(code, VARVE_DCP="0").stdout == "False\n"
    code += "; import torch.distributed.checkpoint as dcp; print(dcp.save.__code__.co_filename)"
    lines = python(code, VARVE_DCP="1").stdout.splitlines()
    assert lines[0] == "True" and lines[1].endswith("_install.py")


def test_another_value_of_varve_dcp_is_refused() -> None:
    run = python("import varve", VARVE_DCP="yes")
    assert run.returncode != 0
    assert 'VARVE_DCP="yes" in the environment: want "1"' in run.stderr


def test_varve_dcp_without_torch_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import varve"
    run = python(code, VARVE_DCP="1")
    assert 'pip install "varve[torch]"' in run.stderr


@pytest.mark.slow
def test_a_library_on_two_ranks_saves_by_varve_and_loads_on_three(tmp_path: Path) -> None:
    saved = {"save": True, "writer": True, "async": True, "torch": False}
    assert run_ranks(2, jobs.library_saves, str(tmp_path)) == [saved] * 2
    assert run_ranks(3, jobs.library_loads, str(tmp_path)) == [[]] * 3
