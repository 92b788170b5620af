"""The checkpointer of OLMo-core's first layout."""

from __future__ import annotations

from varve.errors import UnsupportedError
from varve.olmo import _optim, _ranks
from varve.olmo._checkpointer import Checkpointer, Training
from varve.olmo._core_layout import CoreWriter, Description, write_metadata
from varve.olmo._directory import Directory
from varve.olmo._pieces import HeldModel
from varve.olmo._steps import Steps


class OlmoCoreCheckpointer(Checkpointer):
    """Saves what OLMo-core 0.1 saves: slices of flattened tensors in safetensors files.

    The directories `model` and `optim` hold a file of each rank and `metadata.json`; `train/rank{R}.pt`
    is the trainer's. Nothing is gathered, and OLMo-core restores it on any number of ranks.
    """

    def _write(self, directory: Directory, steps: Steps, training: Training) -> None:
        directory.require_shared("olmo_core")
        what = f"save {directory.path}"
        held = HeldModel(training.model)
        writer = CoreWriter(steps.rank)

        def describe() -> Description:
            if held.extra:
                raise UnsupportedError(
                    f"the model has extra states, {sorted(held.extra)}: the olmo_core layout holds "
                    "tensors; use torch_new"
                )
            optim = _optim.named_state(held, training.optim)
            return writer.describe(held.tensors, optim["state"], optim["param_groups"])

        ranks = steps.each(what, describe)

        def write() -> None:
            for path in writer.write(directory.path, ranks):
                directory.add(path)

        def finish() -> None:
            for path in write_metadata(directory.path, ranks):
                directory.add(path)

        steps.each(what, write)
        steps.first(what, finish)
        self._write_files(directory, steps, {f"train/rank{_ranks.rank()}.pt": training.state})
