"""OLMo's checkpointers on Varve's engine: change the import and keep the script.

Each class writes the layout that OLMo's class of that name writes, and restores a checkpoint of any of
OLMo's layouts on any number of ranks. See docs/other-formats.md.

File systems: ranks find out whether they see one directory. Where nodes have disks of their own, the rank
with `FS_LOCAL_RANK` 0 (by default the first of its node) makes and publishes its disk's directory; a
`local` or `torch_legacy` checkpoint is then the union of the nodes' directories.

Example, on every rank:
    >>> from varve.olmo import build_sharded_checkpointer  # doctest: +SKIP
    >>> checkpointer = build_sharded_checkpointer(cfg)  # doctest: +SKIP
    >>> checkpointer.save_checkpoint("run/step100", fsdp_model, optim, {"global_step": 100})  # doctest: +SKIP
    >>> state = checkpointer.restore_checkpoint("run/step100", fsdp_model, optim)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any, Literal

from varve._arguments import RemoteOverwrite
from varve.olmo._checkpointer import Checkpointer, Config
from varve.olmo._errors import (
    NoFileSystemError,
    OLMoCheckpointError,
    OLMoNetworkError,
    UnknownTypeError,
    WrongGroupsError,
)
from varve.olmo._files import load_state_dict, save_state_dict
from varve.olmo._fsdp import (
    RemoteFileSystemReader,
    RemoteFileSystemWriter,
    load_fsdp_model_and_optim_state,
    load_fsdp_optim_state,
    load_model_state,
    save_fsdp_model_and_optim_state,
)
from varve.olmo._full import FullCheckpointer
from varve.olmo._olmo_core import OlmoCoreCheckpointer
from varve.olmo._sharded import (
    LocalShardedCheckpointer,
    TorchLegacyShardedCheckpointer,
    TorchNewStyleShardedCheckpointer,
)

__all__ = [
    "Checkpointer",
    "FullCheckpointer",
    "LocalShardedCheckpointer",
    "NoFileSystemError",
    "OLMoCheckpointError",
    "OLMoNetworkError",
    "OlmoCoreCheckpointer",
    "RemoteFileSystemReader",
    "RemoteFileSystemWriter",
    "TorchLegacyShardedCheckpointer",
    "TorchNewStyleShardedCheckpointer",
    "UnknownTypeError",
    "WrongGroupsError",
    "build_sharded_checkpointer",
    "load_fsdp_model_and_optim_state",
    "load_fsdp_optim_state",
    "load_model_state",
    "load_state_dict",
    "save_fsdp_model_and_optim_state",
    "save_state_dict",
]

_CHECKPOINTERS: dict[str, type[Checkpointer]] = {
    "torch_new": TorchNewStyleShardedCheckpointer,
    "torch_legacy": TorchLegacyShardedCheckpointer,
    "local": LocalShardedCheckpointer,
    "olmo_core": OlmoCoreCheckpointer,
}


def build_sharded_checkpointer(
    cfg: Config,
    *,
    name: Any = None,
    use_shared_mem_impl: bool = False,
    class_paths: Literal["oldest", "installed"] = "oldest",
    remote_overwrite: RemoteOverwrite = "refuse",
    upload_in_background: bool = False,
) -> Checkpointer:
    """Returns the checkpointer that a configuration asks for.

    Args:
        cfg: Any object with `save_overwrite`, `sharded_checkpointer` and `save(path)`.
        name: "torch_new", "torch_legacy", "local" or "olmo_core", as text or as OLMo's enum; None for the
            configuration's.
        use_shared_mem_impl: Accepted for torch_legacy; changes nothing.
        class_paths: As `Checkpointer` takes it, like the next two.
        remote_overwrite: Whether a save may remove a checkpoint at a remote `dir` or `upload_to` first.
        upload_in_background: Do not wait for uploads.

    Raises:
        UnknownTypeError: There is no such checkpointer (a NotImplementedError).
    """
    chosen = cfg.sharded_checkpointer if name is None else name  # type: ignore[attr-defined]
    text = str(getattr(chosen, "value", chosen))
    kind = _CHECKPOINTERS.get(text)
    if kind is None:
        raise UnknownTypeError(
            f"sharded checkpointer {text!r}: want one of {', '.join(sorted(_CHECKPOINTERS))}"
        )
    if kind is TorchLegacyShardedCheckpointer:
        return TorchLegacyShardedCheckpointer(
            cfg,
            use_shared_mem_impl=use_shared_mem_impl,
            class_paths=class_paths,
            remote_overwrite=remote_overwrite,
            upload_in_background=upload_in_background,
        )
    return kind(
        cfg,
        class_paths=class_paths,
        remote_overwrite=remote_overwrite,
        upload_in_background=upload_in_background,
    )
