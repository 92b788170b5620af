"""Saves with format="hf": every rank writes its parts of whole-tensor safetensors files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import programs
import pytest
import torch
from command_line import command
from hf_jobs import llama, peak, refused, save_llama, save_random_states, whole_state
from ranks import run_ranks
from safetensors.torch import load_file

import varve
import varve.torch
from varve.torch import async_save, save


def read_by_safetensors(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors, each read from the file that the index names."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {name: load_file(folder / name) for name in set(index["weight_map"].values())}
    assert sum(len(tensors) for tensors in files.values()) == len(index["weight_map"])
    return {fqn: files[name][fqn] for fqn, name in index["weight_map"].items()}


def assert_same(got: dict[str, torch.Tensor], wanted: dict[str, Any]) -> None:
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape, name
        assert torch.equal(got[name], tensor), name


@pytest.mark.parametrize("executor", [None, "thread", "process"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_sharding_becomes_whole_tensors(
    agent: str, tmp_path: Path, size: int, executor: str | None
) -> None:
    seeds = list(range(100 * size, 100 * size + 12))
    run_ranks(size, save_random_states, str(tmp_path), seeds, executor)
    for seed in seeds:
        folder = tmp_path / str(seed)
        assert_same(read_by_safetensors(folder), whole_state(seed))
        assert varve.verify(folder) == []


def test_a_bit_that_flips_is_named_and_not_loaded(tmp_path: Path) -> None:
    state = {"a": torch.arange(3000.0), "b": torch.arange(5)}
    save(state, tmp_path / "m", format="hf")
    file = tmp_path / "m/model.safetensors"
    whole = file.read_bytes()
    for at in (9, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        damage = varve.verify(tmp_path / "m")
        assert damage and "model.safetensors" in str(damage[0])
        assert at == 9 or "a" in damage[0].tensors
    with pytest.raises(varve.CorruptCheckpointError, match=r"model\.safetensors"):
        varve.torch.load({"b": torch.zeros(5, dtype=torch.int64)}, tmp_path / "m")
    file.write_bytes(whole[:-8])
    with pytest.raises(varve.CorruptCheckpointError, match="model"):
        varve.torch.read(tmp_path / "m")


@pytest.mark.parametrize("how", ["save", "thread", "process"])
def test_transformers_opens_what_two_ranks_of_fsdp_save(
    agent: str, tmp_path: Path, how: str
) -> None:
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "m"
    loaded = run_ranks(2, save_llama, str(folder), how)
    original = llama()
    weights = {k: v for k, v in original.state_dict().items() if k != "lm_head.weight"}
    assert [one["loaded"] for one in loaded] == [len(weights)] * 2
    assert_same(read_by_safetensors(folder), weights)  # Tied weights once, as the embedding.
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    opened = AutoModelForCausalLM.from_pretrained(folder)
    assert opened.lm_head.weight.data_ptr() == opened.model.embed_tokens.weight.data_ptr()
    assert_same(opened.state_dict(), original.state_dict())


def test_names_dtype_and_configuration_are_options(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "base/tokenizer.json").write_text("{}")
    (tmp_path / "base/notes.txt").write_text("mine")
    state = {"module": {"a": torch.ones(3), "step": torch.tensor(3), "ema": torch.zeros(2)}}
    names = {"module.ema": "ema", "module.": "model."}
    hf = varve.HfOptions(rename=names, dtype="bfloat16", config=tmp_path / "base")
    save(state, tmp_path / "m", format="hf", hf=hf, files={"config.json": b'{"mine": 1}'})
    wanted = {
        "model.a": torch.ones(3, dtype=torch.bfloat16),
        "model.step": torch.tensor(3),
        "ema": torch.zeros(2, dtype=torch.bfloat16),
    }
    assert_same(read_by_safetensors(tmp_path / "m"), wanted)
    assert (tmp_path / "m/config.json").read_text() == '{"mine": 1}'
    assert (tmp_path / "m/tokenizer.json").exists() and not (tmp_path / "m/notes.txt").exists()
    no_ema = varve.HfOptions(rename=lambda name: None if "ema" in name else name)
    save(state, tmp_path / "n", format="hf", hf=no_ema)
    assert set(read_by_safetensors(tmp_path / "n")) == {"module.a", "module.step"}


def test_an_overwrite_leaves_no_file_of_the_old_model(tmp_path: Path) -> None:
    state = {f"w{i}": torch.ones(1000) for i in range(5)}
    save(state, tmp_path / "m", format="hf", hf=varve.HfOptions(shard_size=4000))
    (tmp_path / "m/mine.txt").write_text("mine")
    with pytest.raises(varve.CheckpointExistsError):
        save(state, tmp_path / "m", format="hf")
    async_save(state, tmp_path / "m", format="hf", overwrite=True).result(60)
    assert sorted(os.listdir(tmp_path / "m")) == [
        "mine.txt",
        "model.safetensors",
        "model.safetensors.index.json",
        "model.varve-checksums.json",
    ]
    save(state, tmp_path / "m", overwrite=True)  # By another format.
    assert "model.varve-checksums.json" not in os.listdir(tmp_path / "m")
    assert varve.verify(tmp_path / "m") == []


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("a value", r'"step" is not a tensor.*state dict'),
        ("complex", r'"c" is complex128'),
        ("other sizes", r"shard_size \(100 on rank 0, 101 on rank 1\)"),
        ("rank 1's rename", r"becomes 7"),
        ("columns", r"shards by columns, as those of tensor \"w\".*varve convert --to hf"),
        ("tiny columns", r"5000000 pieces.*shards by columns.*tensor \"w\".*varve convert --to hf"),
        ("rank 1's hf", r"hf=a dict of 1 entries: want varve.HfOptions"),
        ("a Partial", r'"layers\.0\.w": a DTensor with a Partial placement'),
    ],
)
def test_what_cannot_be_saved_is_refused_on_all_ranks(tmp_path: Path, case: str, told: str) -> None:
    import re

    start = time.monotonic()
    for outcome in run_ranks(2, refused, str(tmp_path / "m"), case):
        assert re.search(told, outcome, re.S), outcome
    assert time.monotonic() - start < 45, "ranks waited for each other"
    assert not (tmp_path / "m").exists()


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    state = {"w": torch.ones(2)}
    for given, told in [
        ({"hf": varve.HfOptions()}, 'format="hf"'),
        ({"format": "hf", "hf": {"dtype": "bf16"}}, "HfOptions"),
        ({"format": "hf", "hf": varve.HfOptions(config=3)}, "config"),
        (
            {
                "format": "hf",
                "hf": varve.HfOptions(rename={"w": "v", "v": "w"}),
                "coordinate": False,
            },
            "native",
        ),
        ({"format": "safetensors"}, "hf"),
    ]:
        with pytest.raises(varve.Error, match=told):
            save(state, tmp_path / "m", **given)  # type: ignore[arg-type]
    with pytest.raises(varve.InvalidArgumentError, match='"a" and "b" both become "x"'):
        both = varve.HfOptions(rename=lambda _: "x")
        save({"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "m", format="hf", hf=both)
    with pytest.raises(varve.InvalidArgumentError, match="shard_size"):
        varve.HfOptions(shard_size=0)
    with pytest.raises(varve.InvalidArgumentError, match="floating-point"):
        varve.HfOptions(dtype="int8")


def swap_names_in_header(file: Path, a: bytes, b: bytes) -> None:
    """Swaps two names of the same length, which leaves the file's size as it is."""
    whole = file.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    header = whole[8:end].replace(a, b"\0").replace(b, a).replace(b"\0", b)
    file.write_bytes(whole[:8] + header + whole[end:])


