"""Folders of Hugging Face's tools whose model is in files of torch.save: one, or several with an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from same import same

import varve
import varve.torch

INDEX = "pytorch_model.bin.index.json"


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(50, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 50)
    )


@pytest.fixture
def folder(model: torch.nn.Module, tmp_path: Path) -> Path:
    """Files and index as huggingface_hub writes them, which transformers 4 and accelerate call."""
    hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "model").mkdir()
    hub.save_torch_model(
        model,
        tmp_path / "model",
        filename_pattern="pytorch_model{suffix}.bin",
        max_shard_size=9000,
        safe_serialization=False,
        is_main_process=True,
    )
    (tmp_path / "model" / "config.json").write_text("{}")
    assert len(list((tmp_path / "model").glob("pytorch_model-*.bin"))) >= 2
    return tmp_path / "model"


def test_all_files_together_are_the_model(folder: Path, model: torch.nn.Module) -> None:
    state = varve.torch.read(folder)
    assert same(dict(sorted(state.items())), dict(sorted(model.state_dict().items())))
    (entry,) = varve.list_checkpoints(folder)
    assert (entry.format, entry.state) == ("torch", "whole")
    assert varve.verify(folder) == []


def test_a_model_is_filled_in_place_and_converted(
    folder: Path, model: torch.nn.Module, tmp_path: Path
) -> None:
    other = torch.nn.Sequential(
        torch.nn.Linear(50, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 50)
    )
    varve.torch.load(other, folder)
    assert same(other.state_dict(), model.state_dict())
    part = varve.torch.open(folder)["0.weight"][3:9, 1:4]
    assert torch.equal(part, model[0].weight.detach()[3:9, 1:4])
    varve.convert(folder, tmp_path / "hf", to="hf")
    assert varve.diff(folder, tmp_path / "hf") == []


def test_accelerate_and_varve_read_the_same(
    folder: Path, model: torch.nn.Module, tmp_path: Path
) -> None:
    accelerate = pytest.importorskip("accelerate")
    other = torch.nn.Sequential(
        torch.nn.Linear(50, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 50)
    )
    accelerate.load_checkpoint_in_model(other, folder)
    assert same(other.state_dict(), model.state_dict())
    accelerate.Accelerator(cpu=True).save_model(
        other, tmp_path / "saved", max_shard_size="9KB", safe_serialization=False
    )
    assert same(varve.torch.read(tmp_path / "saved"), varve.torch.read(folder))


def test_one_file_without_an_index_is_the_model(model: torch.nn.Module, tmp_path: Path) -> None:
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text("{}")
    assert same(varve.torch.read(tmp_path), model.state_dict())


def test_a_run_with_its_last_model_is_listed_by_its_checkpoints(
    model: torch.nn.Module, tmp_path: Path
) -> None:
    for below in (tmp_path, tmp_path / "checkpoint-500"):
        below.mkdir(exist_ok=True)
        torch.save(model.state_dict(), below / "pytorch_model.bin")
    (entry,) = varve.list_checkpoints(tmp_path)
    assert (entry.name, entry.state, entry.step) == ("checkpoint-500", "whole", 500)


def test_a_file_holds_more_than_the_index_says(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"]["0.bias"]
    (folder / INDEX).write_text(json.dumps(index))
    assert "0.bias" not in varve.torch.read(folder)


def test_safetensors_come_first(folder: Path) -> None:
    varve.convert(folder, folder.parent / "new.safetensors", to="safetensors")
    (folder.parent / "new.safetensors").rename(folder / "model.safetensors")
    (entry,) = varve.list_checkpoints(folder)
    assert entry.format == "safetensors"


def lose_a_file(folder: Path) -> str:
    path = min(folder.glob("pytorch_model-*.bin"))
    path.unlink()
    return path.name


def name_what_no_file_has(folder: Path) -> str:
    index: Any = json.loads((folder / INDEX).read_text())
    index["weight_map"]["other"] = index["weight_map"]["0.weight"]
    (folder / INDEX).write_text(json.dumps(index))
    return '"other"'


def leave_the_folder(folder: Path) -> str:
    index: Any = json.loads((folder / INDEX).read_text())
    index["weight_map"]["0.weight"] = "../pytorch_model.bin"
    (folder / INDEX).write_text(json.dumps(index))
    return r"\.\./pytorch_model\.bin"


def save_no_state(folder: Path) -> str:
    path = max(folder.glob("pytorch_model-*.bin"))
    torch.save([1, 2], path)
    return f"{path.name}.*no state dict"


@pytest.mark.parametrize(
    "damage", [lose_a_file, name_what_no_file_has, leave_the_folder, save_no_state]
)
def test_what_is_wrong_is_named(damage: Any, folder: Path) -> None:
    with pytest.raises(varve.Error, match=damage(folder)):
        varve.torch.read(folder)
