"""How fast does a state get into an object store and back, and what does that cost the client?

Two servers, in the same run and in turns: Ceph's radosgw on this host, and a null server that
discards what is uploaded and makes up what is downloaded, for the client's own ceiling. Server and
client share the cores; the processor time is the client's alone.
"""

from __future__ import annotations

import gc
import re
import urllib.request
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from bench.context import Context
from bench.files import remove
from bench.measure import Sample, interleave, timed
from bench.results import Result
from bench.s3_arms import ARMS, Boto3, S3Arm, Varve, make_contiguous, views
from bench.s3_servers import Server, make_bucket, servers
from bench.state import State, bytes_of, require_equal, zero

_MEMORY_BESIDE = 512e6 * 1.048576  # 512 MiB
_CPU = 0.5  # Of boto3's core-seconds.
_STALL = 1.15
_TRIAL_BYTES = 1 << 20
_HEADS, _THREADS = 2000, 8


def run(context: Context) -> list[Result]:
    """Uploads and downloads with every tool, on both servers."""
    results = []
    with servers(context.directory) as running:
        for server in running:
            bucket = f"bench-{uuid.uuid4().hex[:8]}"
            make_bucket(server, bucket)
            state = make_contiguous(context.size, context.tensors, paged=server.discards)
            results += [
                _uploads(context, server, bucket, state),
                _downloads(context, server, bucket, state),
            ]
            if server.discards:
                results.append(_requests(context, server, bucket))
            else:
                results.append(_stall(context, server, bucket, state))
    return results


def _usable(server: Server) -> tuple[list[S3Arm], dict[str, str]]:
    skipped = {arm.label: reason for arm in ARMS if (reason := arm.unavailable()) is not None}
    return [arm for arm in ARMS if arm.label not in skipped], skipped


def _expect(result: Result) -> Result:
    for arm in ARMS[1:]:
        result.expect_speed("varve", arm.label, 1.0)
    result.expect_cpu("varve", ARMS[1].label, _CPU)
    result.expect_peak("varve", _MEMORY_BESIDE)
    result.notes.append("resident memory is what a call adds to the process at most")
    return result


def _uploads(context: Context, server: Server, bucket: str, state: State) -> Result:
    usable, skipped = _usable(server)
    for arm in list(usable):
        name = f"{bucket}/trial-{uuid.uuid4().hex[:12]}"
        try:
            arm.upload(server, name, make_contiguous(_TRIAL_BYTES, 2, paged=True))
        except Exception as error:
            skipped[arm.label] = f"cannot upload there: {error}"
            usable.remove(arm)
        _remove(server, name)
    turns: dict[str, Callable[[], Sample]] = {
        arm.label: partial(_upload_sample, context, arm, server, bucket, state) for arm in usable
    }
    rounds = interleave(turns, rounds=context.rounds, warmups=context.warmups)
    return _expect(
        Result.of(
            f"s3 upload ({server.name})",
            f"Upload of {len(state)} fp32 tensors by one process.",
            bytes_of(state),
            rounds,
            skipped,
            [arm.label for arm in ARMS[1:]],
        )
    )


def _upload_sample(
    context: Context, arm: S3Arm, server: Server, bucket: str, state: State
) -> Sample:
    name = f"{bucket}/{uuid.uuid4().hex[:12]}"
    context.quiet()
    try:
        return _with_peak(lambda: arm.upload(server, name, state))
    finally:
        _remove(server, name)


