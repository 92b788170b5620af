"""What all verbs of the command line have in common: usage, exit codes, output that is safe to read."""

from __future__ import annotations

import errno
import os
import pty
import shutil
import subprocess
import time

import numpy as np
import pytest

import varve


@pytest.mark.parametrize("verb", ["ls", "inspect", "verify", "repair", "gc", "export"])
def test_every_verb_explains_itself(run, verb):
    text = run(verb, "--help").stdout
    assert f"Usage: varve {verb}" in text and "--json" in text
    assert verb in run("--help").stdout


def test_help_documents_the_exit_codes(run):
    text = run("--help").stdout
    assert "Exit codes:" in text and "damage was found" in text


def test_version_is_that_of_the_package(run):
    assert run("--version").stdout.startswith(f"varve {varve.__version__} ")


@pytest.mark.parametrize(
    "arguments", [[], ["bogus"], ["ls"], ["ls", "a", "b"], ["ls", "--bad", "a"], ["export", "a"]]
)
def test_wrong_usage_exits_with_2_and_points_to_help(run, arguments):
    done = run(*arguments, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("varve: ") and "--help" in done.stderr


def test_hostile_names_disturb_neither_terminal_nor_json(run, run_json, folder):
    path = folder / "step-1"
    varve.save({'a"\\\n\x1b[2J': np.zeros(2), "ünï": "\x1b]0;title\x07"}, path)
    os.rename(path, os.fsencode(folder) + b"/step-\xff-1")

    assert run_json("ls", folder)[0]["name"] == "step-\ufffd-1"
    assert "\x1b" not in run("ls", folder).stdout
    os.rename(os.fsencode(folder) + b"/step-\xff-1", path)
    assert run_json("inspect", path)["tensors"][0]["fqn"] == 'a"\\\n\x1b[2J'
    text = run("inspect", path).stdout
    assert "\x1b" not in text and 'a"\\\\x0a\\x1b[2J' in text and "ünï" in text


def test_a_reader_that_stops_listening_is_no_error(binary, checkpoint):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [binary, "inspect", checkpoint], stdout=write, stderr=subprocess.PIPE, timeout=600
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_output_that_cannot_be_written_is_an_error(binary, checkpoint):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [binary, "ls", checkpoint], stdout=full, stderr=subprocess.PIPE, timeout=600
        )
    assert done.returncode == 2 and b"No space left" in done.stderr


def read_all(terminal: int) -> bytes:
    """All that was written to a terminal whose other end is closed; Linux then says EIO."""
    shown = b""
    try:
        while more := os.read(terminal, 1 << 16):
            shown += more
    except OSError as error:
        assert error.errno == errno.EIO
    finally:
        os.close(terminal)
    return shown


@pytest.mark.parametrize("verb", ["verify", "export"])
def test_long_verbs_draw_a_bar_on_a_terminal_and_take_it_away(binary, checkpoint, tmp_path, verb):
    arguments = [binary, verb, checkpoint] + [tmp_path / "out.safetensors"] * (verb == "export")
    terminal, end = pty.openpty()
    subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=end, timeout=600, check=True)
    os.close(end)
    shown = read_all(terminal).decode()
    assert f"{verb} [" in shown and "%" in shown
    assert shown.endswith("\r\x1b[K")

    done = subprocess.run([*arguments, *["--overwrite"] * (verb == "export")], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_it_starts_without_python_or_an_environment(binary, record_property):
    """Reports the start-up time; how long a machine takes under load is not a claim to test."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        subprocess.run([binary, "--version"], env={}, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - start)
    record_property("startup_ms", round(1000 * min(times), 1))
    print(f"varve --version: {1000 * min(times):.1f} ms at best of 10")
    if ldd := shutil.which("ldd"):
        linked = subprocess.run([ldd, binary], capture_output=True, text=True).stdout
        assert "libpython" not in linked


def test_errors_spell_options_as_flags(run, checkpoint, tmp_path):
    out = tmp_path / "out.safetensors"
    run("convert", checkpoint, out, "--to", "safetensors")
    done = run("convert", checkpoint, out, "--to", "safetensors", code=2)
    assert "pass --overwrite to replace it" in done.stderr
    done = run("convert", checkpoint, checkpoint, "--to", "varve", code=2)
    assert "pass --overwrite to replace it" in done.stderr


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_a_directory_of_checkpoints_is_named_as_one(run, checkpoint, verb):
    done = run(verb, checkpoint.parent, code=2)
    assert "a directory of 1 checkpoint" in done.stderr and "varve latest" in done.stderr
