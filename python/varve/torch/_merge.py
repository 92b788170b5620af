"""Merges of the data loaders' states, when a run goes on with another number of ranks."""

from __future__ import annotations

from typing import Any

from varve import _arguments
from varve.errors import InvalidArgumentError, UnsupportedError


def merge_dataloaders(values: list[Any], rank: int, world: int) -> Any:
    """Merges states of torchdata's StatefulDataLoader, as `PerRank(loader, merge_dataloaders)`.

    For datasets with a length and a sampler that deals the samples out among the ranks in turn, such as
    DistributedSampler. The ranks together then go on behind the samples that the ranks of the save have taken in this
    epoch, whatever the sizes of their batches. Where that number is no multiple of `world`, up to
    world - 1 samples are taken again. (Checked with torchdata 0.11: a state holds the samples that its
    batch sampler has taken.)

    Raises:
        UnsupportedError: States that cannot be divided: those of IterableDatasets, and of samplers that
            keep a state of their own.
        InvalidArgumentError: The ranks were at different samples.
    """
    mains = [_main_of(state) for state in values]
    taken = [main["_sampler_iter_state"]["samples_yielded"] for main in mains]
    if len(set(taken)) > 1:
        raise InvalidArgumentError(
            f"the data loaders of the {len(values)} ranks have taken different numbers of samples: {taken}"
        )
    mine = sum(taken) // world
    main = {**mains[0], "_sampler_iter_state": {"samples_yielded": mine}}
    if "_snapshot" not in values[0]:
        return main
    return {**values[0], "_snapshot": {**values[0]["_snapshot"], "_main_snapshot": main}}


def _main_of(state: Any) -> dict[str, Any]:
    """Returns the part of a state that has the sampler's, checked."""
    main = state
    keepers = [state]  # Where a dataset's own state would be.
    if isinstance(state, dict) and "_snapshot" in state:  # Of a loader with workers.
        main = state["_snapshot"].get("_main_snapshot")
        keepers = list(state["_snapshot"].get("_worker_snapshots", {}).values())
        if state.get("_steps_since_snapshot"):
            raise UnsupportedError(
                "the data loader's last snapshot is older than its position: only one with "
                "snapshot_every_n_steps=1 can be divided among another number of ranks"
            )
    sampler = main.get("_sampler_iter_state") if isinstance(main, dict) else None
    keeps_state = isinstance(main, dict) and any(
        one.get("dataset_state") or one.get("fetcher_state") for one in keepers
    )
    if keeps_state or not isinstance(sampler, dict) or set(sampler) != {"samples_yielded"}:
        raise UnsupportedError(
            f"{_arguments.shown(state)} cannot be divided among another number of ranks: want the state of a "
            "StatefulDataLoader over a dataset with a length, which keeps no state of its own, nor its sampler. Give "
            "PerRank a merge that knows this one"
        )
    return dict(main)