def _downloads(context: Context, server: Server, bucket: str, state: State) -> Result:
    usable, skipped = _usable(server)
    if server.discards:
        # Its archives have headers between the tensors, which the server does not keep.
        for arm in [one for one in usable if one.label.startswith("s3torchconnector")]:
            skipped[arm.label] = "the null server makes up tensors, not the archives around them"
            usable.remove(arm)
    whole = torch.zeros(bytes_of(state) // 4)
    destination = views(whole, len(state))
    turns: dict[str, Callable[[], Sample]] = {}
    for arm in usable:
        name = f"{bucket}/to-read-{len(turns)}"
        try:
            arm.prepare(server, name, state)
        except Exception as error:
            skipped[arm.label] = f"cannot prepare: {type(error).__name__}: {error}"
            continue
        turns[arm.label] = partial(_download_sample, context, arm, server, name, state, destination)
    rounds = interleave(turns, rounds=context.rounds, warmups=context.warmups)
    for i in range(len(turns)):
        _remove(server, f"{bucket}/to-read-{i}")
    return _expect(
        Result.of(
            f"s3 download ({server.name})",
            f"Download of {len(state)} fp32 tensors into existing ones, compared afterwards.",
            bytes_of(state),
            rounds,
            skipped,
            [arm.label for arm in ARMS[1:]],
        )
    )


def _download_sample(
    context: Context, arm: S3Arm, server: Server, name: str, state: State, destination: State
) -> Sample:
    zero(destination)
    context.quiet()
    sample = _with_peak(lambda: arm.download(server, name, destination))
    require_equal(destination, state)
    return sample


def _requests(context: Context, server: Server, bucket: str) -> Result:
    """The client's own ceiling for small requests."""
    name = f"{bucket}/asked-for"
    Varve().prepare(server, name, make_contiguous(_TRIAL_BYTES, 2, paged=True))
    arms: dict[str, Callable[[], None]] = {"varve": _heads(f"{server.scheme}://{name}/varve.json")}
    skipped = {}
    reason = Boto3(tuned=False).unavailable()
    if reason is None:
        arms["boto3"] = _heads_of_boto3(server, f"{name}/varve.json")
    else:
        skipped["boto3"] = reason
    turns = {label: partial(_quiet_sample, context, arm) for label, arm in arms.items()}
    rounds = interleave(turns, rounds=context.rounds, warmups=max(1, context.warmups))
    result = Result.of(
        f"s3 requests ({server.name})",
        f"{_HEADS} requests for the size of an object, by {_THREADS} threads.",
        0,
        rounds,
        skipped,
        ["boto3"],
    )
    result.expect_speed("varve", "boto3", 1.0)
    for label in rounds.samples:
        seconds = result.seconds(label)
        if seconds:
            result.notes.append(f"{label}: {_HEADS / seconds:,.0f} requests a second")
    return result


def _heads(path: str) -> Callable[[], None]:
    from varve._core import storage

    return partial(_in_threads, lambda: storage.size_of(path))


def _heads_of_boto3(server: Server, name: str) -> Callable[[], None]:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3", endpoint_url=server.endpoint, config=Config(max_pool_connections=_THREADS)
    )
    bucket, key = name.split("/", 1)
    return partial(_in_threads, lambda: client.head_object(Bucket=bucket, Key=key))


def _in_threads(request: Callable[[], object]) -> None:
    with ThreadPoolExecutor(_THREADS) as threads:
        for answered in [threads.submit(request) for _ in range(_HEADS)]:
            answered.result()


def _quiet_sample(context: Context, action: Callable[[], None]) -> Sample:
    context.quiet()
    return timed(action)


def _stall(context: Context, server: Server, bucket: str, state: State) -> Result:
    """The time of the call of an asynchronous save to the server, and to a disk."""
    turns = {
        "to the server": partial(
            _stall_sample, context, server, state, f"{server.scheme}://{bucket}/async"
        ),
        "to the disk": partial(
            _stall_sample, context, server, state, str(context.directory / "async")
        ),
    }
    rounds = interleave(turns, rounds=context.rounds, warmups=max(1, context.warmups))
    result = Result.of(
        "s3 stall",
        "The call of varve.torch.async_save: when it returns, the tensors may change.",
        bytes_of(state),
        rounds,
        {},
        ["to the disk"],
    )
    result.expect_time("to the server", "to the disk", _STALL)
    return result


def _stall_sample(context: Context, server: Server, state: State, path: str) -> Sample:
    import varve
    import varve.torch

    context.quiet()
    handles: list[varve.torch.SaveHandle] = []
    sample = timed(lambda: handles.append(varve.torch.async_save(state, path)))
    handles[0].result(600.0)
    if "://" in path:
        varve.remove(path)
        server.free_deleted()
    else:
        remove(Path(path))
    return sample


def _with_peak(action: Callable[[], None]) -> Sample:
    """Times an action, and takes the memory that it adds to the process at most."""
    gc.collect()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
    sample = timed(action)
    beside = max(_status("VmHWM") - before, 1)
    return Sample(sample.seconds, sample.cpu_seconds, beside)


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    match = re.search(rf"{name}:\s+(\d+) kB", text)
    assert match is not None
    return int(match[1]) << 10


def _remove(server: Server, name: str) -> None:
    """Removes all objects below a name, whoever wrote them."""
    if server.discards:
        request = urllib.request.Request(f"{server.endpoint}/{name}?all-below", method="DELETE")
        urllib.request.urlopen(request).close()
        return
    import boto3

    bucket, prefix = name.split("/", 1)
    boto3.resource("s3", endpoint_url=server.endpoint).Bucket(bucket).objects.filter(
        Prefix=prefix + "/"
    ).delete()
    server.free_deleted()