@pytest.mark.parametrize("by", ["save", "convert"])
def test_names_that_are_swapped_in_a_header_do_not_load_each_others_tensors(
    tmp_path: Path, by: str
) -> None:
    state = {"a": torch.ones(600_000), "b": torch.zeros(600_000), "c": torch.ones(600_000)}
    if by == "save":
        save(state, tmp_path / "m", format="hf")
    else:
        save(state, tmp_path / "native")
        varve.convert(tmp_path / "native", tmp_path / "m", to="hf")
    swap_names_in_header(tmp_path / "m/model.safetensors", b'"b"', b'"c"')
    target = {"b": torch.zeros(600_000), "c": torch.zeros(600_000)}
    with pytest.raises(varve.CorruptCheckpointError, match=r"model\.safetensors.*header"):
        varve.torch.load(target, tmp_path / "m")
    assert varve.verify(tmp_path / "m")


def test_the_files_beside_the_tensors_belong_to_the_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    for step in range(3):
        hf = varve.HfOptions(config={"model_type": "llama", "step": step})
        files = {"tokenizer.json": f"{step}".encode()} if step < 2 else {}
        save({"w": torch.ones(3)}, folder, format="hf", hf=hf, files=files, overwrite=True)
        assert json.loads((folder / "config.json").read_text())["step"] == step
    assert not (folder / "tokenizer.json").exists()  # Of the last save but one.
    assert json.loads(varve.torch.files(folder)["config.json"])["step"] == 2
    (folder / "config.json").write_text("{}")
    assert [damage.file for damage in varve.verify(folder)] == ["config.json"]


