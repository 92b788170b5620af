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
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Run as a script, so that no installation is needed; `bench` is then found from the repository.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from bench import compare, limits, machine, raw
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
    quick,
    ranks,
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
    "ranks": ranks.run,
    "s3-ranks": ranks.run_in_bucket,
    "s3": s3.run,
}

# The load scenario keeps one checkpoint per tool on disk, and holds the state, its destination, a
# tool's own copy and one checkpoint's page cache in memory.
_DISK_FACTOR = 8
_MEMORY_FACTOR = 6
# For the limits: memory that is copied, and how often.
_LIMIT_BYTES = 1 << 30
_LIMIT_REPEAT = 5


def main() -> int:
    """Returns 0; 1 if an arm or scenario failed, or with --check if a target was not met."""
    began = time.perf_counter()
    options = _options()
    earlier = compare.last_record(options.against) if options.against else None
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
        raw_io = _raw(options, directory)
        found = raw_io.limits(directory, min(options.size, _LIMIT_BYTES), _LIMIT_REPEAT)
        facts["limits"] = [asdict(limit) for limit in found]
        _print_machine(options, facts, found)
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
                results += (quick.run if options.quick else SCENARIOS[scenario])(context)
            except Exception:
                # What the other scenarios measure is not lost to the defect of one.
                traceback.print_exc()
                crashed.append(scenario)
    record = _record(options, facts, results, crashed)
    for result in results:
        print(result.to_markdown(_name(facts)))
    if earlier is not None:
        words, _ = compare.compare(earlier, record)
        print(words)
    if options.json is not None:
        with options.json.open("a") as file:
            file.write(json.dumps(record) + "\n")
    failed = bool(crashed) or any(
        r.startswith("failed") for result in results for r in result.skipped.values()
    )
    missed = [v.claim for result in results for v in result.verdicts if v.met is not True]
    print(f"bench: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    if options.check and missed:
        print("bench: missed: " + "; ".join(missed), file=sys.stderr)
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
    parser.add_argument(
        "--quick", action="store_true", help="only the ratios that must not slip, in three minutes"
    )
    parser.add_argument(
        "--against", type=Path, help="a file of --json: says what slipped since its last run"
    )
    options = parser.parse_args()
    if options.quick:
        if options.scenario:
            parser.error("--quick has arms of its own; leave --scenario out")
        parser.set_defaults(**quick.OPTIONS)
        options = parser.parse_args()
    if options.rounds < 1 or options.warmups < 0 or options.tensors < 1:
        parser.error("--rounds and --tensors are at least 1, --warmups at least 0")
    if options.size % (options.tensors * 4096) != 0 or options.size % (64 << 10) != 0:
        parser.error("--size must be a multiple of 64 KiB and of 4 KiB times --tensors")
    if not options.dir.is_dir():
        parser.error(f"--dir {options.dir}: there is no such directory")
    return options


def _shortage(directory: Path, size: int) -> str | None:
    free = shutil.disk_usage(directory).free
    if free < size * _DISK_FACTOR:
        return f"{directory} has {free >> 20} MiB free, {size * _DISK_FACTOR >> 20} needed"
    memory = machine.available_memory_bytes()
    if memory < size * _MEMORY_FACTOR:
        return f"{memory >> 20} MiB of memory are free, {size * _MEMORY_FACTOR >> 20} needed"
    return None


def _raw(options: argparse.Namespace, directory: Path) -> raw.RawIo:
    built = raw.RawIo(options.raw_io or raw.build(directory))
    if options.quick:
        return built.tuned(directory, raw.QUICK_SHAPES, trials=2)
    return built.tuned(directory)


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
        "schema": compare.SCHEMA,
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": machine.commit(_ROOT),
        "settings": {
            name: getattr(options, name)
            for name in ("size", "tensors", "rounds", "warmups", "settle")
        }
        | {"scenarios": options.scenario or list(SCENARIOS)},
        "machine": facts,
        "versions": machine.versions(),
        "crashed": crashed,
        "results": [result.to_json() for result in results],
    }


def _name(facts: dict[str, Any]) -> str:
    return f"{facts['cpu']}, {facts['cores']} core{'s' * (facts['cores'] > 1)}"


def _print_machine(
    options: argparse.Namespace, facts: dict[str, Any], found: list[raw.Limit]
) -> None:
    """Prints what must be known first: the machine, the versions, and the limits."""
    if facts["filesystem"] in ("tmpfs", "ramfs"):
        print("Note: this is memory, not a disk; the durable arms say nothing here.\n")
    versions = ", ".join(f"{name} {v}" for name, v in machine.versions().items() if v)
    print(
        f"Commit {machine.commit(_ROOT)}; {_name(facts)}; {facts['memory_bytes'] / (1 << 30):.0f} "
        f"GiB, Linux {facts['kernel']}, {facts['filesystem']}; {versions}"
    )
    times = "the fastest" if options.quick else "medians"
    print(f"{options.size >> 20} MiB, {times} of {options.rounds} rounds.\n")
    print(limits.to_markdown(found, _name(facts)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
