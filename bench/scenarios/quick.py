"""The ratios that must not slip, in three minutes: `bench/run.py --check --quick`.

The arms are those of `save`, `load`, `small`, `dcp` and `async`, but only those that the ratios
need, all saves in one set of turns and all loads in another. Ratios are of each arm's fastest round:
at 512 MiB they spread by a tenth from run to run, those of medians by a half. The bounds are wider
than the targets of those scenarios: a miss is a defect and not the weather.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from bench import arms
from bench.arms import Arm
from bench.context import Context, available, from_warm_cache
from bench.files import drop_cache, remove
from bench.measure import Rounds, Sample, interleave
from bench.results import Result
from bench.scenarios import async_save, save
from bench.state import State, make_destination, make_state

#: The options that `--quick` sets.
OPTIONS = {"scenario": ["quick"], "size": "512MiB", "rounds": 5, "settle": 0.2}

_TENSOR_BYTES = 64 << 10
_SMALL = ", 64 KiB each"
#: The limit of warm loads here. An mmap copy takes half the time where the page cache happens to
#: have large folios, which nothing here can bring about.
PREAD = "parallel pread"
_OF_DCP = "varve.torch.load of DCP's"

# The bounds leave a third of what eight runs on an EPYC (family 25 model 17, 2 cores) showed at worst.
# Arm, baseline, and how many times as fast it is at least.
_SAVES = ((arms.VARVE.name, save.RAW, 0.65), (arms.DROP_IN.name, arms.DCP.name, 2.0))
_LOADS = (
    (arms.VARVE.name, PREAD, 0.4),
    (arms.VARVE.name, arms.DCP.name, 4.0),
    (arms.DROP_IN.name, arms.DCP.name, 4.5),
    (_OF_DCP, arms.DCP.name, 3.5),
)
# Arm, and the microseconds an item that it takes at most over the time of the bytes.
_ITEMS = ((arms.VARVE.name, 20.0), (arms.DROP_IN.name, 75.0))
# A stall takes at most so many times the parallel memcpy's time, and torch's at least so many times ours.
_MOST_STALL, _TORCHS_STALL = 2.5, 2.5

Case = tuple[Arm, State, State]


def run(context: Context) -> list[Result]:
    """Saves, loads and stalls with a few large tensors, and with tensors of 64 KiB."""
    usable, skipped = available((arms.VARVE, arms.DROP_IN, arms.DCP))
    few = make_state(context.size, context.tensors)
    many = make_state(context.size, context.size // _TENSOR_BYTES)
    to_few, to_many = make_destination(few), make_destination(many)
    cases: dict[str, Case] = {arm.name: (arm, few, to_few) for arm in usable}
    cases |= {f"{arm.name}{_SMALL}": (arm, many, to_many) for arm in usable if arm != arms.DCP}
    saves = _of(context, "quick save", _save(context, cases), skipped, save.RAW, _SAVES)
    loads = _of(context, "quick load", _load(context, cases), skipped, PREAD, _LOADS)
    for result in (saves, loads):
        for name, most in _ITEMS:
            result.expect_per_item(f"{name}{_SMALL}", name, len(many), most)
    return [saves, loads, _stall(context, few)]


def _of(
    context: Context,
    name: str,
    rounds: Rounds,
    skipped: dict[str, str],
    limit: str,
    bounds: Sequence[tuple[str, str, float]],
) -> Result:
    question = f"{context.tensors} fp32 tensors, and the same bytes in tensors of 64 KiB."
    baselines = (limit, arms.DCP.name)
    result = Result.of(name, question, context.size, rounds, skipped, baselines)
    result.fastest = True
    for arm, baseline, at_least in bounds:
        result.expect_speed(arm, baseline, at_least)
    return result


def _save(context: Context, cases: dict[str, Case]) -> Rounds:
    turns: dict[str, Callable[[], Sample]] = {
        save.RAW: partial(save.raw_sample, context, context.size)
    }
    for name, (arm, state, _) in cases.items():
        turns[name] = partial(context.save_sample, arm, state)
    return interleave(turns, rounds=context.rounds, warmups=context.warmups)


def _load(context: Context, cases: dict[str, Case]) -> Rounds:
    paths = [context.directory / "raw"]
    context.raw.write(paths[0], context.size, keep=True)
    copy = partial(context.raw.pread_copy, paths[0])
    turns: dict[str, Callable[[], Sample]] = {PREAD: partial(from_warm_cache, paths[0], copy)}
    for name, (arm, state, destination) in cases.items():
        path = context.directory / f"quick-{len(paths)}"
        paths.append(path)
        arm.save(state, path)
        drop_cache(path)
        readers = {name: arm} | ({_OF_DCP: arms.VARVE} if arm == arms.DCP else {})
        for label, reader in readers.items():
            sample = partial(context.load_sample, reader, path, state, destination)
            turns[label] = partial(from_warm_cache, path, sample)
    rounds = interleave(turns, rounds=context.rounds, warmups=context.warmups)
    for path in paths:
        remove(path)
    return rounds


def _stall(context: Context, state: State) -> Result:
    from varve.torch import Stager

    with Stager(memory_budget=arms.staging_budget(context.size)) as stager:
        stager.prepare(state)
        stager.wait_prepared()
        begin = partial(async_save.begin_varve, stager)
        varve = async_save.AsyncArm(async_save.VARVE, begin, arms.VARVE.load)
        destination = async_save.huge_destination(state)
        result = async_save.stalls(context, varve, state, destination, kept=False)
    result.name, result.fastest = "quick stall", True
    result.expect_time(async_save.VARVE, async_save.COPY, _MOST_STALL)
    result.expect_speed(async_save.VARVE, async_save.TORCH, _TORCHS_STALL)
    return result
