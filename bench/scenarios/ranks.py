"""How long do four ranks of a node take to load what all of them need, from a cold disk?"""

from __future__ import annotations

from bench.context import Context
from bench.files import remove
from bench.rank_rounds import rounds_of_ranks
from bench.ranks_worker import ALONE, DCP, DROP_IN, LAYOUTS, RANKS, SHARED
from bench.results import Result

#: Every rank holds a whole state.
_MOST_BYTES = 2 << 30


def run(context: Context) -> list[Result]:
    """Runs the ranks in processes of their own; they take turns with the arms."""
    results = []
    size = min(context.size, _MOST_BYTES)
    path = context.directory / "ranks"
    for layout, words in LAYOUTS.items():
        remove(path)
        try:
            rounds = rounds_of_ranks(context, "bench.ranks_worker", f"{path}:{layout}", size)
        finally:
            remove(path)
        result = Result.of(
            f"ranks, {layout}",
            f"Cold load by {RANKS} ranks of one node, 16 float32 tensors, {words}.",
            size,
            rounds,
            {},
            (ALONE, DCP),
        )
        result.expect_speed(SHARED, ALONE, 1.5)
        result.expect_speed(SHARED, DCP, 2.0)
        result.expect_speed(DROP_IN, DCP, 2.0)
        results.append(result)
    return results
