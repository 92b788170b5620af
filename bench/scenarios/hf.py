"""How fast do two ranks write a folder of whole-tensor safetensors files, on a disk and into a bucket?"""

from __future__ import annotations

import importlib.util
import uuid

from bench.context import Context
from bench.files import remove
from bench.rank_rounds import rounds_of_ranks
from bench.results import Result
from bench.s3_servers import make_bucket, servers

NATIVE, HF, GATHERED = "varve", "varve, hf", "gather and save_file"
CONVERTED, SENT = "varve, converted", "gather, save_file and boto3"

#: The baseline holds the whole state in one rank's memory.
_MOST_BYTES = 2 << 30


def run(context: Context) -> list[Result]:
    """Runs the ranks in processes of their own; they take turns with the arms."""
    size = min(context.size, _MOST_BYTES)
    arms = (NATIVE, HF, GATHERED)
    if importlib.util.find_spec("safetensors") is None:
        return [Result("hf", "", 0, {}, dict.fromkeys(arms, "safetensors is not installed"), ())]
    path = context.directory / "hf"
    remove(path)
    try:
        rounds = rounds_of_ranks(context, "bench.hf_worker", str(path), size)
    finally:
        remove(path)
    result = Result.of(
        "hf",
        "Durable save of 16 bf16 tensors, sharded by rows over two ranks, every arm synced.",
        size,
        rounds,
        {},
        (NATIVE, GATHERED),
    )
    result.expect_speed(HF, NATIVE, 0.9)
    result.expect_speed(HF, GATHERED, 2.0)
    return [result]


def run_in_bucket(context: Context) -> list[Result]:
    """The same into Ceph's radosgw, where a file has one writer: ranks send their shards twice."""
    size = min(context.size, _MOST_BYTES)
    with servers(context.directory) as running:
        bucket = f"bench-{uuid.uuid4().hex[:8]}"
        make_bucket(running[0], bucket)
        rounds = rounds_of_ranks(context, "bench.hf_worker", f"s3://{bucket}/hf", size)
    result = Result.of(
        "s3-hf",
        "Save of 16 bf16 tensors, sharded by rows over two ranks, into radosgw.",
        size,
        rounds,
        {},
        (NATIVE, CONVERTED, SENT),
    )
    result.expect_speed(HF, CONVERTED, 1.0)
    result.expect_speed(HF, SENT, 1.0)
    return [result]
