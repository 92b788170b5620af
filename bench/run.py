"""Runs the benchmarks: `python bench/run.py --help`; `bench/README.md` has their arguments."""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Run as a script, so that no installation is needed; `bench` is then found from the repository.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from bench import machine, raw
from bench.context import Context
from bench.results import Result
from bench.scenarios import (
    agent,
    async_save,
    checksum,
    convert,
    dcp,
    first_save,
    frameworks,
    gaps,
    hf,
    hfai,
    index,
    load,
    s3,
    save,
    small,
    unshard,
)
from bench.state import parse_size

_ROOT = Path(__file__).resolve().parent.parent

SCENARIOS: dict[str, Callable[[Context], list[Result]]] = {
    "save": save.run,
    "first-save": first_save.run,
    "load": load.run,
    "small": small.run,
    "checksum": checksum.run,
    "dcp": dcp.run,
    "convert": convert.run,
    "index": index.run,
    "async": async_save.run,
    "agent": agent.run,
    "gaps": gaps.run,
    "frameworks": frameworks.run,
    "hf": hf.run,
    "s3-hf": hf.run_in_bucket,
    "hfai": hfai.run,
    "unshard": unshard.run,
    "s3": s3.run,
}

# The load scenario keeps one checkpoint per tool on disk, and holds the state, its destination, a
# tool's own copy and one checkpoint's page cache in memory.
_DISK_FACTOR = 8
_MEMORY_FACTOR = 5


def main() -> int:
    """Returns 0; 1 if an arm or scenario failed, or with --check if a target was not met."""
    options = _options()
    logging.getLogger("torchsnapshot").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if (problem := _shortage(options.dir, options.size)) is not None:
        print(f"bench: {problem}; choose a smaller --size or another --dir", file=sys.stderr)
        return 2
    results: list[Result] = []
    crashed: list[str] = []
    facts = machine.facts(options.dir)
    with tempfile.TemporaryDirectory(prefix="varve-bench-", dir=options.dir) as name:
        directory = Path(name).resolve()  # Workers run elsewhere.
        raw_io = raw.RawIo(options.raw_io or raw.build(directory)).tuned(directory)
        facts |= {"raw": {"write": str(raw_io.write_shape), "read": str(raw_io.read_shape)}}
        context = Context(
            directory=directory,
            size=options.size,
            tensors=options.tensors,
            rounds=options.rounds,
            warmups=options.warmups,
            settle_seconds=options.settle,
            raw=raw_io,
            index_codec=options.index_codec,
        )
        _warm_memory(options.size * _MEMORY_FACTOR)
        for scenario in options.scenario or SCENARIOS:
            print(f"bench: {scenario}", file=sys.stderr, flush=True)
            try:
                results += SCENARIOS[scenario](context)
            except Exception:
                # What the other scenarios measure is not lost to the defect of one.
                traceback.print_exc()
                crashed.append(scenario)
    record = _record(options, facts, results, crashed)
    _print(record, results)
    if options.json is not None:
        with options.json.open("a") as file:
            file.write(json.dumps(record) + "\n")
    failed = bool(crashed) or any(
        r.startswith("failed") for result in results for r in result.skipped.values()
    )
    missed = any(verdict.met is not True for result in results for verdict in result.verdicts)
    return 1 if failed or (options.check and missed) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run.py", description="Benchmarks of Varve; bench/README.md explains them."
    )
    parser.add_argument(
        "--scenario", action="append", choices=list(SCENARIOS), help="may be repeated; default: all"
    )
    parser.add_argument("--rounds", type=int, default=5, help="samples per arm (default 5)")
    parser.add_argument("--warmups", type=int, default=1, help="rounds thrown away (default 1)")
    parser.add_argument("--size", type=parse_size, default="2GiB", help="state (default 2GiB)")
    parser.add_argument("--tensors", type=int, default=16, help="tensors in it (default 16)")
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="where to write (default: here); use a real disk"
    )
    parser.add_argument(
        "--settle", type=float, default=0.5, help="idle seconds before each save (default 0.5)"
    )
    parser.add_argument("--json", type=Path, help="append the run as one JSON line to this file")
    parser.add_argument("--raw-io", type=Path, help="a built raw_io (default: build it with g++)")
    parser.add_argument("--index-codec", type=Path, help="the built index_codec, for `index`")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every target is met")
    options = parser.parse_args()
    if options.rounds < 1 or options.warmups < 0 or options.tensors < 1:
        parser.error("--rounds and --tensors are at least 1, --warmups at least 0")
    if options.size % (options.tensors * 4096) != 0 or options.size % (64 << 10) != 0:
        parser.error("--size must be a multiple of 64 KiB and of 4 KiB times --tensors")
    return options


def _shortage(directory: Path, size: int) -> str | None:
    free = shutil.disk_usage(directory).free
    if free < size * _DISK_FACTOR:
        return f"{directory} has {free >> 20} MiB free, {size * _DISK_FACTOR >> 20} needed"
    memory = machine.available_memory_bytes()
    if memory < size * _MEMORY_FACTOR:
        return f"{memory >> 20} MiB of memory are free, {size * _MEMORY_FACTOR >> 20} needed"
    return None


def _warm_memory(size: int) -> None:
    """Touches and frees `size` bytes.

    In a virtual machine the first use of a page is paid to the hypervisor, not to the tool that
    happens to meet it.
    """
    torch.ones(size, dtype=torch.uint8)


def _record(
    options: argparse.Namespace,
    facts: dict[str, Any],
    results: list[Result],
    crashed: list[str],
) -> dict[str, Any]:
    return {
        "schema": 1,
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": machine.commit(_ROOT),
        "settings": {
            name: getattr(options, name)
            for name in ("size", "tensors", "rounds", "warmups", "settle")
        },
        "machine": facts,
        "versions": machine.versions(),
        "crashed": crashed,
        "results": [result.to_json() for result in results],
    }


def _print(record: dict[str, Any], results: list[Result]) -> None:
    host, versions = record["machine"], record["versions"]
    if host["filesystem"] in ("tmpfs", "ramfs"):
        print("Note: this is memory, not a disk; the durable arms say nothing here.\n")
    print(
        f"Commit {record['commit']}, {host['cores']} cores ({host['cpu']}), "
        f"{host['memory_bytes'] / (1 << 30):.0f} GiB, Linux {host['kernel']}, "
        f"{host['filesystem']}; " + ", ".join(f"{name} {v}" for name, v in versions.items() if v)
    )
    print(f"{record['settings']['size'] >> 20} MiB, medians of {record['settings']['rounds']}.\n")
    for result in results:
        print(result.to_markdown())


if __name__ == "__main__":
    sys.exit(main())
