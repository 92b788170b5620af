"""What a save with format="hf" makes of the configuration, of dtypes, and of tensors it cannot hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripts
import torch
from hf_jobs import llama, save_wrapped
from ranks import run_ranks
from safetensors.torch import load_file

import varve
import varve.torch
from varve.torch import save

STATE = {"w": torch.ones(3)}


def config_of(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("how", ["fsdp1", "fsdp2", "ddp", "compile"])
def test_a_model_in_its_wrappers_is_its_own_configuration(tmp_path: Path, how: str) -> None:
    from transformers import AutoModelForCausalLM

    run_ranks(2, save_wrapped, str(tmp_path), how)
    config = config_of(tmp_path / how)
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "bfloat16"
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / how)
    assert type(opened).__name__ == "LlamaForCausalLM" and opened.dtype == torch.bfloat16
    wanted = llama().state_dict()
    for name, tensor in opened.state_dict().items():
        assert torch.equal(tensor, wanted[name].bfloat16()), name


def test_a_model_as_configuration_is_saved_as_save_pretrained_does(tmp_path: Path) -> None:
    model = llama()
    model.generation_config.max_length = 77
    model.save_pretrained(tmp_path / "theirs")
    hf = varve.HfOptions(config=model)
    save(model.state_dict(), tmp_path / "ours", format="hf", hf=hf)
    for name in ("config.json", "generation_config.json"):
        ours, theirs = (
            json.loads((tmp_path / who / name).read_text()) for who in ("ours", "theirs")
        )
        assert ours == theirs, name


@pytest.mark.parametrize("before", ["module.", "_orig_mod.", "module._orig_mod."])
def test_what_a_wrapper_puts_before_names_is_left_out(tmp_path: Path, before: str) -> None:
    from transformers import AutoModelForCausalLM

    model = llama()
    state = {before + name: tensor for name, tensor in model.state_dict().items()}
    save(state, tmp_path / "a", format="hf", hf=varve.HfOptions(config=model))
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "a").state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(opened[name], tensor), name
    with pytest.warns(RuntimeWarning, match=f'all names begin with "{before}"'):
        save(state, tmp_path / "b", format="hf")
    assert all(name.startswith(before) for name in varve.torch.read(tmp_path / "b"))


def test_the_model_given_as_configuration_stays_as_it_is(tmp_path: Path) -> None:
    model = llama()
    before = model.config.to_dict()
    hf = varve.HfOptions(config=model, dtype="bfloat16")
    save(model.state_dict(), tmp_path / "m", format="hf", hf=hf)
    assert model.config.to_dict() == before


@pytest.mark.parametrize("given", ["a mapping", "a directory", "an object"])
def test_the_configuration_says_what_tensors_were_cast_to(tmp_path: Path, given: str) -> None:
    config: Any = {"model_type": "x", "torch_dtype": "float32", "text_config": {"dtype": "float32"}}
    if given == "a directory":
        (tmp_path / "base").mkdir()
        (tmp_path / "base/config.json").write_text(json.dumps(config))
        config = tmp_path / "base"
    elif given == "an object":
        text = json.dumps(config)
        config = type("Config", (), {"to_json_string": lambda self: text})()
    hf = varve.HfOptions(config=config, dtype="bf16")
    save(STATE, tmp_path / "m", format="hf", hf=hf)
    assert config_of(tmp_path / "m") == {
        "model_type": "x",
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
        "text_config": {"dtype": "bfloat16"},
    }
    save(STATE, tmp_path / "n", format="hf", hf=varve.HfOptions(config=hf.config))
    assert config_of(tmp_path / "n")["torch_dtype"] == "float32"  # No cast, no change.


@pytest.mark.parametrize("given", ["a side file", "a directory"])
def test_a_conversion_says_in_the_configuration_what_it_has_cast_to(
    tmp_path: Path, given: str
) -> None:
    from transformers import AutoModelForCausalLM

    model = llama()
    model.save_pretrained(tmp_path / "theirs")
    files = {"config.json": str(tmp_path / "theirs/config.json")}
    beside = given == "a side file"
    save({"model": model}, tmp_path / "c", files=files if beside else None)
    directory = None if beside else tmp_path / "theirs"
    varve.convert(tmp_path / "c", tmp_path / "m", "hf", dtype="bf16", hf_config=directory)
    assert config_of(tmp_path / "m") == {**config_of(tmp_path / "theirs"), "dtype": "bfloat16"}
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "m").dtype == torch.bfloat16
    assert not varve.verify(tmp_path / "m")


def test_what_has_no_configuration_is_refused(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    (tmp_path / "config.json").write_text("{}")
    for config, told in [
        (LlamaConfig, "not a class"),
        (torch.nn.Linear(2, 2), "Linear is no model of transformers"),
        (tmp_path / "config.json", "the directory"),
        ({"text_config": {"dtype": torch.bfloat16}}, r'"text_config\.dtype" is torch\.bfloat16'),
        (3, "config=3"),
    ]:
        hf = varve.HfOptions(config=config)
        with pytest.raises(varve.InvalidArgumentError, match=told):
            save(STATE, tmp_path / "m", format="hf", hf=hf)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        ("fp32", torch.float32),
        ("half", torch.float16),
        ("float8_e4m3fn", torch.float8_e4m3fn),
        (torch.bfloat16, torch.bfloat16),
        (np.float16, torch.float16),
    ],
)
def test_dtypes_have_the_names_of_convert(tmp_path: Path, dtype: Any, stored: torch.dtype) -> None:
    save(STATE, tmp_path / "m", format="hf", hf=varve.HfOptions(dtype=dtype))
    assert load_file(tmp_path / "m/model.safetensors")["w"].dtype == stored


def test_arrays_are_cast_like_tensors(tmp_path: Path) -> None:
    state = {
        "strided": np.arange(24, dtype=np.float64).reshape(4, 6)[::-1, ::2],
        "scalar": np.array(2.5, dtype=np.float32),
        "none": np.zeros((0, 3), dtype=np.float32),
        "whole": np.arange(3),
    }
    save(state, tmp_path / "m", format="hf", hf=varve.HfOptions(dtype="bf16"))
    read = load_file(tmp_path / "m/model.safetensors")
    for name, array in state.items():
        wanted = torch.from_numpy(array.copy())
        wanted = wanted.bfloat16() if wanted.is_floating_point() else wanted
        assert read[name].dtype == wanted.dtype and torch.equal(read[name], wanted), name


def test_a_shard_that_says_its_place_keeps_it_when_it_is_cast(tmp_path: Path) -> None:
    shard = torch.arange(6.0)
    for name, value in {
        "global_shape": (6,),
        "global_offsets": ((0,), (3,)),
        "local_offsets": ((3,), (0,)),
        "local_sizes": ((3,), (3,)),
    }.items():
        setattr(shard, name, value)
    save({"w": shard}, tmp_path / "m", format="hf", hf=varve.HfOptions(dtype="bf16"))
    assert load_file(tmp_path / "m/model.safetensors")["w"].tolist() == [3, 4, 5, 0, 1, 2]


def freed() -> torch.Tensor:
    tensor = torch.ones(1 << 20)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("dtype", [None, "bf16"])
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: torch.empty(3, device="meta"), "meta device"),
        (freed, "bytes of storage"),
        (lambda: torch.nn.LazyLinear(3).weight, "lazy"),
    ],
)
def test_tensors_that_cannot_be_stored_are_named(
    tmp_path: Path, make: Callable[[], torch.Tensor], told: str, dtype: str | None
) -> None:
    state = {"ok": torch.ones(2), "layers.0.w": make()}
    with pytest.raises(varve.InvalidArgumentError, match=rf'"layers\.0\.w".*{told}'):
        save(state, tmp_path / "m", format="hf", hf=varve.HfOptions(dtype=dtype))


def test_a_cast_that_torch_cannot_make_names_the_tensor(tmp_path: Path) -> None:
    with pytest.raises(
        varve.InvalidArgumentError, match=r'"w".*cannot be cast to float4_e2m1fn_x2'
    ):
        save(STATE, tmp_path / "m", format="hf", hf=varve.HfOptions(dtype="float4_e2m1fn_x2"))


def test_a_dtype_that_is_none_is_refused_where_the_options_are_made() -> None:
    with pytest.raises(varve.InvalidArgumentError, match="bfloat61"):
        varve.HfOptions(dtype="bfloat61")


def test_a_rename_to_what_is_no_name_is_refused(tmp_path: Path) -> None:
    hf = varve.HfOptions(rename=lambda _: "\ud800")
    with pytest.raises(varve.InvalidArgumentError, match=r'"w" becomes .*cannot be a name'):
        save(STATE, tmp_path / "m", format="hf", hf=hf)


def test_a_manager_saves_folders_of_safetensors(tmp_path: Path) -> None:
    options = {"format": "hf", "hf": varve.HfOptions(dtype="bf16", config={"model_type": "x"})}
    with varve.torch.CheckpointManager(tmp_path / "run", every=1, save_options=options) as manager:
        for step in (1, 2):
            manager.save(step, {"w": torch.full((3,), float(step))})
    folders = sorted((tmp_path / "run").glob("step-*"))
    assert [load_file(one / "model.safetensors")["w"].tolist() for one in folders] == [
        [1] * 3,
        [2] * 3,
    ]
    assert config_of(folders[0])["dtype"] == "bfloat16"
    state = {"w": torch.zeros(3, dtype=torch.bfloat16)}
    with varve.torch.CheckpointManager(tmp_path / "run") as manager:
        assert manager.resume(state) == 2
    assert state["w"].tolist() == [2] * 3


def test_the_program_of_the_documentation_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/other-formats.md").read_text()
    program = page.partition("```python\n")[2].partition("```\n")[0]
    (tmp_path / "export.py").write_text(program)
    said = scripts.run(2, "export.py", cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": ""})
    assert said.count("torch.bfloat16") == 2, said
    assert varve.verify(tmp_path / "my-model") == []
    assert set(varve.torch.files(tmp_path / "my-model")) >= {"config.json", "README.md"}
