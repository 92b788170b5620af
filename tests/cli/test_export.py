"""`varve export` writes one file that other readers open, or none."""

from __future__ import annotations

import os

import numpy as np
import pytest
import safetensors.numpy
from cli_support import data_file, flip_a_bit

import varve


def test_export_opens_with_safetensors(run, checkpoint, state, tmp_path):
    out = tmp_path / "model.safetensors"
    text = run("export", checkpoint, out).stdout
    assert "3 tensors" in text and "skipped wave" in text
    opened = safetensors.numpy.load_file(out)
    assert sorted(opened) == ["model.bias", "model.weight", "optim.count"]
    np.testing.assert_array_equal(opened["model.weight"], state["model"]["weight"])
    np.testing.assert_array_equal(opened["optim.count"], state["optim"]["count"])


def test_export_writes_no_file_of_the_name_that_means_the_output(
    run, checkpoint, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert "give its name" in run("export", checkpoint, "-", code=2).stderr
    assert sorted(tmp_path.iterdir()) == before


def test_export_takes_what_the_globs_name(run_json, checkpoint, tmp_path):
    out = tmp_path / "some.safetensors"
    found = run_json("export", "--include", "*.bias", "--include=optim.*", checkpoint, out)
    assert found["tensors"] == 2 and found["bytes"] == out.stat().st_size
    assert sorted(safetensors.numpy.load_file(out)) == ["model.bias", "optim.count"]


def test_export_replaces_a_file_only_when_told(run, checkpoint, tmp_path):
    out = tmp_path / "model.safetensors"
    out.write_text("precious")
    assert "exists" in run("export", checkpoint, out, code=2).stderr
    assert out.read_text() == "precious"
    run("export", checkpoint, out, "--overwrite")
    assert "model.weight" in safetensors.numpy.load_file(out)


def test_export_of_damaged_bytes_fails_and_leaves_nothing(run, checkpoint, tmp_path):
    flip_a_bit(data_file(checkpoint), 2_000_000)
    exports = tmp_path / "exports"
    exports.mkdir()
    error = run("export", checkpoint, exports / "model.safetensors", code=1).stderr
    assert "model.weight" in error and "checksum mismatch" in error
    assert list(exports.iterdir()) == []


def test_export_of_nothing_is_an_error(run, checkpoint, tmp_path):
    out = tmp_path / "none.safetensors"
    assert 'matches "x*"' in run("export", checkpoint, out, "--include", "x*", code=2).stderr
    assert not out.exists()


def test_a_glob_that_matches_nothing_names_the_nearest(run, tmp_path):
    varve.save({"model": {"layers": {"0": np.ones(3)}}}, tmp_path / "c")
    out = tmp_path / "m.safetensors"
    failed = run("export", tmp_path / "c", out, "--include", "modle.layers.*", code=2)
    assert 'matches "modle.layers.*"; the nearest is "model.layers.0"' in failed.stderr
    assert f"export {tmp_path / 'c'}" in failed.stderr and not out.exists()


@pytest.mark.parametrize("verb", [["export"], ["convert", "--to", "torch"]])
@pytest.mark.parametrize("options", [[], ["--overwrite"]])
def test_a_target_that_is_a_directory_is_refused_before_any_work(
    verb, options, run, checkpoint, folder
):
    (folder / "there").mkdir()
    flip_a_bit(data_file(checkpoint), 100_000)  # Which any work would find.
    done = run(verb[0], checkpoint, folder / "there", *verb[1:], *options, code=2)
    assert "there is a directory" in done.stderr
    assert str(folder / "there" / "model.") in done.stderr


def test_too_little_memory_is_refused_with_the_least(run, checkpoint, folder):
    for verb in (["convert", "--to", "varve"], ["unshard"]):
        done = run(verb[0], checkpoint, folder / "out", *verb[1:], "--memory", 1, code=2)
        assert "--memory 1: the work needs at least 8MiB" in done.stderr
    run("convert", checkpoint, folder / "out", "--to", "varve", "--memory", "8MiB")


WRITES_ONE_FILE = pytest.mark.parametrize(
    "verb", [["export"], ["convert", "--to", "torch"], ["convert", "--to", "safetensors"]]
)


@WRITES_ONE_FILE
@pytest.mark.parametrize("options", [[], ["--overwrite"]])
def test_a_target_that_is_no_regular_file_is_not_replaced(verb, options, run, checkpoint, folder):
    os.mkfifo(folder / "pipe")  # A device such as /dev/null likewise.
    done = run(verb[0], checkpoint, folder / "pipe", *verb[1:], *options, code=2)
    assert f"open {folder / 'pipe'}: not a regular file" in done.stderr
    assert (folder / "pipe").is_fifo()


@WRITES_ONE_FILE
@pytest.mark.parametrize("format", ["varve", "dcp"])
def test_a_file_of_a_checkpoint_is_not_replaced_by_an_export(verb, format, run, checkpoint, folder):
    run("convert", checkpoint, folder / "other", "--to", format)
    for part in list((folder / "other").iterdir()):
        done = run(verb[0], checkpoint, part, *verb[1:], "--overwrite", code=2)
        assert f"{part} is part of the checkpoint {folder / 'other'}" in done.stderr
    run("diff", checkpoint, folder / "other")
    beside = folder / "other" / "exported.safetensors"
    for _ in range(2):
        run(verb[0], checkpoint, beside, *verb[1:], "--overwrite")
