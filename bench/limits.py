"""The table of what this machine can do at most, which targets are ratios to."""

from __future__ import annotations

from collections.abc import Sequence

from bench.raw import Limit
from bench.results import table


def to_markdown(limits: Sequence[Limit], machine: str) -> str:
    """Returns the table of `limits`; the heading has `machine`."""
    columns = sorted({threads for limit in limits for threads in limit.gb_per_s})
    rows = [["GB/s", *(f"{n} thread{'s' * (n > 1)}" for n in columns)]]
    for limit in limits:
        figures = (limit.gb_per_s.get(n) for n in columns)
        rows.append([limit.name, *("" if one is None else f"{one:.2f}" for one in figures)])
    lines = [f"### limits: {machine}", "", *table(rows)]
    if not any(limit.name == "CRC-32C" for limit in limits):
        lines += ["", "- not measured: CRC-32C and XXH3; raw_io was built without ISA-L and xxHash"]
    return "\n".join(lines) + "\n"
