"""varve.olmo: real FSDP and DDP on gloo, saved in each of OLMo's layouts and restored on other worlds."""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from typing import Any

import olmo_jobs as jobs
import pytest
import torch
import torch.distributed.fsdp._flat_param as flat_param
from ranks import errors_of_ranks, run_ranks

import varve
import varve.olmo as olmo
import varve.torch

LAYOUTS = ["full", "torch_new", "torch_legacy", "local", "olmo_core"]


def states(data: bytes) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=False)
    return loaded


def assert_equal_states(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found["model"].keys() == wanted["model"].keys()
    for name, tensor in wanted["model"].items():
        assert torch.equal(found["model"][name], tensor), name
    for name, entries in wanted["optim"]["state"].items():
        for key, tensor in entries.items():
            assert torch.equal(found["optim"]["state"][name][key], tensor), (name, key)


def assert_equal_groups(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for mine, theirs in zip(
        found["optim"]["param_groups"], wanted["optim"]["param_groups"], strict=True
    ):
        assert sorted(mine.get("param_names", mine["params"])) == sorted(theirs["params"])
        for key in ("lr", "betas", "eps", "weight_decay"):
            assert mine[key] == theirs[key], key


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("kind", "size"), [("fsdp1", 3), ("fsdp2", 2), ("ddp", 2)])
def test_a_run_is_saved_and_restored_on_other_worlds(
    kind: str, size: int, layout: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "step1")
    wanted = states(run_ranks(size, jobs.save, kind, layout, path)[0])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step1"]
    assert varve.verify(path) == []
    whole = varve.torch.read(path)
    assert_equal_states(whole, wanted)
    assert_equal_groups(whole, wanted)
    targets = [("fsdp1", 2), ("fsdp2", 3)] if kind != "fsdp1" else [("fsdp1", size), ("ddp", 2)]
    for target, world in targets:
        results = run_ranks(world, jobs.restore, target, path)
        found = states(results[0][0])
        assert_equal_states(found, wanted)
        assert_equal_groups(found, wanted)
        own = range(size) if layout != "full" else [0]
        assert [state["rank"] for _, state in results] == [
            rank if rank in own else 0 for rank in range(world)
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "size", "world"),
    [
        ("torch_new", 6, 5),
        ("torch_legacy", 5, 6),
        ("local", 6, 4),
        ("local", 1, 5),
        ("olmo_core", 4, 1),
        ("full", 5, 1),
    ],
)
def test_worlds_of_one_to_six_ranks(layout: str, size: int, world: int, tmp_path: Path) -> None:
    path = str(tmp_path / "step1")
    wanted = states(run_ranks(size, jobs.save, "fsdp1", layout, path)[0])
    assert varve.verify(path) == []
    results = run_ranks(world, jobs.restore, "fsdp1", path)
    assert_equal_states(states(results[0][0]), wanted)
    assert_equal_groups(states(results[0][0]), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hybrid", "no_shard"])
def test_replicas_of_shards_are_saved(kind: str, tmp_path: Path) -> None:
    # Without sharding all ranks have the same: what differs is only how local stores it.
    for layout in LAYOUTS if kind == "hybrid" else ["local"]:
        path = str(tmp_path / layout)
        wanted = states(run_ranks(4, jobs.save, kind, layout, path)[0])
        assert varve.verify(path) == []
        assert_equal_states(varve.torch.read(path), wanted)
        assert_equal_states(states(run_ranks(2, jobs.restore, "fsdp1", path)[0][0]), wanted)


@pytest.mark.slow
def test_flat_parameters_without_the_original_ones(tmp_path: Path) -> None:
    for layout in ("full", "torch_new", "torch_legacy"):
        path = str(tmp_path / layout)
        run_ranks(2, jobs.save, "flat", layout, path)
        assert varve.verify(path) == []
        whole = varve.torch.read(path)
        results = run_ranks(3, jobs.restore, "flat", path)
        found = states(results[0][0])
        for name, tensor in whole["model"].items():
            assert torch.equal(found["model"][name], tensor), name


@pytest.mark.slow
def test_the_engine_copies_fsdps_shards_and_they_are_torchs() -> None:
    for kinds in run_ranks(4, jobs.copied_shards):
        assert kinds == [[kind, True, True, True] for kind in ("fsdp1", "flat", "hybrid")]


def test_one_process_needs_no_torch_distributed(tmp_path: Path) -> None:
    model, optim = jobs.trained("plain", 1)
    for layout, kind in jobs.CHECKPOINTERS.items():
        path = tmp_path / layout
        kind(jobs.Config()).save_checkpoint(path, model, optim, {"global_step": 3})
        other, again = jobs.made("plain", 1, 9)
        assert kind(jobs.Config()).restore_checkpoint(path, other, again) == {"global_step": 3}
        for name, tensor in model.state_dict().items():
            assert torch.equal(other.state_dict()[name], tensor)
        assert [entries["step"] for entries in again.state_dict()["state"].values()] == [2.0] * 12


def test_buffers_and_scalars_are_saved_in_every_layout(tmp_path: Path) -> None:
    for layout, kind in jobs.CHECKPOINTERS.items():
        net = jobs.Net(buffer=True)
        optim = torch.optim.SGD(net.parameters(), lr=0.1)
        kind(jobs.Config()).save_checkpoint(tmp_path / layout, net, optim, {})
        found = varve.torch.read(tmp_path / layout, keys="model")["model"]
        assert torch.equal(found["seen"], torch.arange(5))
        assert found["scale"] == 3


def test_extra_states_of_modules_are_saved_or_refused(tmp_path: Path) -> None:
    for layout, kind in jobs.CHECKPOINTERS.items():
        net = jobs.Counting()
        optim = torch.optim.SGD(net.parameters(), lr=0.1)
        if layout in ("local", "olmo_core"):
            with pytest.raises(NotImplementedError, match="_extra_state"):
                kind(jobs.Config()).save_checkpoint(tmp_path / layout, net, optim, {})
            continue
        kind(jobs.Config()).save_checkpoint(tmp_path / layout, net, optim, {})
        other = jobs.Counting()
        other.calls = 0
        again = torch.optim.SGD(other.parameters(), lr=0.1)
        kind(jobs.Config()).restore_checkpoint(tmp_path / layout, other, again)
        assert other.calls == 7


def test_torch_opens_the_whole_states(tmp_path: Path) -> None:
    wanted = states(run_ranks(2, jobs.save, "fsdp1", "full", str(tmp_path / "x"))[0])
    found = {
        part: torch.load(tmp_path / "x" / f"{part}.pt", weights_only=True)
        for part in ("model", "optim")
    }
    assert_equal_states(found, wanted)
    assert torch.load(tmp_path / "x" / "train.pt")["global_step"] == 100
    assert sorted(entry.name for entry in (tmp_path / "x").iterdir()) == [
        "config.yaml",
        "model.pt",
        "optim.pt",
        "train.pt",
    ]


def test_local_files_follow_the_originals_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joins the flat shards as OLMo's unshard does: by _shard_param_infos, and nothing else."""
    wanted = states(run_ranks(3, jobs.save, "fsdp1", "local", str(tmp_path / "x"))[0])
    raw = (tmp_path / "x" / "model" / "rank0.pt").read_bytes()
    assert b"torch.distributed.fsdp.flat_param\n" in raw
    assert b"_flat_param\n" not in raw.replace(b"fsdp.flat_param\n", b"")
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp.flat_param", flat_param)
    full: dict[str, torch.Tensor] = {}
    for rank in range(3):
        for module in torch.load(tmp_path / "x" / f"model/rank{rank}.pt", weights_only=False)[
            "modules"
        ]:
            prefix = module["name"].replace("_fsdp_wrapped_module.", "")
            prefix = prefix.removesuffix("_fsdp_wrapped_module")
            for handle in module["handles"]:
                columns = ("_fqns", "_shapes", "_shard_param_infos")
                rows = zip(*(handle[f"flat_param.{column}"] for column in columns), strict=True)
                for fqn, shape, info in rows:
                    name = f"{prefix}.{fqn}".lstrip(".").replace("_fsdp_wrapped_module.", "")
                    target = full.setdefault(name, torch.full(shape, torch.nan)).view(-1)
                    if info.in_shard:
                        begin = info.offset_in_shard
                        target[info.intra_param_start_idx : info.intra_param_end_idx + 1] = handle[
                            "flat_param.data"
                        ][begin : begin + info.numel_in_shard]
    assert full.keys() == wanted["model"].keys()
    for name, tensor in wanted["model"].items():
        assert torch.equal(full[name], tensor), name


@pytest.mark.slow
def test_a_save_over_another_layout_leaves_none_of_its_files(tmp_path: Path) -> None:
    path = tmp_path / "step1"
    for layout, size in (
        ("local", 3),
        ("torch_legacy", 2),
        ("torch_new", 3),
        ("olmo_core", 3),
        ("full", 2),
        ("olmo_core", 2),
        ("local", 2),
    ):
        wanted = states(run_ranks(size, jobs.save, "fsdp1", layout, str(path), size)[0])
        (path / "notes.txt").write_text("mine")
        assert varve.verify(path) == []
        assert_equal_states(varve.torch.read(path), wanted)
    names = {str(entry.relative_to(path)) for entry in path.rglob("*") if entry.is_file()}
    ranks = {f"{part}/rank{rank}.pt" for part in ("model", "optim", "train") for rank in range(2)}
    assert names == {"config.yaml", "metadata.yaml", "notes.txt"} | ranks
    assert [entry.name for entry in tmp_path.iterdir()] == ["step1"]


def test_a_checkpoint_stands_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "step1"
    model, optim = jobs.trained("plain", 1)
    kind = olmo.LocalShardedCheckpointer
    kind(jobs.Config()).save_checkpoint(path, model, optim, {"global_step": 1})
    with pytest.raises(FileExistsError, match="step1"):
        kind(jobs.Config()).save_checkpoint(path, model, optim, {"global_step": 2})
    with pytest.raises(Exception, match="pickle"):
        kind(jobs.Config(overwrite=True)).save_checkpoint(path, model, optim, {"f": lambda: 0})
    assert varve.verify(path) == []
    assert varve.torch.read(path, keys="train")["train"] == {"global_step": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["step1"]


@pytest.mark.slow
def test_averages_of_gradient_norms_are_restored(tmp_path: Path) -> None:
    everything = ["exp_avg", "exp_avg_sq", "grad_norm_exp_avg", "step"]
    results = run_ranks(3, jobs.average_norms, str(tmp_path / "x"))
    kinds = {tuple(keys) for keys_of_rank in results for keys in keys_of_rank}
    assert kinds == {tuple(everything), ("grad_norm_exp_avg",)}


def test_a_folder_that_is_no_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    model, optim = jobs.trained("plain", 1)
    checkpointer = olmo.LocalShardedCheckpointer(jobs.Config(overwrite=True))
    with pytest.raises(varve.PreconditionError, match="not a checkpoint"):
        checkpointer.save_checkpoint(tmp_path / "mine", model, optim, {})
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_failure_on_one_rank_raises_on_all(layout: str, tmp_path: Path) -> None:
    results = run_ranks(3, jobs.fail_on_one, layout, str(tmp_path / "x"))
    if layout == "full":  # Rank 0's state of the trainer is the one that is saved.
        assert results == ["saved"] * 3
        return
    assert "pickle" in results[1]
    assert "rank 1" in results[0]
    assert "rank 1" in results[2]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_full_save_and_restore_gather_nothing(tmp_path: Path) -> None:
    for saved, restored in run_ranks(2, jobs.memory_of_full, str(tmp_path / "x")):
        assert saved < 384 << 20  # Of 512 MiB in all, of which each rank holds half.
        assert restored < 192 << 20


@pytest.mark.slow
def test_nodes_with_disks_of_their_own(tmp_path: Path) -> None:
    paths = run_ranks(4, jobs.save_on_nodes, "local", str(tmp_path))
    union = tmp_path / "union"
    for node in range(2):
        folder = Path(paths[node * 2])
        files = {str(entry.relative_to(folder)) for entry in folder.rglob("*") if entry.is_file()}
        ranks = (2 * node, 2 * node + 1)
        assert files == {"config.yaml", "metadata.yaml"} | {
            f"{part}/rank{rank}.pt" for part in ("model", "optim", "train") for rank in ranks
        }
        for name in files:
            (union / name).parent.mkdir(parents=True, exist_ok=True)
            (union / name).write_bytes((folder / name).read_bytes())
    assert varve.verify(union) == []
    results = run_ranks(2, jobs.restore, "fsdp2", str(union))
    assert results[0][1]["global_step"] == 100


@pytest.mark.parametrize("layout", ["torch_new", "torch_legacy", "local"])
def test_each_rank_has_a_trainers_state_of_its_own(layout: str, tmp_path: Path) -> None:
    path = str(tmp_path / "step1")
    assert run_ranks(2, jobs.save_own_states, layout, path) == [True, True]
    assert varve.verify(path) == []


def test_other_groups_are_an_assertion_error_on_every_rank(tmp_path: Path) -> None:
    path = str(tmp_path / "step1")
    run_ranks(2, jobs.save, "fsdp1", "local", path)
    assert run_ranks(2, jobs.wrong_groups, path) == ["WrongGroupsError"] * 2


def test_rank_files_that_would_not_belong_together_are_not_written(tmp_path: Path) -> None:
    errors = errors_of_ranks(2, jobs.save_other_steps, str(tmp_path / "step1"))
    assert all('"global_step" is 0 on rank 0 and 1 on rank 1' in text for text in errors.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_same_ranks_restore_from_the_disks_of_their_nodes(tmp_path: Path) -> None:
    path = str(tmp_path / "shared")
    wanted = states(run_ranks(4, jobs.save, "fsdp1", "local", path)[0])
    run_ranks(4, jobs.save_on_nodes, "local", str(tmp_path))
    results = run_ranks(4, jobs.restore_on_nodes, str(tmp_path))
    assert_equal_states(states(results[0][0]), wanted)
    assert [state["rank"] for _, state in results] == [0, 1, 2, 3]
    # Other ranks need all files, and so do these where a rank's own is missing.
    errors = errors_of_ranks(2, jobs.restore, "fsdp1", str(tmp_path / "node1" / "step1"))
    assert all("model/rank0.pt is missing" in error for error in errors.values()), errors
    for part in ("model", "optim", "train"):
        (tmp_path / "shared" / part / "rank3.pt").unlink()
    errors = errors_of_ranks(4, jobs.restore, "fsdp1", path)
    assert all("model/rank3.pt is missing" in error for error in errors.values()), errors


def test_the_checkpointer_is_chosen_by_text_or_enum() -> None:
    class Type:
        value = "torch_new"

    assert (
        type(olmo.build_sharded_checkpointer(jobs.Config(kind=Type())))
        is jobs.CHECKPOINTERS["torch_new"]
    )
    legacy = olmo.build_sharded_checkpointer(
        jobs.Config(), name="torch_legacy", use_shared_mem_impl=True
    )
    assert type(legacy) is jobs.CHECKPOINTERS["torch_legacy"]
    with pytest.raises(NotImplementedError, match="torch_old"):
        olmo.build_sharded_checkpointer(jobs.Config(), name="torch_old")


def test_one_group_of_a_checkpoint_serves_two(tmp_path: Path) -> None:
    model, _ = jobs.made("plain", 1, 1)
    optim = torch.optim.AdamW(model.parameters(), lr=0.5)
    olmo.FullCheckpointer(jobs.Config()).save_checkpoint(tmp_path / "x", model, optim, {})
    other, two = jobs.made("plain", 1, 2)
    two.param_groups[0]["max_grad_norm"] = 7.0
    olmo.FullCheckpointer(jobs.Config()).restore_checkpoint(tmp_path / "x", other, two)
    assert [group["lr"] for group in two.param_groups] == [0.5, 0.5]
    assert two.param_groups[1]["weight_decay"] == 0.0
    assert two.param_groups[0]["max_grad_norm"] == 7.0
    two.param_groups[1]["weight_decay"] = 0.1
    with pytest.raises(AssertionError, match="weight_decay 0"):
        olmo.FullCheckpointer(jobs.Config()).restore_checkpoint(tmp_path / "x", other, two)


def test_the_state_of_another_optimizer_is_warned_of(tmp_path: Path) -> None:
    model, _ = jobs.made("plain", 1, 1)
    optim = torch.optim.AdamW(model.parameters())
    optim.param_groups[0]["initial_lr"] = 0.1  # A scheduler's, as many runs have it.
    olmo.FullCheckpointer(jobs.Config()).save_checkpoint(tmp_path / "x", model, optim, {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        olmo.FullCheckpointer(jobs.Config()).restore_checkpoint(
            tmp_path / "x", model, torch.optim.AdamW(model.parameters())
        )
    with pytest.warns(UserWarning, match="betas, .*which SGD has not"):
        olmo.FullCheckpointer(jobs.Config()).restore_checkpoint(
            tmp_path / "x", model, torch.optim.SGD(model.parameters())
        )


def test_an_older_olmo_s_names_are_understood(tmp_path: Path) -> None:
    """One stored norm becomes two, as in OLMo's own `_make_state_dict_compatible`."""

    class Old(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(4)

    class New(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn_norm = torch.nn.LayerNorm(4)
            self.ff_norm = torch.nn.LayerNorm(4)

        def _make_state_dict_compatible(self, state: dict[str, Any]) -> tuple[dict[str, Any], Any]:
            became = {name: {f"attn_{name}", f"ff_{name}"} for name in state}
            return {new: state[old] for old, news in became.items() for new in news}, became

    old = Old()
    old.norm.weight.data.fill_(5)
    optim = torch.optim.AdamW(old.parameters())
    old.norm(torch.ones(2, 4)).sum().backward()
    optim.step()
    olmo.FullCheckpointer(jobs.Config()).save_checkpoint(tmp_path / "x", old, optim, {})
    new = New()
    again = torch.optim.AdamW(new.parameters())
    olmo.FullCheckpointer(jobs.Config()).restore_checkpoint(tmp_path / "x", new, again)
    for norm in (new.attn_norm, new.ff_norm):
        assert torch.equal(norm.weight, old.norm.weight)
        wanted = optim.state[old.norm.weight]["exp_avg"]
        assert torch.equal(again.state[norm.weight]["exp_avg"], wanted)


def test_the_functions_of_a_model_and_its_optimizer(tmp_path: Path) -> None:
    model, optim = jobs.trained("plain", 1)
    olmo.save_fsdp_model_and_optim_state(tmp_path, model, optim)
    with pytest.raises(FileExistsError):
        olmo.save_fsdp_model_and_optim_state(tmp_path, model, optim)
    olmo.save_fsdp_model_and_optim_state(tmp_path, model, optim, save_overwrite=True)
    other, again = jobs.made("plain", 1, 5)
    olmo.load_fsdp_model_and_optim_state(tmp_path, other, again)
    third, _ = jobs.made("plain", 1, 6)
    olmo.load_model_state(tmp_path, third)
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
        assert torch.equal(third.state_dict()[name], tensor)
    assert again.state_dict()["state"][0]["step"] == 2
    with pytest.raises(FileNotFoundError):
        olmo.load_model_state(tmp_path / "none", third)


def test_state_dicts_in_files(tmp_path: Path) -> None:
    state = {"step": 3, "w": torch.arange(4.0)}
    olmo.save_state_dict(tmp_path, "train/rank0.pt", state)
    with pytest.raises(FileExistsError):
        olmo.save_state_dict(tmp_path, "train/rank0.pt", state)
    olmo.save_state_dict(
        tmp_path, "train/rank0.pt", {"step": 4}, save_overwrite=True, synchronize=False
    )
    assert olmo.load_state_dict(tmp_path, "train/rank0.pt") == {"step": 4}
    assert torch.load(tmp_path / "train/rank0.pt") == {"step": 4}
    with pytest.raises(FileNotFoundError):
        olmo.load_state_dict(tmp_path, "train/rank1.pt")
    with pytest.raises(NotImplementedError, match="s3"):
        olmo.save_state_dict("ftp://bucket/x", "a.pt", state)


def test_copies_go_to_another_directory(tmp_path: Path) -> None:
    model, optim = jobs.trained("plain", 1)
    checkpointer = olmo.LocalShardedCheckpointer(jobs.Config())
    checkpointer.save_checkpoint(
        tmp_path / "x", model, optim, trainer_state={"a": 1}, upload_to=str(tmp_path / "copy")
    )
    assert varve.verify(tmp_path / "copy") == []
    assert varve.diff(tmp_path / "x", tmp_path / "copy") == []


def test_the_storage_classes_work_with_torchs_dcp(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    state = {"w": torch.arange(6.0)}
    dcp.save(state, storage_writer=olmo.RemoteFileSystemWriter(tmp_path / "x"))
    found = {"w": torch.zeros(6)}
    dcp.load(found, storage_reader=olmo.RemoteFileSystemReader(tmp_path / "x"))
    assert torch.equal(found["w"], state["w"])
    with pytest.raises(ValueError, match="at least 1"):
        olmo.RemoteFileSystemWriter(tmp_path / "y", thread_count=0)
