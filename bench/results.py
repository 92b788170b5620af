"""What a scenario found, and whether that meets what was promised."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.measure import Rounds, Sample

GIB = 1 << 30


@dataclass(frozen=True)
class Verdict:
    """A claim, the measured value (of medians) and its lowest and highest of any single round.

    All None when an arm that the claim needs did not run.
    """

    claim: str
    value: float | None = None
    met: bool | None = None
    lowest: float | None = None
    highest: float | None = None


@dataclass
class Result:
    """One table: the samples of each arm for one question. `bytes` is 0 where time is not per byte."""

    name: str
    question: str
    bytes: int
    samples: dict[str, list[Sample]]
    skipped: dict[str, str]
    baselines: Sequence[str]
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

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

    def median_seconds(self, arm: str) -> float | None:
        """Returns the median wall time of `arm`, or None if it did not run."""
        samples = self.samples.get(arm)
        return statistics.median(s.seconds for s in samples) if samples else None

    def cpu_seconds_per_gib(self, arm: str) -> float | None:
        """Returns the median core-seconds `arm` spent per GiB of state, or None."""
        samples = self.samples.get(arm)
        if not samples or self.bytes == 0 or not any(s.cpu_seconds for s in samples):
            return None  # The last where it was not measured.
        return statistics.median(s.cpu_seconds for s in samples) / (self.bytes / GIB)

    def speed_ratio(self, arm: str, baseline: str) -> float | None:
        """Returns how many times as fast `arm` is as `baseline`: ratio of medians, or None."""
        mine, theirs = self.median_seconds(arm), self.median_seconds(baseline)
        return None if mine is None or theirs is None else theirs / mine

    def expect_speed(self, arm: str, baseline: str, at_least: float) -> None:
        """Adds the verdict on "`arm` is at least `at_least` times as fast as `baseline`"."""
        claim = f"{arm} is >= {at_least:g} x as fast as {baseline}"
        value = self.speed_ratio(arm, baseline)
        if value is None:
            self.verdicts.append(Verdict(claim))
            return
        each = [theirs.seconds / mine.seconds for mine, theirs in self._pairs(arm, baseline)]
        self.verdicts.append(Verdict(claim, value, value >= at_least, min(each), max(each)))

    def expect_cpu(self, arm: str, at_most: float) -> None:
        """Adds the verdict on "`arm` spends at most `at_most` core-seconds per GiB"."""
        claim = f"{arm} spends <= {at_most:g} core-seconds/GiB"
        value = self.cpu_seconds_per_gib(arm)
        if value is None:
            self.verdicts.append(Verdict(claim))
            return
        each = [sample.cpu_seconds / (self.bytes / GIB) for sample in self.samples[arm]]
        self.verdicts.append(Verdict(claim, value, value <= at_most, min(each), max(each)))

    def expect_overhead(self, arm: str, baseline: str, at_most: float) -> None:
        """Adds the verdict on "`arm` takes at most the fraction `at_most` longer"."""
        claim = f"{arm} takes <= {at_most:.0%} longer than {baseline} (as a fraction)"
        ratio = self.speed_ratio(baseline, arm)
        if ratio is None:
            self.verdicts.append(Verdict(claim))
            return
        each = [mine.seconds / theirs.seconds - 1 for mine, theirs in self._pairs(arm, baseline)]
        self.verdicts.append(Verdict(claim, ratio - 1, ratio - 1 <= at_most, min(each), max(each)))

    def expect_seconds(self, arm: str, at_most: float) -> None:
        """Adds the verdict on "`arm` takes at most `at_most` seconds"."""
        claim = f"{arm} takes <= {at_most:g} s"
        each = [sample.seconds for sample in self.samples.get(arm, [])]
        self._expect_at_most(claim, each, at_most)

    def expect_peak(self, arm: str, at_most: float) -> None:
        """Adds the verdict on "`arm` has at most `at_most` bytes resident"; shown in MB."""
        claim = f"{arm} has <= {at_most / 1e6:g} MB resident"
        peaks = [sample.peak_bytes for sample in self.samples.get(arm, [])]
        self._expect_at_most(claim, [peak / 1e6 for peak in peaks if peak], at_most / 1e6)

    def _expect_at_most(self, claim: str, each: list[float], at_most: float) -> None:
        if not each:
            self.verdicts.append(Verdict(claim))
            return
        value = statistics.median(each)
        self.verdicts.append(Verdict(claim, value, value <= at_most, min(each), max(each)))

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON value with every sample."""
        return {
            "name": self.name,
            "bytes": self.bytes,
            "arms": {
                arm: {
                    "median_seconds": self.median_seconds(arm),
                    "cpu_seconds_per_gib": self.cpu_seconds_per_gib(arm),
                    "samples": [asdict(sample) for sample in samples],
                }
                for arm, samples in self.samples.items()
            },
            "skipped": self.skipped,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "notes": self.notes,
        }

    def to_markdown(self) -> str:
        """Returns the table, what was skipped and why, and the verdicts."""
        header = ["arm", "median s", "min-max s", "GiB/s", "core-s/GiB"]
        rows = [[*header, *(f"x {baseline}" for baseline in self.baselines)]]
        rows += [self._row(arm, samples) for arm, samples in self.samples.items()]
        lines = [f"### {self.name}", "", self.question, ""]
        lines += [*_table(rows), ""] if self.samples else []
        lines += [f"- skipped {arm}: {reason}" for arm, reason in self.skipped.items()]
        lines += [_verdict_line(verdict) for verdict in self.verdicts]
        lines += [f"- {note}" for note in self.notes]
        return "\n".join(lines).rstrip() + "\n"

    def _pairs(self, arm: str, baseline: str) -> list[tuple[Sample, Sample]]:
        """Returns the samples of both arms that were taken in the same round."""
        return list(zip(self.samples[arm], self.samples[baseline], strict=False))

    def _row(self, arm: str, samples: list[Sample]) -> list[str]:
        seconds = [sample.seconds for sample in samples]
        median = statistics.median(seconds)
        cpu = self.cpu_seconds_per_gib(arm)
        ratios = (self.speed_ratio(arm, baseline) for baseline in self.baselines)
        return [
            arm,
            f"{median:.3f}",
            f"{min(seconds):.3f}-{max(seconds):.3f}",
            f"{self.bytes / GIB / median:.2f}" if self.bytes else "-",
            "-" if cpu is None else f"{cpu:.2f}",
            *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        ]


def _verdict_line(verdict: Verdict) -> str:
    if verdict.value is None:
        return f"- not measured: {verdict.claim}"
    outcome = "met" if verdict.met else "MISSED"
    spread = f"single rounds {verdict.lowest:.3f} to {verdict.highest:.3f}"
    return f"- {outcome}: {verdict.claim}: {verdict.value:.3f} ({spread})"


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: list[str]) -> str:
        first = row[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        return "| " + " | ".join([first, *rest]) + " |"

    rule = "|" + "|".join(
        "-" * (width + 1) + ("-" if i == 0 else ":") for i, width in enumerate(widths)
    )
    return [line(rows[0]), rule + "|", *(line(row) for row in rows[1:])]
