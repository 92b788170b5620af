"""Conversions between all formats, and diff, over checkpoints of this and of other software."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import varve
import varve.torch

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "dcp"
DCP_CASES = [
    folder
    for version in ("2.6.0", "2.14.1")
    for folder in sorted((GOLDEN / version).iterdir())
    if (folder / ".metadata").exists()
]
IDS = [f"{folder.parent.name}-{folder.name}" for folder in DCP_CASES]


def state() -> dict[str, Any]:
    torch.manual_seed(1)
    return {
        "model": {
            "layers": [{"w": torch.randn(300, 70), "b": torch.randn(70)} for _ in range(3)],
            "embed": torch.randn(1000, 64).to(torch.bfloat16),
            "step": torch.tensor(7),
            "empty": torch.empty(0, 3),
        },
        "lr": 1e-3,
        "names": ["a", "b"],
        "nothing": None,
    }


def saved(path: Path) -> Path:
    varve.torch.save(state(), path)
    return path


def assert_same(a: Any, b: Any, ordered: bool = True) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b) if ordered else set(a) == set(b)
        for key in a:
            assert_same(a[key], b[key], ordered)
    elif isinstance(a, list):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_same(left, right, ordered)
    else:
        assert a == b


@pytest.mark.parametrize("to", ["varve", "dcp"])
def test_a_state_comes_back_from_either_format(to: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    varve.convert(source, tmp_path / "target", to)
    assert varve.diff(source, tmp_path / "target") == []
    assert varve.verify(tmp_path / "target") == []
    assert_same(varve.torch.read(tmp_path / "target"), state())
    destination = state()
    for tensor in (destination["model"]["embed"], destination["model"]["layers"][0]["w"]):
        tensor.zero_()
    varve.torch.load(destination, tmp_path / "target")
    assert_same(destination, state())


@pytest.mark.parametrize("case", DCP_CASES, ids=IDS)
@pytest.mark.parametrize("to", ["varve", "dcp"])
def test_what_pytorch_wrote_survives(case: Path, to: str, tmp_path: Path) -> None:
    varve.convert(case, tmp_path / "there", to)
    varve.convert(tmp_path / "there", tmp_path / "back", "dcp")
    assert varve.diff(case, tmp_path / "back") == []
    assert varve.verify(tmp_path / "back") == []


def test_stock_pytorch_opens_what_convert_writes(tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    varve.convert(source, tmp_path / "dcp", "dcp")
    destination = state()
    destination["lr"] = 0.0
    for layer in destination["model"]["layers"]:
        layer["w"].zero_()
    dcp.load(destination, checkpoint_id=tmp_path / "dcp")
    assert_same(destination, state())
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "whole.pt")
    # torch's converter keeps the order of the index, which is that of names.
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert_same(whole, state(), ordered=False)


def test_torch_load_opens_what_convert_writes(tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    report = varve.convert(source, tmp_path / "whole.pt", "torch")
    assert report.bytes == (tmp_path / "whole.pt").stat().st_size
    assert_same(torch.load(tmp_path / "whole.pt", weights_only=False), state())
    mapped = torch.load(tmp_path / "whole.pt", weights_only=False, mmap=True)
    assert_same(mapped, state())
    assert varve.diff(source, tmp_path / "whole.pt") == []
    assert varve.verify(tmp_path / "whole.pt") == []
    assert_same(varve.torch.read(tmp_path / "whole.pt"), state())
    with zipfile.ZipFile(tmp_path / "whole.pt") as archive:
        assert archive.testzip() is None, "checksums are those of the bytes"


def test_a_file_that_is_one_tensor_stays_one(tmp_path: Path) -> None:
    torch.save(torch.arange(6.0), tmp_path / "a.pt")
    varve.convert(tmp_path / "a.pt", tmp_path / "b.pt", "torch", dtype="bfloat16")
    assert_same(torch.load(tmp_path / "b.pt"), torch.arange(6.0).to(torch.bfloat16))


@pytest.mark.parametrize("to", ["varve", "dcp", "torch"])
@pytest.mark.parametrize("empty", [{}, {"a": {}, "b": [[]]}], ids=["dict", "containers"])
def test_a_state_of_empty_containers_is_converted(empty: Any, to: Any, tmp_path: Path) -> None:
    varve.torch.save(empty, tmp_path / "source")
    varve.convert(tmp_path / "source", tmp_path / "target", to)
    assert varve.torch.read(tmp_path / "target") == empty


@pytest.mark.parametrize("to", ["torch", "safetensors"])
def test_a_target_that_is_a_symbolic_link_stays_one(to: Any, tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    link = tmp_path / "latest"
    link.symlink_to("model")
    varve.convert(source, link, to)
    varve.convert(source, link, to, overwrite=True, include=["model.embed"])
    assert link.is_symlink()
    assert list(varve.torch.read(tmp_path / "model", flat=True)) == ["model.embed"]


def test_classes_that_a_target_does_not_keep_are_in_the_report(tmp_path: Path) -> None:
    state = {"w": torch.eye(3).to_sparse(), "seen": collections.deque([1]), "lr": Decimal("0.1")}
    varve.torch.save(state, tmp_path / "source")
    reports = {
        to: varve.convert(tmp_path / "source", tmp_path / to, to).classes_left_out
        for to in ("varve", "dcp", "torch", "hf")
    }
    sparse = 'torch.sparse_coo of 1 entry, "w"'
    deque, decimal = 'collections.deque of 1 entry, "seen"', 'decimal.Decimal of 1 entry, "lr"'
    assert reports == {
        "varve": [],
        "dcp": [],
        "torch": [deque, decimal, sparse],
        "hf": [sparse],
    }


def test_weights_alone_load_without_running_a_pickle(tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    varve.convert(source, tmp_path / "model.pt", "torch", include=["model.*"], dtype="bfloat16")
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert loaded["model"]["embed"].dtype == torch.bfloat16
    assert torch.equal(loaded["model"]["embed"], state()["model"]["embed"].to(torch.bfloat16))
    content = bytearray((tmp_path / "model.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(varve.CorruptCheckpointError):
        varve.torch.read(tmp_path / "model.pt")


@pytest.mark.parametrize("case", DCP_CASES, ids=IDS)
def test_what_pytorch_wrote_becomes_one_file_and_comes_back(case: Path, tmp_path: Path) -> None:
    if case.name == "opaque":  # Holds values that only a pickle of their own can be.
        with pytest.raises(varve.UnsupportedError, match="--exclude"):
            varve.convert(case, tmp_path / "whole.pt", "torch")
        return
    varve.convert(case, tmp_path / "whole.pt", "torch")
    assert varve.diff(case, tmp_path / "whole.pt") == []
    torch.load(tmp_path / "whole.pt", weights_only=False)


def test_a_flipped_byte_of_a_dcp_checkpoint_that_varve_wrote_is_found_by_load(
    tmp_path: Path,
) -> None:
    varve.convert(saved(tmp_path / "source"), tmp_path / "dcp", "dcp")
    path = tmp_path / "dcp" / "__0_0.distcp"
    content = bytearray(path.read_bytes())
    (chunk,) = varve.open(tmp_path / "dcp").tensors["model.embed"].chunks
    content[chunk.begin + 1000] ^= 4
    path.write_bytes(content)
    with pytest.raises(varve.CorruptCheckpointError, match="checksum mismatch"):
        varve.torch.load(state(), tmp_path / "dcp")
    assert varve.verify(tmp_path / "dcp")


def test_a_damaged_source_gives_an_error_and_no_target(tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    (data,) = source.glob("*.safetensors")
    content = bytearray(data.read_bytes())
    content[-100] ^= 1
    data.write_bytes(content)
    for to in ("varve", "dcp", "hf", "safetensors", "torch"):
        with pytest.raises(varve.CorruptCheckpointError):
            varve.convert(source, tmp_path / "target", to)
        assert [entry.name for entry in tmp_path.iterdir()] == ["source"]


def test_hf_folders_have_an_index_and_bounded_files(tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    report = varve.convert(
        source, tmp_path / "hf", "hf", shard_size=100_000, rename={"model.": "model."}
    )
    files = sorted(path.name for path in (tmp_path / "hf").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    found = {}
    for name in files:
        part = safetensors.torch.load_file(tmp_path / "hf" / name)
        assert all(index["weight_map"][fqn] == name for fqn in part)
        found.update(part)
    assert sorted(found) == sorted(index["weight_map"])
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in found.values())
    assert report.objects_left_out == 0
    assert report.left_out == ["lr: 1 value", "names: 1 value", "nothing: 1 value"]
    assert torch.equal(found["model.embed"], state()["model"]["embed"])
    assert [d.kind for d in varve.diff(source, tmp_path / "hf")] == ["only in a"] * 3


def hf_names(folder: Path) -> set[str]:
    return {
        name for path in folder.glob("*.safetensors") for name in safetensors.torch.load_file(path)
    }


def test_hf_folders_hold_the_model_alone_unless_more_is_asked_for(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    source = tmp_path / "source"
    varve.torch.save({"model": model, "optim": optimizer, "ema": torch.ones(2), "step": 1}, source)
    report = varve.convert(source, tmp_path / "a", "hf")
    assert hf_names(tmp_path / "a") == {"weight", "bias"}
    assert [entry.split(":")[0] for entry in report.left_out] == ["ema", "optim", "step"]
    assert report.left_out[1].startswith("optim: 6 tensors, ")
    report = varve.convert(source, tmp_path / "b", "hf", everything=True)
    assert len(hf_names(tmp_path / "b")) == 9
    assert report.left_out == []
    varve.convert(source, tmp_path / "c", "hf", include="ema")
    assert hf_names(tmp_path / "c") == {"ema"}
    varve.convert(source, tmp_path / "d", "hf", rename={"model.": "net."})
    assert hf_names(tmp_path / "d") == {"net.weight", "net.bias"}
    for to in ("varve", "dcp", "safetensors", "torch"):
        assert varve.convert(source, tmp_path / to, to).tensors == 9


def test_without_a_model_an_hf_folder_leaves_out_what_is_called_optim(tmp_path: Path) -> None:
    state = {"encoder": {"w": torch.ones(2)}, "optimizer": {"m": torch.ones(2)}, "optim_step": 1}
    varve.torch.save(state, tmp_path / "source")
    report = varve.convert(tmp_path / "source", tmp_path / "hf", "hf")
    assert hf_names(tmp_path / "hf") == {"encoder.w"}
    assert report.left_out == ["optim_step: 1 value", "optimizer: 1 tensor"]
    # A flat checkpoint of Hugging Face, of which "model" is no entry.
    flat = {"model.embed.w": torch.ones(2), "lm_head.w": torch.ones(2)}
    safetensors.torch.save_file(flat, tmp_path / "flat.safetensors")
    assert varve.convert(tmp_path / "flat.safetensors", tmp_path / "hf2", "hf").left_out == []
    assert hf_names(tmp_path / "hf2") == set(flat)


def test_dtype_include_exclude_and_rename(tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    varve.convert(
        source,
        tmp_path / "out.safetensors",
        "safetensors",
        dtype="bfloat16",
        include=["model.*"],
        exclude=["*.b"],
        rename={"model.layers.": "blk.", "model.": ""},
    )
    found = safetensors.torch.load_file(tmp_path / "out.safetensors")
    assert sorted(found) == ["blk.0.w", "blk.1.w", "blk.2.w", "embed", "empty", "step"]
    want = state()["model"]
    assert torch.equal(found["blk.1.w"], want["layers"][1]["w"].to(torch.bfloat16))
    assert found["step"].dtype == torch.int64
    with pytest.raises(varve.InvalidArgumentError, match="two entries"):
        varve.convert(
            source, tmp_path / "x", "varve", rename={"model.layers.0": "a", "model.layers.1": "a"}
        )
    with pytest.raises(varve.InvalidArgumentError, match="int8"):
        varve.convert(source, tmp_path / "x", "varve", dtype="int8")
    with pytest.raises(varve.CheckpointNotFoundError, match='matches "none'):
        varve.convert(source, tmp_path / "x", "varve", include=["none.*"])


@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("target", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_casts_are_those_of_pytorch(
    source: torch.dtype, target: torch.dtype, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    values = torch.cat(
        [
            torch.randn(20_000, dtype=torch.float64) * 10 ** torch.empty(20_000).uniform_(-12, 12),
            torch.tensor(
                [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 65504, 65519, 65520]
            ),
            torch.tensor([2.0**-24, 2.0**-25, 2.0**-14, 1.5 * 2.0**-25, 3.4e38, -3.39e38]),
        ]
    ).to(source)
    varve.torch.save({"x": values}, tmp_path / "a")
    name = str(target).removeprefix("torch.")
    varve.convert(tmp_path / "a", tmp_path / "b", "varve", dtype=name)
    found = varve.torch.read(tmp_path / "b")["x"]
    want = values.to(target)
    assert found.dtype == target
    assert torch.equal(found.isnan(), want.isnan())
    keep = ~want.isnan()
    assert torch.equal(found[keep], want[keep])
    assert torch.equal(torch.signbit(found[keep]), torch.signbit(want[keep]))


def test_pruned_states_keep_their_containers(tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    varve.convert(source, tmp_path / "out", "varve", exclude=["model.layers.*", "lr"])
    found = varve.torch.read(tmp_path / "out")
    assert sorted(found) == ["model", "names", "nothing"]
    assert sorted(found["model"]) == ["embed", "empty", "step"]


def test_overwriting_needs_permission_and_replaces_only_checkpoints(tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    for to in ("varve", "dcp", "hf"):
        target = tmp_path / to
        varve.convert(source, target, to)
        with pytest.raises(varve.CheckpointExistsError):
            varve.convert(source, target, to)
        varve.convert(source, target, "dcp", overwrite=True)
        assert varve.diff(source, target) == []
    (tmp_path / "hf" / "tokenizer.json").write_text("{}")
    varve.convert(source, tmp_path / "hf", "varve", overwrite=True)
    assert (tmp_path / "hf" / "tokenizer.json").exists()
    # A folder of a model's configuration alone takes a checkpoint; the user's other files do not make way.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.json").write_text("{}")
    varve.convert(source, tmp_path / "other", "hf")
    assert (tmp_path / "other" / "tokenizer.json").exists()
    (tmp_path / "other").rename(tmp_path / "done")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("{}")
    with pytest.raises(varve.PreconditionError, match="not a checkpoint"):
        varve.convert(source, tmp_path / "other", "varve", overwrite=True)
    assert os.listdir(tmp_path / "other") == ["notes.txt"]


def test_diff_says_what_differs_and_how_much(tmp_path: Path) -> None:
    a = {
        "same": torch.ones(3),
        "w": torch.arange(10.0),
        "n": torch.tensor([2**60]),
        "s": 1,
        "t": torch.ones(2),
    }
    b = {
        "same": torch.ones(3),
        "w": a["w"].clone(),
        "n": torch.tensor([2**60 + 1]),
        "s": 2,
        "u": torch.ones(2),
    }
    b["w"][4] = 5.0
    varve.torch.save(a, tmp_path / "a")
    varve.torch.save(b, tmp_path / "b")
    found = {d.fqn: d for d in varve.diff(tmp_path / "a", tmp_path / "b")}
    assert {name: d.kind for name, d in found.items()} == {
        "w": "values",
        "n": "values",
        "s": "values",
        "t": "only in a",
        "u": "only in b",
    }
    assert (found["w"].differing, found["w"].max_abs_error) == (1, 1.0)
    assert found["w"].max_rel_error == pytest.approx(0.2)
    assert found["n"].differing == 1


def test_diff_compares_values_across_dtypes_and_takes_nan_for_nan(tmp_path: Path) -> None:
    x = torch.tensor([1.0, float("nan"), -0.0, 2.0])
    varve.torch.save({"x": x, "y": x}, tmp_path / "a")
    varve.torch.save(
        {"x": x.to(torch.bfloat16), "y": torch.tensor([1.0, float("nan"), 0.0, 2.0])},
        tmp_path / "b",
    )
    (difference,) = varve.diff(tmp_path / "a", tmp_path / "b")
    assert (difference.fqn, difference.kind, difference.differing) == ("x", "dtype", 0)


def test_the_command_line_converts_and_compares(tmp_path: Path) -> None:
    command = os.path.join(os.path.dirname(sys.executable), "varve")
    source = saved(tmp_path / "source")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([command, *arguments], capture_output=True, text=True, check=False)

    done = run("convert", str(source), str(tmp_path / "d"), "--to", "dcp", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tensors"] == 9
    same = run("diff", str(source), str(tmp_path / "d"))
    assert (same.returncode, same.stdout) == (0, "equal: 9 tensors, 3 objects; different: 0\n")
    run("convert", str(source), str(tmp_path / "h"), "--to", "hf", "--dtype", "bf16")
    differs = run("diff", str(source), str(tmp_path / "h"), "--json")
    assert differs.returncode == 1
    assert not json.loads(differs.stdout)["equal"]
    assert run("diff", str(source), str(tmp_path / "none")).returncode == 2
    assert run("convert", str(source), str(tmp_path / "x"), "--to", "zip").returncode == 2


def test_an_index_has_paths_where_only_names_were_known(tmp_path: Path) -> None:
    """Torch 2.6 builds no state from an index without them."""
    safetensors.torch.save_file(
        {"a.w": torch.ones(3), "b": torch.ones(2)}, tmp_path / "a.safetensors"
    )
    varve.convert(tmp_path / "a.safetensors", tmp_path / "dcp", "dcp")
    metadata = dcp.FileSystemReader(tmp_path / "dcp").read_metadata()
    assert metadata.planner_data == {"a.w": ("a.w",), "b": ("b",)}
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "whole.pt")
    assert set(torch.load(tmp_path / "whole.pt")) == {"a.w", "b"}
