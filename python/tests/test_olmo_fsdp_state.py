"""State of an FSDP1 optimizer that the checkpoint and the optimizer do not share, in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

import varve.olmo


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_state_of_the_users_and_of_what_is_frozen_now_is_loaded(one_rank: None) -> None:
    def trained(*names: str) -> tuple[FSDP, torch.optim.Optimizer]:
        model = FSDP(torch.nn.Linear(4, 3), device_id=torch.device("cpu"), use_orig_params=True)
        chosen = [p for name, p in model.named_parameters() if name.endswith(names)]
        optim = torch.optim.AdamW(chosen, lr=0.1)
        model(torch.rand(2, 4)).sum().backward()
        optim.step()
        return model, optim

    state = FSDP.optim_state_dict(*trained("weight", "bias"))
    state["state"]["my_sketch"] = {"x": torch.ones(3)}
    for group in state["param_groups"]:
        for key in ("params", "param_names"):
            if key in group:
                group[key] = [name for name in group[key] if name.endswith("weight")]
    wanted = next(v for name, v in state["state"].items() if name.endswith("weight"))
    model, optim = trained("weight")
    varve.olmo.load_fsdp_optim_state(model, optim, state)
    assert torch.equal(optim.state_dict()["state"][0]["exp_avg"], wanted["exp_avg"])
    assert torch.equal(optim.state_dict()["state"]["my_sketch"]["x"], torch.ones(3))
