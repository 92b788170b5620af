"""OLMo-core's first layout: every way of cutting loads, and whatever is wrong is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from olmo_core import CoreRun, pickled

import varve
import varve.torch


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    numbers = torch.Generator().manual_seed(5)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=numbers).to(dtype)

    return {
        "wte.weight": tensor(7, 5),
        "blocks.0.scale": tensor(3),
        "blocks.0.a.weight": tensor(4, 3, 2),
        "gate": tensor(1),
        "head.weight": tensor(3, 4),
    }


def run(world_size: int, form: str = "spec", copies: int = 1) -> CoreRun:
    return CoreRun(parameters(), world_size, form, copies).build()


def assert_holds(folder: Path, made: CoreRun) -> None:
    state = varve.torch.read(folder)
    assert set(state["model"]) == {*made.parameters, "buffer"}
    assert torch.equal(state["model"]["buffer"], made.buffer())
    for name, tensor in made.parameters.items():
        assert state["model"][name].dtype == tensor.dtype
        assert torch.equal(state["model"][name], tensor), name
        entries = state["optim"]["state"][name]
        assert torch.equal(entries["exp_avg"], made.moment(name)), name
        assert entries["step"] == 3
        assert entries["step"].shape == ()
    names = list(made.parameters)
    first, second = state["optim"]["param_groups"]
    assert first == {"lr": 0.1, "betas": (0.9, 0.95), "params": [0, 1], "param_names": names[:2]}
    assert second["params"] == [2, 3, 4]
    assert second["param_names"] == names[2:]
    assert state["train"]["step"] == 7


@pytest.mark.parametrize("form", ["pair", "list", "spec", "box"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 64])
def test_every_world_size_of_every_form_loads(world_size: int, form: str, tmp_path: Path) -> None:
    made = run(world_size, form)
    folder = made.write(tmp_path / "step1")
    assert varve.open(folder).format == "olmo-core"
    assert varve.open(folder).world_size == world_size
    assert varve.verify(folder) == []
    assert_holds(folder, made)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64], ids=str)
def test_every_dtype_loads(dtype: torch.dtype, tmp_path: Path) -> None:
    made = CoreRun(parameters(dtype), 3).build()
    assert_holds(made.write(tmp_path / "step1"), made)


@pytest.mark.parametrize("form", ["spec", "box"])
@pytest.mark.parametrize(("world_size", "copies"), [(2, 2), (1, 3)])
def test_equal_replicas_load(world_size: int, copies: int, form: str, tmp_path: Path) -> None:
    made = run(world_size, form, copies)
    folder = made.write(tmp_path / "step1")
    assert varve.verify(folder) == []
    assert_holds(folder, made)


def test_a_tensor_without_elements_loads(tmp_path: Path) -> None:
    made = run(2)
    made.model.add("empty", torch.zeros(0, 4, dtype=torch.bfloat16), {0: (0, 0), 1: (0, 0)})
    empty = varve.torch.read(made.write(tmp_path / "step1"))["model"]["empty"]
    assert empty.shape == (0, 4)
    assert empty.dtype == torch.bfloat16


def test_ranks_without_elements_load(tmp_path: Path) -> None:
    made = CoreRun({"gate": torch.tensor([4.0])}, 1).build()
    made.world_size = made.model.world_size = made.optim.world_size = 3
    for folder in (made.model, made.optim):
        folder.ranks += [{}, {}]
    read = varve.torch.read(made.write(tmp_path / "step1"))
    assert read["model"]["gate"] == 4


def test_real_nans_load(tmp_path: Path) -> None:
    made = run(2)
    made.model.ranks[0]["wte.weight"][0] = torch.nan
    assert torch.isnan(
        varve.torch.read(made.write(tmp_path / "step1"))["model"]["wte.weight"][0, 0]
    )


def test_what_olmo_core_writes_itself_has_no_mark_and_loads(tmp_path: Path) -> None:
    made = run(2)
    folder = made.write(tmp_path / "step1")
    for path in (folder / "train").iterdir():
        path.unlink()
    (folder / "train").rmdir()
    (folder / "config.yaml").unlink()
    assert torch.equal(
        varve.torch.read(folder)["model"]["wte.weight"], made.parameters["wte.weight"]
    )


def test_without_config_yaml_a_checkpoint_of_olmo_is_incomplete(tmp_path: Path) -> None:
    folder = run(2).write(tmp_path / "step1")
    (folder / "config.yaml").unlink()
    with pytest.raises(varve.PreconditionError, match=r"config\.yaml"):
        varve.torch.read(folder)
    (entry,) = varve.list_checkpoints(tmp_path)
    assert entry.state == "incomplete"


def test_groups_that_have_param_names_keep_them(tmp_path: Path) -> None:
    made = run(1)
    names = list(made.parameters)
    for i, part in enumerate((names[:2], names[2:])):
        group = {"params": list(range(len(part))), "param_names": part, "_param_names": part}
        content = pickled(group)
        made.optim.add(f"param_group{i}", content, {0: (0, content.numel())})
    groups = varve.torch.read(made.write(tmp_path / "step1"))["optim"]["param_groups"]
    assert [sorted(group) for group in groups] == [["param_names", "params"]] * 2
    assert groups[0]["param_names"] == names[:2]


def test_it_is_unsharded_and_converted(tmp_path: Path) -> None:
    made = run(3)
    folder = made.write(tmp_path / "step1")
    varve.unshard(folder, tmp_path / "whole")
    model = torch.load(tmp_path / "whole" / "model.pt")
    assert torch.equal(model["wte.weight"], made.parameters["wte.weight"])
    varve.convert(folder, tmp_path / "native", to="varve")
    assert varve.diff(folder, tmp_path / "native") == []


# ---- what is wrong ----


def unequal_replica(made: CoreRun) -> None:
    made.model.ranks[2]["wte.weight"][4] += 1


def unequal_moment(made: CoreRun) -> None:
    made.optim.ranks[2]["state.wte.weight.__exp_avg"][1] += 1


def spec(made: CoreRun, name: str, rank: int) -> dict[str, object]:
    found: dict[str, object] = made.model.tensors[name]["shard_spec_per_file"][
        f"rank_{rank}.safetensors"
    ]
    return found


def range_outside(made: CoreRun) -> None:
    spec(made, "wte.weight", 1)["flattened_offsets"] = [[30, 36]]


def range_backwards(made: CoreRun) -> None:
    spec(made, "wte.weight", 1)["flattened_offsets"] = [[9, 2]]


def range_negative(made: CoreRun) -> None:
    spec(made, "wte.weight", 1)["flattened_offsets"] = [[-4, 2]]


def ranges_repeat(made: CoreRun) -> None:
    spec(made, "wte.weight", 0)["flattened_offsets"] = [[0, 35], [0, 35]]


def box_outside(made: CoreRun) -> None:
    spec(made, "wte.weight", 0).update(
        flattened_offsets=None, local_shape=[7, 6], global_offset=[0, 0]
    )


def no_offsets(made: CoreRun) -> None:
    spec(made, "wte.weight", 0)["flattened_offsets"] = None


def slice_of_other_length(made: CoreRun) -> None:
    made.model.ranks[1]["gate"] = torch.zeros(2)


def slice_of_other_dtype(made: CoreRun) -> None:
    made.model.ranks[0]["wte.weight"] = made.model.ranks[0]["wte.weight"].half()


def slice_missing(made: CoreRun) -> None:
    del made.model.ranks[0]["wte.weight"]


def slice_surplus(made: CoreRun) -> None:
    made.model.ranks[3]["other"] = torch.zeros(2)


def file_missing(made: CoreRun) -> None:
    made.model.ranks.pop()


def file_of_optimizer_missing(made: CoreRun) -> None:
    made.optim.ranks.pop()


def file_surplus(made: CoreRun) -> None:
    made.optim.ranks.append({})


def file_leaves_the_folder(made: CoreRun) -> None:
    files = made.model.tensors["gate"]["shard_spec_per_file"]
    files["../../rank_0.safetensors"] = files.pop("rank_0.safetensors")


def a_billion_ranks(made: CoreRun) -> None:
    files = made.model.tensors["gate"]["shard_spec_per_file"]
    files["rank_999999998.safetensors"] = {"flattened_offsets": [[0, 1]]}


def shape_overflows(made: CoreRun) -> None:
    made.model.tensors["gate"]["shape"] = [2**32, 2**32]


def group_missing(made: CoreRun) -> None:
    del made.optim.tensors["param_group1"], made.optim.ranks[0]["param_group1"]


def group_surplus(made: CoreRun) -> None:
    made.optim.add("param_group2", pickled({}), {0: (0, pickled({}).numel())})


def group_cut(made: CoreRun) -> None:
    content = made.optim.ranks[0]["param_group0"][:-3]
    made.optim.add("param_group0", content, {0: (0, content.numel())})


def key_unknown(made: CoreRun) -> None:
    made.optim.add("state.gate.__max_exp_avg", torch.zeros(1), {0: (0, 1)})


Harm = Callable[[CoreRun], None]
BROKEN: list[tuple[Harm, list[str]]] = [
    (unequal_replica, ["wte.weight", "elements [0, 35)", "model/rank_0.", "model/rank_2."]),
    (unequal_moment, ["wte.weight.exp_avg", "optim/rank_0.", "optim/rank_2."]),
    (range_outside, ["wte.weight", "model/metadata.json", "rank_1.", "[30, 36]"]),
    (range_backwards, ["wte.weight", "model/metadata.json", "rank_1.", "[9, 2]"]),
    (range_negative, ["wte.weight", "model/metadata.json", "rank_1."]),
    (ranges_repeat, ["wte.weight", "model/metadata.json", "rank 0", "more than once"]),
    (box_outside, ["wte.weight", "model/metadata.json", "rank_0.", "outside shape"]),
    (no_offsets, ["wte.weight", "model/metadata.json", "rank_0.", "local_shape"]),
    (slice_of_other_length, ["gate", "model/rank_1.", "[2]", "1 elements"]),
    (slice_of_other_dtype, ["wte.weight", "model/rank_0.", "float16", "float32"]),
    (slice_missing, ["wte.weight", "model/rank_0.", "35 elements"]),
    (slice_surplus, ["other", "model/rank_3.", "another save"]),
    (file_missing, ["model/rank_3.safetensors is missing", "4 ranks"]),
    (file_of_optimizer_missing, ["optim/rank_3.safetensors is missing"]),
    (file_surplus, ["optim/rank_4.safetensors", "another save"]),
    (file_leaves_the_folder, ["gate", "../../rank_0.safetensors"]),
    (a_billion_ranks, ["model/rank_4.safetensors is missing", "999999999 ranks"]),
    (shape_overflows, ["gate", "2^62 bytes"]),
    (group_missing, ["param_group1", "optim"]),
    (group_surplus, ["2 groups", "optim"]),
    (group_cut, ["param_group0", "optim"]),
    (key_unknown, ["state.gate.__max_exp_avg", "state_keys"]),
]


def assert_named(folder: Path, named: list[str]) -> None:
    (damage,) = varve.verify(folder)
    for text in named:
        assert text in damage.problem
    out = folder.parent / "out"
    for command in (
        lambda: varve.torch.read(folder),
        lambda: varve.convert(folder, out, to="varve"),
    ):
        with pytest.raises(varve.CorruptCheckpointError) as error:
            command()
        for text in named:
            assert text in str(error.value)
    assert not out.exists()


@pytest.mark.parametrize(("harm", "named"), BROKEN, ids=[harm.__name__ for harm, _ in BROKEN])
def test_what_is_wrong_is_named_by_every_command(
    harm: Harm, named: list[str], tmp_path: Path
) -> None:
    made = run(2, copies=2)
    harm(made)
    assert_named(made.write(tmp_path / "step1"), named)


def test_unequal_boxes_are_named(tmp_path: Path) -> None:
    made = CoreRun(parameters(), 2, "box").build()
    files = made.model.tensors["head.weight"]["shard_spec_per_file"]
    files["rank_1.safetensors"] = files["rank_0.safetensors"]
    named = ["head.weight", "[0:3, 0:2]", "model/rank_0.", "model/rank_1."]
    assert_named(made.write(tmp_path / "step1"), named)


def test_boxes_that_overlap_are_named(tmp_path: Path) -> None:
    made = CoreRun(parameters(), 2, "box").build()
    files = made.model.tensors["head.weight"]["shard_spec_per_file"]
    files["rank_1.safetensors"] |= {"global_offset": [0, 1]}
    named = ["head.weight", "overlap", "model/rank_0.", "model/rank_1."]
    assert_named(made.write(tmp_path / "step1"), named)


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    folder = run(2, copies=2).write(tmp_path / "step1")
    path = folder / "model" / "rank_1.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert_named(folder, ["model/rank_1.safetensors"])


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"tensors": 3}', '{"tensors": {"a": {"shape": [1]}}}']
)
def test_malformed_metadata_are_named(content: str, tmp_path: Path) -> None:
    folder = run(2).write(tmp_path / "step1")
    (folder / "model" / "metadata.json").write_text(content)
    assert_named(folder, ["model/metadata.json"])


def test_missing_metadata_are_named(tmp_path: Path) -> None:
    folder = run(2).write(tmp_path / "step1")
    (folder / "optim" / "metadata.json").unlink()
    assert_named(folder, ["optim/metadata.json is missing"])


def test_a_name_twice_in_the_metadata_is_refused(tmp_path: Path) -> None:
    made = run(1)
    folder = made.write(tmp_path / "step1")
    path = folder / "model" / "metadata.json"
    entry = json.dumps(made.model.tensors["gate"])
    path.write_text(path.read_text()[:-2] + f', "gate": {entry}}}}}')
    assert_named(folder, ['duplicate name "gate"'])


def test_elements_that_no_rank_stores_are_found(tmp_path: Path) -> None:
    made = run(2)
    spec(made, "wte.weight", 0)["flattened_offsets"] = [[0, 30]]
    made.model.ranks[0]["wte.weight"] = made.model.ranks[0]["wte.weight"][:30]
    folder = made.write(tmp_path / "step1")
    assert any("model.wte.weight" in damage.tensors for damage in varve.verify(folder))
    with pytest.raises(varve.CorruptCheckpointError, match=r"wte\.weight"):
        varve.torch.read(folder, "model")
    with pytest.raises(varve.CorruptCheckpointError, match=r"wte\.weight"):
        varve.convert(folder, tmp_path / "out", to="varve")
