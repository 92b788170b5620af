"""The demo's main job: train, be killed in the middle of a save, resume on other world sizes.

A small GPT is trained twice on a text made here, sharded with FSDP2 on gloo:

- once on 2 ranks without interruption;
- once on 2 ranks until SIGKILL hits them in the middle of a save, then on 4 ranks from the newest
  whole checkpoint, then on 1 rank from theirs.

The second job is repeated with torch's own `torch.distributed.checkpoint` and the same kill, for
the second panel of the plot.

Both of ours end with the same losses, weights, optimiser state, learning rate, loader position and random
state, bit for bit. That is a claim about checkpoints only because training itself is made not to
depend on the world size: each micro-batch is computed alike wherever it runs, dropout included
(`train.py`), and gradients are summed exactly, so in any order (`exact.py`).

With `--storage s3` the interrupted run keeps its checkpoints on a real S3 server on this host; torch's
own DCP writes to file systems only, and its part is left out.

Everything else is written under one directory; the exit status is 1 if a claim does not hold.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import with_dcp
from compare import compare
from job import Job, JobFailed, staging_path
from place import Bucket, Directory
from report import Panel, Part, plot_losses, timings
from story import Story
from train import LAST_STEP, checkpoint_path

import varve.torch

SAVE_EVERY = 5
KILLED_STEP = 20
SHRINK_STEP = 35  # Where 4 ranks submit to 1.
PAD_MIB = 512  # Makes the killed save last long enough to be hit.
ATTEMPTS = 3

STATE_NAMES = {
    "model": "weights",
    "optim": "AdamW's state",
    "schedule": "learning-rate schedule",
    "data": "loader position",
    "rng": "random state",
    "progress": "step and loss history",
}


class Demo:
    """The acts of the story, each a method, to be called in order."""

    def __init__(self, out: Path, storage: str) -> None:
        """Clear what an earlier demo left in `out`."""
        self.story = Story()
        self.reference = out / "uninterrupted"
        self.place = Bucket() if storage == "s3" else Directory(out / "interrupted")
        self.run = self.place.run
        self.dcp_run = out / "interrupted-dcp"
        self.scratch = out / "scratch"
        self.plot = out / "loss.png"
        self.page = out / "report.html"
        self.export = out / "model.safetensors"
        self.place.clear()
        for folder in (self.reference, self.dcp_run, self.scratch):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        self.parts: list[Part] = []
        self.panels: list[Panel] = []

    def train_uninterrupted(self) -> None:
        """Act 1: the run to compare with."""
        self.story.chapter(f"2 ranks train for {LAST_STEP} steps, never interrupted")
        save_once = ("--save-every", str(LAST_STEP))
        with self._start("uninterrupted", 2, self.reference, LAST_STEP, *save_once) as job:
            job.wait()
        losses = self._finish("uninterrupted", "2 ranks, uninterrupted").losses
        self.story.say(f"The loss went from {losses[1]:.3f} to {losses[LAST_STEP]:.3f}.")

    def train_and_kill(self) -> None:
        """Act 2: repeated, with more to write, if the save was over before the signal arrived."""
        self.story.chapter(
            f"2 ranks train the same, save every {SAVE_EVERY} steps,"
            f" and are killed while saving step {KILLED_STEP}"
        )
        options = ("--save-every", str(SAVE_EVERY), "--pad-step", str(KILLED_STEP), "--pad-mib")
        for attempt in range(ATTEMPTS):
            self.place.clear()
            name, pad_mib = f"killed-{attempt + 1}", str(PAD_MIB << attempt)
            with self._start(name, 2, self.run, LAST_STEP, *options, pad_mib) as job:
                job.kill_once(lambda: self.place.save_has_begun(KILLED_STEP))
            caught = self.place.save_was_caught(KILLED_STEP)
            if caught:
                break
            self.story.say("The save was over before the signal arrived; again, with more data.")
        self._finish(name, "2 ranks, killed")
        size, share = self.place.written(KILLED_STEP, int(pad_mib) << 20)
        self.story.claim(
            f"SIGKILL hit the save midway: {share:.0%} of {size >> 20} MiB were written",
            caught and 0 < share < 1,
        )

    def look(self) -> None:
        """Act 3: what the kill left."""
        self.story.chapter("What is left")
        self.story.command("ls", self.run)
        steps = range(SAVE_EVERY, KILLED_STEP, SAVE_EVERY)
        self.story.claim(
            "only the saves that had ended are whole",
            self._whole_checkpoints() == [checkpoint_path(self.run, step) for step in steps],
        )

    def resume(self, ranks: int, until: int) -> None:
        """Acts 4 and 5: go on from the newest whole checkpoint, on another world size."""
        newest = self._whole_checkpoints()[-1]
        who = f"{ranks} ranks resume" if ranks > 1 else "1 rank resumes"
        self.story.chapter(f"{who} at {Path(newest).name}, up to step {until}")
        name = f"resumed-{ranks}"
        options = ("--resume", self.run, "--save-every", str(SAVE_EVERY))
        with self._start(name, ranks, self.run, until, *options) as job:
            job.wait()
        part = self._finish(name, f"{ranks} ranks, resumed" if ranks > 1 else "1 rank, resumed")
        first = int(newest[-8:]) + 1
        self.story.claim(
            f"trained steps {first} to {until}, the loss now {part.losses[until]:.3f}",
            sorted(part.losses) == list(range(first, until + 1)),
        )

    def compare(self) -> None:
        """Act 6: the two runs, by what they held in memory; then memory with disk."""
        self.story.chapter("Is it the same?")
        losses = self.parts[0].losses
        steps = [step for part in self.parts[1:] for step in part.losses]
        apart = self._apart(self.parts[1:])
        self.story.claim(
            f"losses: {LAST_STEP} steps, {len(steps) - LAST_STEP} of them trained again after the"
            f" kill; largest difference {apart}",
            apart == 0 and set(steps) == set(losses),
        )
        saved = [int(path[-8:]) for path in self._whole_checkpoints()]
        self._panel(
            "Varve: killed while saving, resumed from the newest checkpoint on 4 ranks, then on 1",
            self.parts[1:],
            saved,
            "nothing under its name: the newest checkpoint is the one of step "
            f"{KILLED_STEP - SAVE_EVERY}",
            KILLED_STEP,
        )
        expected, got = self._witness("uninterrupted"), self._witness("resumed-1")
        for key, name in STATE_NAMES.items():
            result = compare({key: expected[key]}, {key: got[key]})
            self.story.claim(f"{name}: {result}", result.equal)
        stored = varve.torch.read(checkpoint_path(self.run, LAST_STEP))
        stored["rng"] = stored.pop("rng/rank0")  # What PerRank({...}) was stored as.
        result = compare(got, stored)
        self.story.claim(f"the last checkpoint is what was in memory: {result}", result.equal)
        if not self.story.failed:
            self.story.say(
                "Bit for bit, though 2, 4 and 1 ranks add gradients in different orders: each term "
                "is rounded to a multiple of 2**-40 and summed in float64, where such sums are "
                "exact in any order (exact.py). With ordinary float32 sums the runs would drift "
                "apart, with or without a checkpoint in between."
            )

    def verify(self) -> None:
        """Act 7: every byte of every checkpoint."""
        self.story.chapter("Every byte on disk")
        self.story.command("ls", self.run)
        whole = self._whole_checkpoints()
        results = [self.story.command("verify", path, show=path == whole[-1]) for path in whole]
        self.story.claim(
            f"varve verify finds all {len(whole)} checkpoints clean",
            len(whole) == LAST_STEP // SAVE_EVERY and not any(done.returncode for done in results),
        )
        if self.place.kind == "s3":
            kept = self.story.command("gc", self.run, "--dry-run")
            self.story.claim(
                "what the killed save has uploaded is listed as garbage; it goes when it is a day old",
                f"step-{KILLED_STEP:08d}" in kept.stdout + kept.stderr,
            )
        else:
            stale = staging_path(Path(checkpoint_path(self.run, KILLED_STEP)))
            self.story.claim("the staging directory of the killed save was removed", stale is None)

    def export_model(self) -> None:
        """Act 8: one file, no lock-in."""
        self.story.chapter("The model for others")
        self.export.unlink(missing_ok=True)
        last = checkpoint_path(self.run, LAST_STEP)
        self.story.command("export", last, self.export, "--include", "model.*")
        weights = self._witness("resumed-1")["model"]
        result = compare({"model": weights}, safetensors.torch.load_file(self.export))
        self.story.claim(f"safetensors reads the trained weights: {result}", result.equal)

    def repeat_with_dcp(self) -> None:
        """Act 9: the same job and the same kill, checkpointed by torch's own DCP."""
        self.story.chapter("The same with torch.distributed.checkpoint")
        target = Path(checkpoint_path(str(self.dcp_run), KILLED_STEP))
        options = ("--dcp", "--save-every", str(SAVE_EVERY), "--pad-step", str(KILLED_STEP))
        pad = ("--pad-mib", str(PAD_MIB))
        with self._start("dcp-killed", 2, self.dcp_run, LAST_STEP, *options, *pad) as job:
            job.kill_once(lambda: with_dcp.has_data(target))
        parts = [self._finish("dcp-killed", "2 ranks, killed (DCP)")]
        found = sorted(self.dcp_run.iterdir())
        self.story.say(f"It leaves {', '.join(path.name for path in found)}.")
        caught = not with_dcp.is_whole(target)
        if caught:
            self.story.say(self._error_of_resuming(target))
        else:
            self.story.say("The save was over before the signal arrived.")
        for ranks, until in ((4, SHRINK_STEP), (1, LAST_STEP)):
            newest = [path for path in sorted(self.dcp_run.iterdir()) if with_dcp.is_whole(path)][
                -1
            ]
            name = f"dcp-resumed-{ranks}"
            more = ("--dcp", "--resume", str(newest), "--save-every", str(SAVE_EVERY))
            with self._start(name, ranks, self.dcp_run, until, *more) as job:
                job.wait()
            who = f"{ranks} ranks" if ranks > 1 else "1 rank"
            parts.append(self._finish(name, f"{who}, resumed (DCP)"))
        whole = [int(path.name[-8:]) for path in sorted(self.dcp_run.iterdir())]
        self._panel(
            "torch's own DCP, the same kill: resumed from the last directory that loads",
            parts,
            whole,
            f"{target.name} has its name and no index: loading it fails",
            KILLED_STEP if caught else None,
        )
        self.story.say(f"Largest difference of a loss: {self.panels[-1].apart}.")

    def _error_of_resuming(self, checkpoint: Path) -> str:
        """Return how a job ends that resumes from a checkpoint of DCP that is not whole."""
        options = ("--dcp", "--resume", str(checkpoint))
        try:
            with self._start("dcp-newest", 1, self.dcp_run, LAST_STEP, *options) as job:
                job.wait()
        except JobFailed as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return f"A job that resumes from the newest one ends with: {lines[-1][:300]}"
        return "A job that resumes from the newest one does not notice."

    def _apart(self, parts: Sequence[Part]) -> float:
        """Return the largest difference of a loss from that of the uninterrupted run."""
        losses = self.parts[0].losses
        return max(abs(loss - losses[s]) for part in parts for s, loss in part.losses.items())

    def _panel(
        self,
        title: str,
        parts: Sequence[Part],
        whole: Sequence[int],
        remark: str,
        killed: int | None,
    ) -> None:
        resumed = parts[1:]
        self.panels.append(
            Panel(
                title=title,
                parts=parts,
                whole=whole,
                killed=killed,
                resumed_from=min(resumed[0].losses) - 1,
                apart=self._apart(parts),
                remark=remark,
            )
        )

    def close(self) -> int:
        """Print the timings, draw the plot, return the exit status."""
        self.story.chapter("Timings")
        self.story.show(timings(self.parts))
        plot_losses(self.plot, self.parts[0], self.panels)
        self.story.command("report", self.run, "-o", self.page)
        self.story.say(
            f"The losses are drawn in {self.plot}, {self.page} is what `varve report` makes of the run, "
            f"the model is {self.export}."
        )
        failed = len(self.story.failed)
        self.story.chapter(f"{failed} claims FAILED" if failed else "Every claim holds")
        return 1 if failed else 0

    def _start(self, name: str, ranks: int, run: str | Path, until: int, *options: str) -> Job:
        common = ["--run", str(run), "--until", str(until)]
        events = ["--events", str(self.scratch / f"{name}.events")]
        witness = ["--witness", str(self.scratch / f"{name}.witness")]
        return Job(name, ranks, self.scratch, [*common, *events, *witness, *options])

    def _finish(self, name: str, label: str) -> Part:
        part = Part.read(label, self.story.chapter_seconds(), self.scratch / f"{name}.events")
        self.parts.append(part)
        return part

    def _witness(self, name: str) -> dict[str, Any]:
        """Return a job's final state as it was in memory, written down without Varve."""
        path = self.scratch / f"{name}.witness"
        state: dict[str, Any] = torch.load(path, weights_only=True)
        return state

    def _whole_checkpoints(self) -> list[str]:
        """Return what `varve ls` calls whole, oldest first."""
        listing = json.loads(self.story.command("ls", self.run, "--json", show=False).stdout)
        return sorted(f"{self.run}/{one['name']}" for one in listing if one["state"] == "whole")


def main() -> int:
    """Tell the story; return the exit status."""
    parser = argparse.ArgumentParser(description="Train, kill, resume on other ranks, compare.")
    parser.add_argument("--out", type=Path, default="demo-out", help="directory to write to")
    parser.add_argument(
        "--storage", choices=["files", "s3"], default="files", help="where checkpoints go"
    )
    options = parser.parse_args()
    demo = Demo(options.out, options.storage)
    try:
        demo.train_uninterrupted()
        demo.train_and_kill()
        demo.look()
        demo.resume(ranks=4, until=SHRINK_STEP)
        demo.resume(ranks=1, until=LAST_STEP)
        demo.compare()
        demo.verify()
        demo.export_model()
        if options.storage == "files":
            demo.repeat_with_dcp()
        return demo.close()
    except JobFailed as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    finally:
        demo.place.close()


if __name__ == "__main__":
    sys.exit(main())
