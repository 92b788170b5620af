"""save, async_save and defer_save.

Each makes the engine's options of its arguments, in the call of all ranks; what is below takes them whole.
The engine writes while the caller waits, or copies the state in the call and writes the copy on threads of
its own, without the GIL (src/async/job.cc), or submits it to the agent. How a call in the background begins
is in _background.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from varve import _core, _engine, _hf
from varve._core import SaveReport, background
from varve._files import Source as FileSource
from varve._hf import HfOptions
from varve._upload import copy_of, target_of
from varve._wrappers import to_save
from varve.errors import InvalidArgumentError
from varve.torch import _run
from varve.torch._background import begin
from varve.torch._handle import DeferredSaveHandle, SaveHandle
from varve.torch._stager import Stager
from varve.torch._tensors import TorchArrays


def save(
    state_dict: Mapping[Any, Any],
    path: str | os.PathLike[str],
    *,
    process_group: Any = None,
    overwrite: bool | Literal["damaged"] = False,
    files: Mapping[str, FileSource] | None = None,
    allow_pickle: bool = False,
    coordinate: bool = True,
    format: Literal["varve", "dcp", "hf"] = "varve",
    hf: HfOptions | None = None,
    strip_wrappers: bool = False,
    save_id: bytes | None = None,
    on_difference: Literal["keep", "first", "error"] = "keep",
    check_replicas: Literal["samples", "full"] = "samples",
    timeout: float = 1800.0,
    upload_to: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SaveReport:
    """Saves the ranks' states as one checkpoint, the directory `path`.

    Collective over the process group: all ranks call it with the same path. Returns on every rank when
    the checkpoint is durable and visible, or raises the same error on every rank; then none has become
    visible and an older one at `path` is intact. Tensors must not change until it returns. The GIL is
    released while bytes move.

    Args:
        state_dict: Tensors and plain values under the same name on several ranks are replicas and are
            stored once; wrap what differs between ranks in `PerRank`. See `on_difference`.
        path: On storage that all ranks share; parents are made as needed.
        process_group: Defaults to all ranks of torch.distributed, or one process without it.
        overwrite: Replace a checkpoint at `path`, which stays loadable until the new one is durable. Files
            in its directory that are not part of it are kept. With "damaged", replace it only if it does
            not verify: rank 0 reads all of it first, under the name's lock.
        files: Files that belong to the checkpoint and are replaced with it, such as a `config.json` or a
            tokenizer: by name ("tokenizer/vocab.json" is in a folder), their content as bytes or the
            path to read it from, now. See `varve.files`. At most 256 MiB in all.
            Those of rank 0 count; not with `coordinate=False`.
        allow_pickle: Store values of unknown types as pickles, instead of refusing them.
        coordinate: False saves without the ranks connected to each other: each publishes its own file,
            and the directory is a checkpoint once all are there. Replicas are then stored by every
            rank.
        format: "varve"; "dcp" for a checkpoint that stock PyTorch opens: `.metadata` and `.distcp`
            files, committed like any other and with Varve's checksums in the index; or "hf" for a folder that
            Hugging Face's tools open: safetensors files with whole tensors, into which every rank writes
            its parts in place, and their index. It holds tensors alone: give the model's state dict. Of
            tied tensors the first of the state is stored. A page of 4 KiB may
            have bytes of several ranks (edges of rows; shards by columns everywhere): more than 1 GiB in such
            pages is refused.
        hf: Options of format="hf".
        strip_wrappers: Leave the parts out of names that wrappers of modules add: `_orig_mod`,
            `_checkpoint_wrapped_module`, `_fsdp_wrapped_module` and `module`. (A load needs no such thing: it
            takes names that differ by these alone for the same.)
        save_id: 16 bytes that name the attempt, only for `coordinate=False` and the same on all ranks.
            By default it follows from the job's rendezvous store, the path and a count of saves.
        on_difference: Decides what is saved where ranks hold different values of a tensor, of a shard of it,
            or of a plain value, under one name. "keep" saves each different value once, with the ranks that
            hold it: `load` on as many ranks gives each its own back. "first" saves the value of the
            lowest of these ranks; so does "keep" in all formats but "varve", which have one value for
            a name. Both list the names in `report.differing_tensors` and `report.differing_objects`
            on rank 0, and warn there, once for each name in the checkpoints of one directory. "error"
            raises PreconditionError on all ranks before anything is written, if tensors differ.
        check_replicas: "samples" compares all of a shard of up to 64 KiB, and 64 samples of 64 bytes of
            a larger one: that finds replicas that have diverged, not a few elements, and one rank's is
            stored. "full" compares all bytes, which takes one more pass over all that other ranks may hold too;
            ranks then share the writing of a large replica. Replicas are not compared with
            `coordinate=False`.
        timeout: Seconds any rank waits for the others, the slowest rank's writing included.
        upload_to: The name of a copy in another storage, such as "s3://bucket/run/step-100". All ranks upload;
            the call returns when both are durable. If the upload fails, all ranks raise, and the
            checkpoint at `path` stays; `varve.upload` makes the copy then. Not with `coordinate=False`.
        progress: Called from other threads with bytes written and bytes in all, on this rank.

    Raises:
        CheckpointExistsError: `path` holds a checkpoint and `overwrite` is false, or "damaged" and it is
            not.
        InvalidArgumentError: Something cannot be stored, or ranks disagree about a tensor.
        PreconditionError: Another save of this name is under way, ranks do not share the storage, or
            replicas differ and `on_difference` is "error".
        OutOfSpaceError, UnavailableError: Writing failed or a rank is lost; each is named.
    """
    content = _engine.Content(to_save(state_dict, strip_wrappers), files, allow_pickle, hf)
    own_id = _run.save_id(path, process_group, save_id, coordinate)
    with _run.ranks(path, process_group, timeout, coordinate) as ranks:
        options = _core.SaveOptions(
            overwrite=overwrite,
            coordinate=coordinate,
            format=format,
            save_id=own_id,
            on_difference=on_difference,
            check_replicas=check_replicas,
            timeout=timeout,
            shard_size=_hf.shard_size(hf),
            upload_to=target_of(upload_to),
            progress=progress,
        )
        return _engine.save(
            content, path, TorchArrays(), ranks, options, lambda: copy_of(path, upload_to, options)
        )


def async_save(
    state_dict: Mapping[Any, Any],
    path: str | os.PathLike[str],
    *,
    process_group: Any = None,
    stager: Stager | None = None,
    executor: str | None = None,
    staging: str = "blocking",
    guard: Any = None,
    overwrite: bool | Literal["damaged"] = False,
    files: Mapping[str, FileSource] | None = None,
    allow_pickle: bool = False,
    coordinate: bool = True,
    format: Literal["varve", "dcp", "hf"] = "varve",
    hf: HfOptions | None = None,
    strip_wrappers: bool = False,
    save_id: bytes | None = None,
    on_difference: Literal["keep", "first", "error"] = "keep",
    check_replicas: Literal["samples", "full"] = "samples",
    timeout: float = 1800.0,
    progress: Callable[[int, int], None] | None = None,
    max_write_bandwidth: int = 0,
    retries: int = 1,
    deadline: float | None = None,
    check_torn: bool | None = None,
    upload_to: str | os.PathLike[str] | None = None,
    on_failure: str = "log",
    on_done: Callable[[SaveHandle], None] | None = None,
) -> SaveHandle:
    """Saves the ranks' states in the background: returns when they have been copied.

    Collective over the process group like `save`. A save that fails does not end the training: its
    handle has the error, on every rank. Rank 0 also logs it (logger "varve"), and the next call with
    the same stager warns of it. Ctrl-C during the call cancels this save on all ranks.

    Args:
        state_dict: As in `save`. Plain values are taken as they are at the call.
        path: As in `save`.
        process_group: As in `save`; the stager's, if one is given.
        stager: Kept by the caller for all saves; by default one is made for each process group and
            kept until the interpreter ends.
        executor: "thread" or "process", as in Stager; the stager's, or "thread".
        staging: "blocking", or "overlapped": return at once and copy while training computes. Nothing
            may then write to the tensors before `handle.wait_staged()`; see `guard`.
        guard: With staging="overlapped": a torch optimizer, or an iterable of optimizers. Their next step
            waits for the copy; an error of the copy is the handle's alone. An object that wraps
            optimizers counts as these: those of accelerate, Lightning and torchtitan do.
        overwrite: As in `save`.
        files: As in `save`; read in the call.
        allow_pickle: As in `save`.
        coordinate: As in `save`.
        format: As in `save`.
        hf: As in `save`.
        strip_wrappers: As in `save`.
        save_id: As in `save`.
        on_difference: As in `save`; the warning comes in this call.
        check_replicas: As in `save`, of tensors on CUDA devices too.
        timeout: As in `save`, for each time that ranks wait for each other.
        progress: As in `save`; not with executor="process".
        max_write_bandwidth: Bytes a second that this rank writes at most; 0 for no limit.
        retries: How often a save that failed for want of space or of storage is written again, from
            the copy, after a second, two, and so on.
        deadline: Seconds from the call on after which the save is given up.
        check_torn: Compare samples of every tensor before and after the copy, to find one that was
            written to meanwhile. By default in overlapped saves, and where VARVE_DEBUG is set in the
            environment.
        upload_to: As in `save`; in the background, after the save. The handle ends when both are durable,
            and has the error of an upload that failed. The next save does not wait for the upload.
        on_failure: "log", or "raise": the call raises where an earlier save of the stager has failed
            since the last call, or where this one fails before it returns; on all ranks alike. Nothing
            is then saved.
        on_done: Called with the handle when it has ended, on the thread that writes the next save: it
            must be quick, and neither wait for another save nor start one.

    Returns:
        A future of the AsyncSaveReport; see SaveHandle.

    Raises:
        InvalidArgumentError: The arguments themselves make no sense.
    """
    content = _engine.Content(to_save(state_dict, strip_wrappers), files, allow_pickle, hf)

    def made_options(own_id: bytes | None) -> background.AsyncSaveOptions:
        return background.AsyncSaveOptions(
            save=_core.SaveOptions(
                overwrite=overwrite,
                coordinate=coordinate,
                format=format,
                save_id=own_id,
                on_difference=on_difference,
                check_replicas=check_replicas,
                timeout=timeout,
                max_write_bandwidth=max_write_bandwidth,
                shard_size=_hf.shard_size(hf),
                upload_to=target_of(upload_to),
                progress=progress,
            ),
            overlapped=staging == "overlapped",
            check_torn=check_torn,
            retries=retries,
            deadline=deadline,
        )

    return begin(
        SaveHandle,
        content,
        path,
        made_options,
        process_group=process_group,
        stager=stager,
        executor=executor,
        staging=staging,
        guard=guard,
        timeout=timeout,
        on_failure=on_failure,
        on_end=on_done,
        coordinate=coordinate,
        save_id=save_id,
        upload_to=upload_to,
    )


def defer_save(
    state_dict: Mapping[Any, Any],
    path: str | os.PathLike[str],
    *,
    process_group: Any = None,
    stager: Stager | None = None,
    staging: str = "blocking",
    guard: Any = None,
    overwrite: bool | Literal["damaged"] = False,
    files: Mapping[str, FileSource] | None = None,
    allow_pickle: bool = False,
    format: Literal["varve", "dcp", "hf"] = "varve",
    hf: HfOptions | None = None,
    strip_wrappers: bool = False,
    on_difference: Literal["keep", "first", "error"] = "keep",
    check_replicas: Literal["samples", "full"] = "samples",
    timeout: float = 1800.0,
    max_write_bandwidth: int = 0,
    retries: int = 1,
    deadline: float | None = None,
    check_torn: bool | None = None,
    on_failure: str = "log",
    on_held: Callable[[DeferredSaveHandle], None] | None = None,
) -> DeferredSaveHandle:
    """Gives the agent of this node a copy of the ranks' states and writes nothing.

    The agent writes the copy to `path` only if this process exits, is killed or closes the stager
    before a newer save of the stager replaces the copy: a deferred one that all ranks have submitted,
    or one that has been written. Collective over the process group like `save`. `varve agent
    log` has a failure that comes later, and `varve ls` too unless the name is taken.

    Args:
        state_dict: As in `async_save`.
        path: As in `save`.
        process_group: As in `save`; the stager's, if one is given.
        stager: As in `async_save`, made with executor="process". Its `memory_budget` should have room
            for two copies: then one is whole at any time. A state that is larger is refused.
        staging: As in `async_save`.
        guard: As in `async_save`.
        overwrite: As in `save`.
        files: As in `save`; read in the call.
        allow_pickle: As in `save`.
        format: As in `save`.
        hf: As in `save`.
        strip_wrappers: As in `save`.
        on_difference: As in `save`; the warning comes in this call.
        check_replicas: As in `async_save`.
        timeout: As in `save`, for each time that ranks wait for each other.
        max_write_bandwidth: Bytes a second that the agent writes at most; 0 for no limit.
        retries: How often the agent writes the copy again, if that failed for want of space or of
            storage.
        deadline: Seconds from the call on after which the save is given up, if the agent does not hold
            the copy.
        check_torn: As in `async_save`.
        on_failure: As in `async_save`.
        on_held: Called with the handle when the save has ended: the agent holds the copy, or never
            will. It must be quick, and neither wait for another save nor start one.

    Returns:
        A future of the DeferredReport, which speaks of this rank alone; see DeferredSaveHandle.

    Raises:
        InvalidArgumentError: The arguments themselves make no sense.
    """
    if stager is not None and stager.executor != "process":
        raise InvalidArgumentError(
            f"the stager was made with executor={stager.executor!r}: defer_save needs one with "
            'executor="process"'
        )
    content = _engine.Content(to_save(state_dict, strip_wrappers), files, allow_pickle, hf)

    def made_options(_: bytes | None) -> background.AsyncSaveOptions:
        return background.AsyncSaveOptions(
            save=_core.SaveOptions(
                overwrite=overwrite,
                format=format,
                on_difference=on_difference,
                check_replicas=check_replicas,
                timeout=timeout,
                max_write_bandwidth=max_write_bandwidth,
                shard_size=_hf.shard_size(hf),
            ),
            overlapped=staging == "overlapped",
            check_torn=check_torn,
            retries=retries,
            deadline=deadline,
        )

    return begin(
        DeferredSaveHandle,
        content,
        path,
        made_options,
        process_group=process_group,
        stager=stager,
        executor="process",
        staging=staging,
        guard=guard,
        timeout=timeout,
        on_failure=on_failure,
        on_end=on_held,
    )
