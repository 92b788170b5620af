"""What a scenario found, and whether that meets what was promised."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench.measure import Rounds, Sample

GIB = 1 << 30


@dataclass(frozen=True)
class Verdict:
    """A claim, the measured value (of medians) and its lowest and highest of any single round.

    All None when an arm that the claim needs did not run. `quantity` is the claim without its
    bound, by which runs with other bounds are compared; `rises` where more of it is better.
    """

    claim: str
    quantity: str
    rises: bool
    value: float | None = None
    met: bool | None = None
    lowest: float | None = None
    highest: float | None = None


@dataclass
class Result:
    """One table: the samples of each arm for one question. `bytes` is 0 where time is not per byte.

    An arm's time is the median of its rounds; with `fastest` it is that of the fastest, which
    spreads less where the rounds are few and short.
    """

    name: str
    question: str
    bytes: int
    samples: dict[str, list[Sample]]
    skipped: dict[str, str]
    baselines: Sequence[str]
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fastest: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        question: str,
        size: int,
        rounds: Rounds,
        skipped: dict[str, str],
        baselines: Sequence[str],
    ) -> Result:
        """Builds a result from rounds; arms that failed join the skipped ones, with the reason."""
        return cls(name, question, size, rounds.samples, skipped | rounds.failures, baselines)

    def seconds(self, arm: str) -> float | None:
        """Returns the wall time of `arm`, or None if it did not run."""
        each = [sample.seconds for sample in self.samples.get(arm, [])]
        if not each:
            return None
        return min(each) if self.fastest else statistics.median(each)

    def cpu_seconds_per_gib(self, arm: str) -> float | None:
        """Returns the median core-seconds `arm` spent per GiB of state, or None."""
        samples = self.samples.get(arm)
        if not samples or self.bytes == 0 or not any(s.cpu_seconds for s in samples):
            return None  # The last where it was not measured.
        return statistics.median(s.cpu_seconds for s in samples) / (self.bytes / GIB)

    def speed_ratio(self, arm: str, baseline: str) -> float | None:
        """Returns how many times as fast `arm` is as `baseline`, or None."""
        mine, theirs = self.seconds(arm), self.seconds(baseline)
        return None if mine is None or theirs is None else theirs / mine

    def expect_speed(self, arm: str, baseline: str, at_least: float) -> None:
        """Adds the verdict on "`arm` is at least `at_least` times as fast as `baseline`"."""
        each = [theirs.seconds / mine.seconds for mine, theirs in self._pairs(arm, baseline)]
        value = self.speed_ratio(arm, baseline)
        claim = f"{arm} is >= {at_least:g} x as fast as {baseline}"
        self._judge(claim, f"speed of {arm} / {baseline}", value, each, at_least=at_least)

    def expect_time(self, arm: str, baseline: str, at_most: float) -> None:
        """Adds the verdict on "`arm` takes at most `at_most` times as long as `baseline`"."""
        each = [mine.seconds / theirs.seconds for mine, theirs in self._pairs(arm, baseline)]
        value = self.speed_ratio(baseline, arm)
        claim = f"{arm} takes <= {at_most:g} x the time of {baseline}"
        self._judge(claim, f"time of {arm} / {baseline}", value, each, at_most=at_most)

    def expect_per_item(
        self, arm: str, over: str, items: int, at_most: float, *, of: Result | None = None
    ) -> None:
        """Adds the verdict on "`arm` takes at most `at_most` microseconds an item more than `over`".

        `over` moves the same bytes in few tensors: what is left is what an item costs. `of` is the
        result of the same run that has it, where this one does not.
        """
        pairs = self._pairs(arm, over, of or self)
        each = [(mine.seconds - theirs.seconds) / items * 1e6 for mine, theirs in pairs]
        long, short = self.seconds(arm), (of or self).seconds(over)
        value = None if long is None or short is None else (long - short) / items * 1e6
        over += f" ({of.name})" if of else ""
        claim = f"{arm} takes <= {at_most:g} us an item over {over}"
        self._judge(claim, f"us an item, {arm} over {over}", value, each, at_most=at_most)

    def expect_cpu(self, arm: str, baseline: str, at_most: float) -> None:
        """Adds the verdict on "`arm` spends at most `at_most` times the core-seconds of `baseline`"."""
        pairs = self._pairs(arm, baseline)
        each = [mine.cpu_seconds / theirs.cpu_seconds for mine, theirs in pairs]
        mine, theirs = self.cpu_seconds_per_gib(arm), self.cpu_seconds_per_gib(baseline)
        value = None if mine is None or theirs is None else mine / theirs
        claim = f"{arm} spends <= {at_most:g} x the core-seconds of {baseline}"
        self._judge(claim, f"core-seconds of {arm} / {baseline}", value, each, at_most=at_most)

    def expect_seconds(self, arm: str, at_most: float) -> None:
        """Adds the verdict on "`arm` takes at most `at_most` seconds"."""
        each = [sample.seconds for sample in self.samples.get(arm, [])]
        claim = f"{arm} takes <= {at_most:g} s"
        self._judge(claim, f"seconds of {arm}", self.seconds(arm), each, at_most=at_most)

    def expect_peak(self, arm: str, at_most: float) -> None:
        """Adds the verdict on "`arm` has at most `at_most` bytes resident"; shown in MB."""
        each = [s.peak_bytes / 1e6 for s in self.samples.get(arm, []) if s.peak_bytes]
        value = statistics.median(each) if each else None
        claim = f"{arm} has <= {at_most / 1e6:g} MB resident"
        self._judge(claim, f"MB resident of {arm}", value, each, at_most=at_most / 1e6)

    def _judge(
        self,
        claim: str,
        quantity: str,
        value: float | None,
        each: list[float],
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """Adds the verdict on one bound of `value`; `each` are the values of single rounds."""
        verdict = Verdict(claim, quantity, rises=at_least is not None)
        if value is not None and each:
            met = at_least <= value if at_least is not None else value <= (at_most or 0.0)
            verdict = replace(verdict, value=value, met=met, lowest=min(each), highest=max(each))
        self.verdicts.append(verdict)

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON value with every sample."""
        return {
            "name": self.name,
            "bytes": self.bytes,
            "arms": {
                arm: {
                    "median_seconds": statistics.median(sample.seconds for sample in samples),
                    "cpu_seconds_per_gib": self.cpu_seconds_per_gib(arm),
                    "samples": [asdict(sample) for sample in samples],
                }
                for arm, samples in self.samples.items()
            },
            "skipped": self.skipped,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "notes": self.notes,
        }

    def to_markdown(self, machine: str) -> str:
        """Returns the table, what was skipped and why, and the verdicts. The heading has `machine`."""
        shown = "fastest s" if self.fastest else "median s"
        header = ["arm", shown, "min-max s", "GiB/s", "core-s/GiB"]
        rows = [[*header, *(f"x {baseline}" for baseline in self.baselines)]]
        rows += [self._row(arm, samples) for arm, samples in self.samples.items()]
        lines = [f"### {self.name}: {machine}", "", self.question, ""]
        lines += [*table(rows), ""] if self.samples else []
        lines += [f"- skipped {arm}: {reason}" for arm, reason in self.skipped.items()]
        rounds = "fastest by median round" if self.fastest else "single rounds"
        lines += [_verdict_line(verdict, rounds) for verdict in self.verdicts]
        lines += [f"- {note}" for note in self.notes]
        return "\n".join(lines).rstrip() + "\n"

    def _pairs(
        self, arm: str, baseline: str, of: Result | None = None
    ) -> list[tuple[Sample, Sample]]:
        """Returns the samples of both arms that were taken in the same round.

        Where the fastest round counts: that of one with the median round of the other.
        """
        mine, theirs = self.samples.get(arm, []), (of or self).samples.get(baseline, [])
        if self.fastest and mine and theirs:
            mine, theirs = (sorted(s, key=lambda one: one.seconds) for s in (mine, theirs))
            return [(mine[0], theirs[len(theirs) // 2]), (mine[len(mine) // 2], theirs[0])]
        return list(zip(mine, theirs, strict=False))

    def _row(self, arm: str, samples: list[Sample]) -> list[str]:
        each = [sample.seconds for sample in samples]
        seconds = self.seconds(arm) or 0.0
        cpu = self.cpu_seconds_per_gib(arm)
        ratios = (self.speed_ratio(arm, baseline) for baseline in self.baselines)
        return [
            arm,
            f"{seconds:.3f}",
            f"{min(each):.3f}-{max(each):.3f}",
            f"{self.bytes / GIB / seconds:.2f}" if self.bytes else "-",
            "-" if cpu is None else f"{cpu:.2f}",
            *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        ]


def _verdict_line(verdict: Verdict, rounds: str) -> str:
    if verdict.value is None:
        return f"- not measured: {verdict.claim}"
    outcome = "met" if verdict.met else "MISSED"
    spread = f"{rounds} {verdict.lowest:.3f} to {verdict.highest:.3f}"
    return f"- {outcome}: {verdict.claim}: {verdict.value:.3f} ({spread})"


def table(rows: list[list[str]]) -> list[str]:
    """Returns the lines of a Markdown table whose first row is its head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: list[str]) -> str:
        first = row[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        return "| " + " | ".join([first, *rest]) + " |"

    rule = "|" + "|".join(
        "-" * (width + 1) + ("-" if i == 0 else ":") for i, width in enumerate(widths)
    )
    return [line(rows[0]), rule + "|", *(line(row) for row in rows[1:])]
