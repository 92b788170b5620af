"""How long do four ranks of a node take to load what all of them need, from a cold disk and a bucket?"""

from __future__ import annotations

import uuid

from bench.context import Context
from bench.files import remove
from bench.rank_rounds import rounds_of_ranks
from bench.ranks_worker import ALONE, DCP, DROP_IN, LAYOUTS, RANKS, SHARED
from bench.results import Result
from bench.s3_servers import make_bucket, servers

#: Every rank holds a whole state. s3torchconnector's reader holds whole files beside it.
_MOST_BYTES = 2 << 30
_MOST_BYTES_IN_BUCKET = 1 << 30


def run(context: Context) -> list[Result]:
    """Runs the ranks in processes of their own; they take turns with the arms."""
    path = context.directory / "ranks"
    results = []
    for layout in LAYOUTS:
        remove(path)
        try:
            results.append(_loads(context, str(path), layout, "Cold load"))
        finally:
            remove(path)
    return results


def run_in_bucket(context: Context) -> list[Result]:
    """The same from Ceph's radosgw on this host."""
    results = []
    with servers(context.directory) as running:
        for layout in LAYOUTS:
            bucket = f"bench-{uuid.uuid4().hex[:8]}"
            make_bucket(running[0], bucket)
            results.append(_loads(context, f"s3://{bucket}/ranks", layout, "Load from radosgw"))
    return results


def _loads(context: Context, path: str, layout: str, what: str) -> Result:
    size = min(context.size, _MOST_BYTES_IN_BUCKET if "://" in path else _MOST_BYTES)
    rounds = rounds_of_ranks(context, "bench.ranks_worker", f"{path}:{layout}", size)
    result = Result.of(
        f"{'s3-' if '://' in path else ''}ranks, {layout}",
        f"{what} by {RANKS} ranks of one node, 16 float32 tensors, {LAYOUTS[layout]}.",
        size,
        rounds,
        {},
        (ALONE, DCP),
    )
    result.expect_speed(SHARED, ALONE, 1.5)
    result.expect_speed(SHARED, DCP, 2.0)
    result.expect_speed(DROP_IN, DCP, 2.0)
    return result