def test_a_tokenizer_that_was_there_first_stays(tmp_path: Path) -> None:
    for turn in range(2):
        (tmp_path / "m").mkdir(exist_ok=True)
        (tmp_path / "m" / "tokenizer.json").write_text("{}")
        save({"w": torch.ones(3)}, tmp_path / "m", format="hf", overwrite=turn > 0)
    assert (tmp_path / "m" / "tokenizer.json").read_text() == "{}"
    assert torch.equal(varve.torch.read(tmp_path / "m")["w"], torch.ones(3))


def test_the_message_about_an_edited_file_says_what_to_do(tmp_path: Path) -> None:
    save({"w": torch.ones(3)}, tmp_path / "m", format="hf", files={"config.json": b"{}"})
    (tmp_path / "m" / "config.json").write_text('{"edited": 1}')
    (damage,) = varve.verify(tmp_path / "m")
    assert damage.file == "config.json" and "was edited after the save" in damage.problem
    (tmp_path / "m" / "model.varve-checksums.json").unlink()
    assert varve.verify(tmp_path / "m") == []


def test_a_folder_without_its_index_is_whole_or_damaged(tmp_path: Path) -> None:
    hf = varve.HfOptions(shard_size=1000)
    state = {name: torch.full((250,), float(i)) for i, name in enumerate("abc")}
    save(state, tmp_path / "m", format="hf", hf=hf)
    (tmp_path / "m" / "model.safetensors.index.json").unlink()
    assert varve.verify(tmp_path / "m") == []
    assert torch.equal(varve.torch.read(tmp_path / "m")["c"], state["c"])
    assert "index.json is missing" in command("verify", tmp_path / "m")
    (tmp_path / "m" / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(varve.CorruptCheckpointError, match="00002-of-00003"):
        varve.torch.read(tmp_path / "m")
    (tmp_path / "m" / "model.varve-checksums.json").unlink()
    with pytest.raises(varve.CorruptCheckpointError, match=r"00002-of-00003.*is missing"):
        varve.torch.read(tmp_path / "m")


def test_a_file_in_the_way_is_found_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    save({"w": torch.ones(3)}, folder)
    for name in ("model.safetensors", "config.json"):
        (folder / name).write_text("mine")
        hf = varve.HfOptions(config={"model_type": "llama"})
        started: list[int] = []
        with pytest.raises(varve.PreconditionError, match=f"{name} is not part of the checkpoint"):
            save(
                {"w": torch.ones(3)},
                folder,
                format="hf",
                hf=hf,
                overwrite=True,
                progress=lambda done, _, started=started: started.append(done),  # type: ignore[misc]
            )
        assert not any(started)
        assert (folder / name).read_text() == "mine"
        (folder / name).unlink()
    with pytest.raises(varve.InvalidArgumentError, match=r"model\.safetensors\.index\.json"):
        files = {"model.safetensors.index.json": b"{}"}
        save({"w": torch.ones(3)}, tmp_path / "n", format="hf", files=files)
    with pytest.raises(varve.InvalidArgumentError, match=r"model\.varve-checksums\.json"):
        files = {"model.varve-checksums.json": b"{}"}
        save({"w": torch.ones(3)}, tmp_path / "n", format="hf", files=files)


@pytest.mark.parametrize("how", ["the same names", "one file for many", "many files for one"])
def test_tensors_that_another_program_wrote_anew_are_not_taken_for_damaged(
    tmp_path: Path, how: str
) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "m"
    state = {f"w{i}": torch.ones(1000) for i in range(3)}
    size = 4000 if how == "one file for many" else 5_000_000_000
    save(state, folder, format="hf", hf=varve.HfOptions(shard_size=size))
    theirs = {name: tensor * 2 for name, tensor in state.items()}
    if how == "many files for one":
        (folder / "model.safetensors").unlink()
        names = {name: f"model-0000{i + 1}-of-00003.safetensors" for i, name in enumerate(theirs)}
        for name, file in names.items():
            save_file({name: theirs[name]}, folder / file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    else:
        for old in folder.glob("model-*.safetensors"):
            old.unlink()
        save_file(theirs, folder / "model.safetensors")
    with pytest.raises(varve.CheckpointExistsError, match="another program"):
        save(state, folder, format="hf", overwrite="damaged")
    with pytest.raises(varve.CorruptCheckpointError):
        varve.torch.read(folder)
    if how != "one file for many":  # There its index is missing.
        with pytest.raises(varve.CorruptCheckpointError, match=r"another.*varve-checksums\.json"):
            varve.torch.read(folder)
        (folder / "model.varve-checksums.json").unlink()
        assert_same(varve.torch.read(folder, flat=True), theirs)
    save(state, folder, format="hf", overwrite=True)
    assert_same(varve.torch.read(folder, flat=True), state)


def test_a_damaged_folder_is_replaced_when_that_is_asked_for(tmp_path: Path) -> None:
    state = {"w": torch.ones(1000)}
    file = tmp_path / "m/model.safetensors"
    for at in (9, -1, None):
        save(state, tmp_path / "m", format="hf", overwrite="damaged")
        with pytest.raises(varve.CheckpointExistsError, match="not damaged"):
            save(state, tmp_path / "m", format="hf", overwrite="damaged")
        whole = bytearray(file.read_bytes())
        if at is None:
            del whole[-8:]
        else:
            whole[at] ^= 1
        file.write_bytes(whole)
    save(state, tmp_path / "m", format="hf", overwrite="damaged")
    assert varve.verify(tmp_path / "m") == []


def test_a_tensor_that_the_index_has_lost_is_damage(tmp_path: Path) -> None:
    save({"v": torch.ones(3), "w": torch.ones(4)}, tmp_path / "m", format="hf")
    path = tmp_path / "m" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["v"]
    path.write_text(json.dumps(index))
    with pytest.raises(varve.CorruptCheckpointError, match=r'"v".*holds it.*varve-checksums\.json'):
        varve.torch.read(tmp_path / "m")
    assert ["v" in damage.problem for damage in varve.verify(tmp_path / "m")] == [True]
    (tmp_path / "m" / "model.varve-checksums.json").unlink()  # Then the index is anyone's.
    assert list(varve.torch.read(tmp_path / "m")) == ["w"]


def test_a_folder_without_an_index_is_not_replaced_and_the_error_says_why(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "m").mkdir()
    save_file({"w": torch.ones(3)}, tmp_path / "m/model.safetensors")
    with pytest.raises(varve.PreconditionError, match=r"save_pretrained.*another name"):
        save({"w": torch.ones(3)}, tmp_path / "m", format="hf", overwrite=True)


def test_a_header_that_readers_refuse_is_refused(tmp_path: Path) -> None:
    shape = [1] * 30
    state = {("n" * 1_000_000) + f"{i}": torch.ones(shape) for i in range(101)}
    with pytest.raises(varve.InvalidArgumentError, match=r"model\.safetensors.*100000000"):
        save(state, tmp_path / "m", format="hf")
    save(state, tmp_path / "m", format="hf", hf=varve.HfOptions(shard_size=200))
    assert len(read_by_safetensors(tmp_path / "m")) == 101


def test_thousands_of_files_need_few_descriptors(tmp_path: Path) -> None:
    code = """
import resource, sys, torch, varve, varve.torch
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
state = {f"w{i}": torch.full((2048,), float(i)) for i in range(1000)}
varve.torch.save(state, sys.argv[1], format="hf", hf=varve.HfOptions(shard_size=8192))
assert varve.verify(sys.argv[1]) == []
read = varve.torch.read(sys.argv[1], flat=True)
assert all(torch.equal(read[name], tensor) for name, tensor in state.items())
"""
    programs.output(code, tmp_path / "m")


@pytest.mark.slow
def test_a_save_needs_256_mib_beside_the_shards(tmp_path: Path) -> None:
    for rose in run_ranks(2, peak, str(tmp_path / "m"), 1024):
        assert rose <= 256
