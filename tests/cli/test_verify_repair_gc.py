"""`varve verify`, `repair` and `gc` find and mend damage, and touch nothing else."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from cli_support import contents, data_file, flip_a_bit, make_stale, save_as_rank

import varve

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
#: Four files of torch's.
GOLDEN_DCP = GOLDEN / "olmo" / "core-step10-fsdp2" / "step10" / "model_and_optim"

# ---- verify and repair ----


def test_verify_reads_every_byte_of_a_clean_checkpoint(run, run_json, checkpoint):
    assert f"{checkpoint}: clean, read 2.3 MiB" in run("verify", checkpoint).stdout
    found = run_json("verify", checkpoint)
    assert found["clean"] and found["damages"] == []
    assert found["bytes_checked"] == data_file(checkpoint).stat().st_size


def test_verify_names_file_place_and_tensor_of_a_flipped_bit(run, run_json, checkpoint):
    chunk = run_json("inspect", checkpoint, "--tensor", "model.weight")["chunks"][0]
    offset = chunk["begin"] + 1_500_000
    flip_a_bit(data_file(checkpoint), offset)

    found = run_json("verify", checkpoint, code=1)
    (damage,) = found["damages"]
    assert not found["clean"]
    assert damage["file"] == chunk["file"]
    assert damage["begin"] <= offset < damage["end"]
    assert damage["end"] - damage["begin"] <= 1 << 20
    assert damage["tensors"] == ["model.weight"]

    text = run("verify", checkpoint, code=1).stdout
    where = f"{chunk['file']} [{damage['begin']}, {damage['end']}): checksum mismatch"
    assert f"damaged: {where}" in text and "holds model.weight" in text


def test_verify_of_what_cannot_be_examined_is_an_error(run, folder):
    assert "no checkpoint at" in run("verify", folder / "absent", code=2).stderr
    save_as_rank(0, 2, folder / "step-1")
    assert "rank 1" in run("verify", folder / "step-1", code=2).stderr


@pytest.mark.parametrize("lost", [["manifest.bin"], ["varve.json"], ["manifest.bin", "varve.json"]])
def test_repair_rebuilds_the_index_byte_for_byte(run, run_json, checkpoint, lost):
    before = contents(checkpoint)
    for name in lost:
        (checkpoint / name).unlink()
    assert run_json("repair", checkpoint)["changed"]
    assert contents(checkpoint) == before
    run("verify", checkpoint)
    assert "nothing to do" in run("repair", checkpoint).stdout
    assert contents(checkpoint) == before


def test_a_lost_manifest_is_damage_that_verify_tells_how_to_mend(run, checkpoint):
    (checkpoint / "manifest.bin").unlink()
    assert "varve repair" in run("verify", checkpoint, code=1).stdout


def test_repair_seals_what_uncoordinated_ranks_saved(run, run_json, folder):
    path = folder / "step-1"
    save_as_rank(0, 2, path)
    assert "rank 1" in run("repair", path, code=2).stderr
    save_as_rank(1, 2, path)
    run("repair", path)
    assert (path / "varve.json").exists()
    assert run_json("verify", path)["clean"]
    assert varve.read(path)["step"] == 1


def test_repair_refuses_a_damaged_header(run, checkpoint):
    (checkpoint / "manifest.bin").unlink()
    flip_a_bit(data_file(checkpoint), 40)
    before = contents(checkpoint)
    assert data_file(checkpoint).name in run("repair", checkpoint, code=1).stderr
    assert contents(checkpoint) == before


def test_repair_says_that_a_checkpoint_of_one_file_has_no_index(run, folder):
    folder.mkdir(exist_ok=True)
    model = folder / "model.pt"
    model.write_bytes(b"x")
    assert "it is a file" in run("repair", model, code=2).stderr
    assert [entry.name for entry in folder.iterdir()] == ["model.pt"]


# ---- gc ----


def test_gc_dry_run_removes_nothing_and_gc_only_stale_files(run, run_json, folder, checkpoint):
    whole = contents(folder)
    staging = make_stale(folder, "step-00000020")
    (folder / ".unrelated").mkdir()
    (folder / "notes.txt").write_text("mine")
    before = contents(folder)

    dry = run_json("gc", folder, "--dry-run")
    assert dry["dry_run"] and dry["removed"] == [str(staging)] and dry["bytes"] == 5000
    assert f"would remove {staging}" in run("gc", folder, "--dry-run").stdout
    assert contents(folder) == before

    assert f"removed {staging}" in run("gc", folder).stdout
    after = contents(folder)
    assert after.pop("notes.txt") and after.pop(".unrelated") == ""
    assert after == whole
    assert run("gc", folder).stdout == "nothing to remove\n"


def test_gc_leaves_a_live_save_alone(run_json, folder):
    staging = make_stale(folder, "step-1")
    with (folder / ".step-1.varve-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = run_json("gc", folder)
        assert found["removed"] == [] and str(staging) in found["kept"]
        assert staging.exists()
    assert str(staging) in run_json("gc", folder)["removed"]


def test_gc_gives_a_displaced_checkpoint_its_name_back(run, run_json, folder, checkpoint):
    before = contents(checkpoint)
    checkpoint.rename(folder / f".{checkpoint.name}.varve-old")
    assert run_json("gc", folder, "--dry-run")["recovered"] == [str(checkpoint)]
    assert not checkpoint.exists()
    assert f"recovered {checkpoint}" in run("gc", folder).stdout
    assert contents(checkpoint) == before


def test_gc_removes_what_a_dead_repair_has_left(run_json, folder, checkpoint):
    part = checkpoint / ".manifest.bin.varve-part"
    part.write_bytes(b"half")
    assert run_json("gc", folder)["removed"] == [str(part)]
    assert not part.exists() and varve.verify(checkpoint) == []


def test_gc_removes_the_part_of_a_pin_whose_writer_died_after_a_day(run_json, folder, checkpoint):
    part = checkpoint / ".varve-pinned.txt.varve-part"
    part.write_bytes(b"for the pa")
    assert run_json("gc", folder)["kept"] == [str(part)]
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(part, (two_days_ago, two_days_ago))
    assert run_json("gc", folder)["removed"] == [str(part)]
    assert not part.exists() and varve.verify(checkpoint) == []


# ---- verify of other formats ----


def test_verify_of_a_folder_names_every_file_that_is_missing_or_damaged(run, run_json, folder):
    state = {f"t{i}": np.full(1 << 16, i, np.float32) for i in range(6)}
    varve.save(state, folder / "source")
    options = ["--to", "hf", "--everything", "--shard-size", 300_000]
    run("convert", folder / "source", folder / "hf", *options)
    files = sorted((folder / "hf").glob("model-*.safetensors"))
    assert len(files) == 6
    files[1].unlink()
    os.truncate(files[2], 1000)
    flip_a_bit(files[4], 100_000)
    damaged = {
        "model-00002-of-00006.safetensors": ["t1"],
        "model-00003-of-00006.safetensors": ["t2"],
        "model-00005-of-00006.safetensors": ["t4"],
    }
    found = run_json("verify", folder / "hf", code=1)
    assert {one["file"]: one["tensors"] for one in found["damages"]} == damaged
    assert "is missing" in found["damages"][0]["problem"]
    assert found["bytes_checked"] > 4 * 4 * (1 << 16) * 0.9

    (folder / "hf" / "model.varve-checksums.json").unlink()  # As other software writes a folder.
    found = run_json("verify", folder / "hf", code=1)
    assert [one["file"] for one in found["damages"]] == list(damaged)[:2]
    for file in files:
        file.unlink(missing_ok=True)
    assert len(run_json("verify", folder / "hf", code=1)["damages"]) == 6


def test_verify_of_dcp_names_every_file_that_is_missing_or_short(run, run_json, folder):
    path = folder / "dcp"
    shutil.copytree(GOLDEN_DCP, path)
    files = sorted(path.glob("*.distcp"))
    assert len(files) >= 3
    clean = run_json("verify", path)["bytes_checked"]
    files[0].unlink()
    os.truncate(files[1], files[1].stat().st_size // 2)
    found = run_json("verify", path, code=1)
    missing, short = (one for one in found["damages"] if one["file"])
    assert (missing["file"], short["file"]) == (files[0].name, files[1].name)
    assert "is missing" in missing["problem"] and len(missing["tensors"]) > 0
    assert short["begin"] == files[1].stat().st_size and len(short["tensors"]) > 0
    assert 0 < found["bytes_checked"] < clean
