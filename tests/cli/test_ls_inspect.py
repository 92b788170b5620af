"""`varve ls` and `varve inspect` tell what is there, and in which state."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from cli_support import data_file, flip_a_bit, make_stale, save_as_rank

import varve

# ---- ls ----


def test_ls_lists_checkpoints_by_step(run, run_json, folder, state):
    for step in (9, 100, 20):
        varve.save(state, folder / f"step-{step}")

    lines = run("ls", folder).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["name", "step-9", "step-20", "step-100"]
    assert lines[1].split() == ["step-9", "varve", "9", "2.3", "MiB", "1", "whole"]

    entries = run_json("ls", folder)
    assert [entry["step"] for entry in entries] == [9, 20, 100]
    assert {entry["state"] for entry in entries} == {"whole"}
    size = data_file(folder / "step-9").stat().st_size
    assert entries[0]["bytes"] == size and entries[0]["world_size"] == 1
    assert len({entry["save_id"] for entry in entries}) == 3


def test_ls_of_a_checkpoint_lists_that_one(run_json, checkpoint):
    (entry,) = run_json("ls", checkpoint)
    assert (entry["name"], entry["state"]) == ("step-00000010", "whole")


def test_ls_tells_what_is_pinned_and_why(run, run_json, folder, state):
    for name in ("step-1", "step-2", "step-3"):
        varve.save(state, folder / name)
    run("pin", folder / "step-1", "--why", "for the\npaper")
    run("pin", folder / "step-2")

    assert [entry["pin"] for entry in run_json("ls", folder)] == ["for the\npaper", "", None]
    lines = run("ls", folder).stdout.splitlines()
    assert len(lines) == 4
    assert "whole, pinned: for the" in lines[1]
    assert lines[2].endswith("whole, pinned") and lines[3].endswith("whole")
    (entry,) = run_json("ls", folder / "step-1")
    assert entry["pin"] == "for the\npaper"
    assert [entry["pin"] for entry in run_json("ls", folder.as_uri())] == [
        "for the\npaper",
        "",
        None,
    ]


def test_ls_of_a_folder_without_checkpoints_says_so_and_succeeds(run, run_json, folder):
    (folder / "logs").mkdir()
    (folder / "notes.txt").write_text("no checkpoint")
    assert run("ls", folder).stdout == f"no checkpoints in {folder}\n"
    assert run_json("ls", folder) == []


def test_ls_tells_the_states_apart(run, run_json, folder, state):
    for name in ("whole-1", "damaged-2", "aside-3"):
        varve.save(state, folder / name)
    data_file(folder / "damaged-2").unlink()
    (folder / "aside-3").rename(folder / ".aside-3.varve-old")
    save_as_rank(0, 3, folder / "incomplete-4")
    make_stale(folder, "dead-5")
    make_stale(folder, "live-6")
    with (folder / ".live-6.varve-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # As a save does that is under way.
        entries = run_json("ls", folder)
        text = run("ls", folder).stdout
    assert [entry["state"] for entry in entries] == [
        "whole",
        "damaged",
        "displaced",
        "incomplete",
        "stale",
        "saving",
    ]
    details = [entry["detail"] for entry in entries]
    assert details[0] == ""
    assert details[1] == "data-00000-of-00001.safetensors is missing"
    assert details[3] == "files of ranks 1, 2 are missing"
    assert all(detail in text for detail in details)


@pytest.mark.parametrize(
    ("files", "format", "detail"),
    [
        (
            {".metadata": b"junk", "__0_0.distcp": b"1234"},
            "dcp",
            ".metadata: this index cannot be read",
        ),
        (
            {"model.safetensors.index.json": b'{"weight_map": 3}', "a.safetensors": b"x"},
            "safetensors",
            "model.safetensors.index.json: malformed safetensors index",
        ),
        ({"model.safetensors": b"junk"}, "safetensors", "malformed safetensors header"),
        ({"pytorch_model.bin": b"junk"}, "torch", "pytorch_model.bin: torch.save archive"),
    ],
    ids=["dcp", "hf", "safetensors", "torch"],
)
def test_ls_says_what_it_cannot_read_and_how_large_it_is(
    files, format, detail, run, run_json, folder
):
    (folder / "step-3").mkdir()
    for name, content in files.items():
        (folder / "step-3" / name).write_bytes(content)
    (entry,) = run_json("ls", folder)
    size = sum(map(len, files.values()))
    assert (entry["format"], entry["state"], entry["bytes"]) == (format, "damaged", size)
    assert detail in entry["detail"]
    line = run("ls", folder).stdout.splitlines()[1]
    assert line.split()[1] == format and f"{size} B" in line and detail in line


@pytest.mark.parametrize("format", ["torch", "safetensors"])
def test_ls_of_a_checkpoint_of_one_file_lists_that_one(format, run, run_json, checkpoint, folder):
    run("convert", checkpoint, folder / "model-7", "--to", format)
    [entry] = run_json("ls", folder / "model-7")
    assert entry["name"] == "model-7" and entry["state"] == "whole" and entry["pin"] is None
    assert entry["format"] == format and entry["step"] == 7
    assert run("latest", folder / "model-7").stdout == f"{folder / 'model-7'}\n"


def test_ls_of_what_is_no_folder_is_an_error(run, folder):
    file = folder / "file"
    file.write_text("")
    for path in (folder / "absent", file):
        done = run("ls", path, code=2)
        assert done.stdout == ""
        assert done.stderr.startswith("varve: ") and str(path) in done.stderr


# ---- inspect ----


def test_inspect_shows_tensors_and_values(run, checkpoint):
    text = run("inspect", checkpoint).stdout
    rows = {line.split()[0]: line for line in text.splitlines() if line}
    assert rows["model.weight"].split() == [
        "model.weight", "float32", "[600,", "1000]", "1", "2.3", "MiB",
    ]  # fmt: skip
    assert "'saved by a test'" in rows["note"] and rows["step"].split()[1] == "10"
    assert "4 tensors" in rows["holds"] and "2 objects" in rows["holds"]


def test_inspect_as_json_holds_the_same(run_json, checkpoint):
    found = run_json("inspect", checkpoint)
    assert (found["format"], found["format_version"], found["world_size"]) == ("varve", 5, 1)
    (file,) = found["files"]
    assert file["bytes"] == found["total_bytes"] == data_file(checkpoint).stat().st_size
    tensors = {tensor["fqn"]: tensor for tensor in found["tensors"]}
    assert tensors["model.weight"]["shape"] == [600, 1000]
    assert tensors["wave"]["dtype"] == "complex128"
    assert found["tensor_bytes"] == sum(tensor["bytes"] for tensor in found["tensors"])
    values = {o["fqn"]: o["value"] for o in found["objects"]}
    assert values == {"note": "'saved by a test'", "step": "10"}


def test_inspect_tensor_says_where_its_bytes_are(run, run_json, checkpoint, state):
    found = run_json("inspect", checkpoint, "--tensor", "model.bias")
    (chunk,) = found["chunks"]
    assert (chunk["offsets"], chunk["sizes"]) == ([0], [7])
    stored = (checkpoint / chunk["file"]).read_bytes()[chunk["begin"] : chunk["end"]]
    assert stored == state["model"]["bias"].tobytes()
    text = run("inspect", checkpoint, "--tensor", "model.bias").stdout
    assert chunk["xxh3"] in text and f"[{chunk['begin']}, {chunk['end']})" in text


def test_inspect_of_an_unknown_tensor_names_it(run, checkpoint):
    assert 'no tensor "model.wieght"' in run(
        "inspect", checkpoint, "--tensor", "model.wieght", code=2
    ).stderr  # fmt: skip
    assert "not a tensor" in run("inspect", checkpoint, "--tensor", "step", code=2).stderr


def test_inspect_shows_the_rest_when_a_value_is_damaged(run_json, checkpoint):
    data = data_file(checkpoint).read_bytes()
    flip_a_bit(data_file(checkpoint), data.rindex(b"saved by a test"))
    found = run_json("inspect", checkpoint)
    assert len(found["tensors"]) == 4
    note = next(o for o in found["objects"] if o["fqn"] == "note")
    assert note["value"] is None and "checksum mismatch" in note["problem"]


OLMO = Path(__file__).resolve().parents[1] / "golden" / "olmo"


@pytest.mark.parametrize(
    ("case", "fqn", "stored"),
    [
        ("unsharded-ids", "optim.state.transformer.wte.weight.exp_avg", "optim.state.9.exp_avg"),
        (
            "unsharded-fqn-prefixed",
            "model.transformer.wte.weight",
            "model._fsdp_wrapped_module.transformer.wte.weight",
        ),
    ],
)
def test_inspect_shows_what_other_software_stored(case, fqn, stored, run, run_json):
    tensors = {tensor["fqn"]: tensor for tensor in run_json("inspect", OLMO / case)["tensors"]}
    assert tensors[fqn]["stored_name"] == stored
    rows = {
        line.split()[0]: line for line in run("inspect", OLMO / case).stdout.splitlines() if line
    }
    assert rows["tensor"].endswith("stored as") and rows[fqn].split()[-1] == stored
    assert run_json("inspect", OLMO / case, "--tensor", fqn)["stored_name"] == stored
    assert f"stored  {stored}\n" in run("inspect", OLMO / case, "--tensor", fqn).stdout


def test_inspect_shows_stored_names_only_where_they_differ(run, run_json, checkpoint):
    assert "stored as" not in run("inspect", checkpoint).stdout
    found = run_json("inspect", checkpoint)
    assert {entry["stored_name"] for entry in found["tensors"] + found["objects"]} == {None}


def test_inspect_names_the_class_of_a_tensor_that_is_made_of_others(run, run_json, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import varve.torch

    path = tmp_path / "c"
    varve.torch.save({"m": {"w": torch.eye(3).to_sparse()}, "p": torch.ones(2)}, path)
    lines = [line.split() for line in run("inspect", path).stdout.splitlines()]
    assert ["m.w", "torch.sparse_coo", "indices,", "values"] in lines
    (wrapped,) = run_json("inspect", path)["wrapped"]
    assert wrapped == {"fqn": "m.w", "class": "torch.sparse_coo", "inner": ["indices", "values"]}


def test_an_error_of_a_checkpoint_of_one_file_names_it_once(run, folder):
    folder.mkdir(exist_ok=True)
    header = b"\x05" + bytes(7)  # Of a header of five bytes.
    for name, content in {"a.pt": b"PK\3\4junk", "b.safetensors": header + b'{"a":'}.items():
        (folder / name).write_bytes(content)
        error = run("inspect", folder / name, code=1).stderr
        assert error.count(name) == 1 and f"{folder / name}: " in error
