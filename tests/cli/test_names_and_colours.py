"""What people see: natural order, steps, foreign files, suggestions, colours, time left."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import tarfile
import zipfile

import numpy as np
import pytest

import varve

# ---- order and steps ----


def test_inspect_is_in_natural_order_with_totals_of_subtrees(run, run_json, folder):
    state = {"model": {"layers": {str(i): {"w": np.zeros(8)} for i in (10, 2, 1)}}, "step": 3}
    varve.save(state, folder / "step-3")

    names = [f"model.layers.{i}.w" for i in (1, 2, 10)]
    found = run_json("inspect", folder / "step-3")
    assert [tensor["fqn"] for tensor in found["tensors"]] == names
    assert found["subtrees"] == [
        {"name": "model", "tensors": 3, "bytes": 192},
        {"name": "model.layers", "tensors": 3, "bytes": 192},
    ]
    text = run("inspect", folder / "step-3").stdout
    assert [text.index(name) for name in names] == sorted(text.index(name) for name in names)
    rows = [line.split() for line in text.splitlines()]
    assert ["model.layers", "3", "192", "B"] in rows


def test_ls_reads_the_step_after_its_word_and_sorts_names_naturally(run_json, folder):
    steps = {
        "epoch=3-step=4000": 4000,
        "global_step120-ws2": 120,
        "checkpoint-500": 500,
        "best-1.5": None,
        "run-20261122": None,
        "v10": None,
        "v9": None,
    }
    for name in steps:
        varve.save({"x": np.zeros(1)}, folder / name)
    entries = run_json("ls", folder)
    assert {entry["name"]: entry["step"] for entry in entries} == steps
    assert [entry["name"] for entry in entries] == [
        "best-1.5", "run-20261122", "v9", "v10",
        "global_step120-ws2", "checkpoint-500", "epoch=3-step=4000",
    ]  # fmt: skip


def test_names_that_turn_the_direction_of_text_are_escaped(run, folder):
    varve.save({"a\u202eb": np.zeros(1)}, folder / "step-1\u202e")
    assert "\u202e" not in run("ls", folder).stdout + run("inspect", folder / "step-1\u202e").stdout
    assert "\\u202e" in run("ls", folder).stdout


# ---- files of other software ----


def _npz(compressed: bool) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, a=np.zeros(9), b=np.ones(3))
    return out.getvalue()


def _npy() -> bytes:
    out = io.BytesIO()
    np.save(out, np.zeros(100))
    return out.getvalue()


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("notes/a.txt", "nothing")
    return out.getvalue()


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        file.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
    return out.getvalue()


FOREIGN = {
    "x.npy": (_npy(), "a NumPy array (.npy)"),
    "x.npz": (_npz(False), "NumPy arrays (.npz)"),
    "compressed.npz": (_npz(True), "NumPy arrays (.npz)"),
    "x.gguf": (b"GGUF\x03\0\0\0" + bytes(64), "a GGUF model"),
    "x.h5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "an HDF5 file"),
    "x.onnx": (b"\x08\x08\x12\x07pytorch" + bytes(64), "an ONNX model"),
    "x.zip": (_zip(), "a zip archive"),
    "x.tar": (_tar(), "a tar archive"),
    "x.txt": ("a line of text, ünï\n".encode() * 9, "text"),
    "config.json": (b'{"hidden": 8, "layers": 2}', "JSON text"),
    "empty": (b"", "an empty file"),
    "noise": (bytes(range(128, 256)) * 3 + b"\0\1\2", "of no kind that Varve knows"),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("verb", ["inspect", "ls", "verify"])
def test_a_file_that_is_no_checkpoint_is_named_for_what_it_is(run, folder, name, verb):
    content, kind = FOREIGN[name]
    (folder / name).write_bytes(content)
    error = run(verb, folder / name, code=2).stderr
    assert f"{folder / name} is not a checkpoint: " in error and kind in error
    with pytest.raises(varve.CheckpointNotFoundError, match="is not a checkpoint"):
        varve.read(folder / name)


def test_a_damaged_file_of_a_known_kind_is_damage(run, folder):
    header = b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'
    cut = len(header).to_bytes(8, "little") + header + bytes(7)
    (folder / "cut.safetensors").write_bytes(cut)
    run("inspect", folder / "cut.safetensors", code=1)


# ---- usage ----


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["lss"], '"ls"'),
        (["verfiy", "x"], '"verify"'),
        (["insp", "x"], '"inspect"'),
        (["agent", "stats"], '"status"'),
        (["ls", "--jsn", "x"], '"--json"'),
        (["convert", "a", "b", "--too", "hf"], '"--to"'),
        (["convert", "a", "b", "--to", "saftensors"], '"safetensors"'),
    ],
)
def test_a_misspelt_word_is_one_line_with_the_nearest_right_one(run, arguments, meant):
    error = run(*arguments, code=2).stderr
    assert f"did you mean {meant}?" in error and "--help" in error
    assert error.count("\n") == 1


def test_a_word_that_is_near_nothing_lists_what_there_is(run):
    error = run("frobnicate", code=2).stderr
    assert "inspect" in error and "did you mean" not in error and error.count("\n") == 1


# ---- terminals ----


def _on_a_terminal(arguments: list[object], **environment: str) -> str:
    """Return what a command writes to a terminal, both streams."""
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [str(word) for word in arguments],
        stdout=end,
        stderr=end,
        env={"TERM": "xterm", **environment},
    ) as process:
        os.close(end)
        shown = b""
        while True:
            try:
                more = os.read(terminal, 1 << 16)
            except OSError:  # The other end is closed.
                break
            if not more:
                break
            shown += more
        process.wait(60)
    os.close(terminal)
    return shown.decode()


def test_states_are_coloured_on_a_terminal_and_nowhere_else(run, binary, folder, state):
    varve.save(state, folder / "step-1")
    green = "\x1b[32mwhole\x1b[0m"
    assert green in _on_a_terminal([binary, "ls", folder])
    assert "\x1b[32mclean" in _on_a_terminal([binary, "verify", folder / "step-1"])
    assert "\x1b[31mvarve:" in _on_a_terminal([binary, "ls", folder / "absent"])
    for refusing in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b[3" not in _on_a_terminal([binary, "ls", folder], **refusing)
    assert green in _on_a_terminal([binary, "ls", folder], NO_COLOR="")
    assert "\x1b" not in run("ls", folder).stdout
