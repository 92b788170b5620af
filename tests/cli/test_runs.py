"""varve prune, pin, unpin and advise, and what ls and latest say of runs."""

from __future__ import annotations

import pytest
from cli_support import contents, data_file, flip_a_bit

import varve


@pytest.fixture
def steps(folder, state):
    """Steps 10 to 50, with losses of which 20 has the lowest."""
    with varve.CheckpointManager(folder, every=10) as manager:
        for step in range(1, 51):
            manager.save(step, state, metrics={"loss": abs(step - 20)})
    varve.save(state, folder / "step-10-backup")
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_prune_keeps_what_any_rule_keeps_and_a_dry_run_tells_the_truth(run, run_json, steps):
    rules = ("--keep", "last=1", "--keep", "best=1:loss", "--keep", "every=40")
    before = contents(steps)
    dry = run_json("prune", steps, *rules, "--dry-run")
    assert contents(steps) == before
    would = [step["name"] for step in dry["steps"] if step["removed"]]
    assert would == ["step-00000010", "step-00000030"]
    text = run("prune", steps, *rules).stdout
    assert "step-00000020" in text and "best 1 by loss" in text
    assert "removed 2 steps, " in text
    assert names(steps) == ["step-00000020", "step-00000040", "step-00000050", "step-10-backup"]
    assert "removed 0 steps" in run("prune", steps, *rules).stdout


@pytest.mark.parametrize(
    "rule",
    [
        "last",
        "last=",
        "last=-1",
        "last=x",
        "every=0",
        "hours=0",
        "best=2",
        "best=:loss",
        "size=1GB",
    ],
)
def test_prune_refuses_a_rule_that_makes_no_sense(run, steps, rule):
    before = contents(steps)
    done = run("prune", steps, "--keep", rule, code=2)
    assert "keep" in done.stderr
    assert contents(steps) == before


def test_prune_without_a_rule_removes_nothing(run, steps):
    assert "at least one rule" in run("prune", steps, code=2).stderr
    assert len(names(steps)) == 6


def test_prune_by_a_metric_that_no_step_has_is_an_error(run, steps):
    told = run("prune", steps, "--keep", "best=1:los", code=2).stderr
    assert 'no step has the metric "los"' in told and "steps have loss" in told


def test_prune_of_a_name_that_is_misspelt_is_an_error(run, steps):
    assert "mispelt" in run("prune", steps.parent / "mispelt", "--keep", "last=1", code=2).stderr


def test_a_pinned_checkpoint_below_another_keeps_that(run, steps):
    step = steps / "step-00000010"
    (steps / "step-00000020").rename(step / "best")
    run("pin", step / "best")
    assert "best" in run("rm", step, code=2).stderr and (step / "best").is_dir()
    run("unpin", step / "best")
    run("rm", step)
    assert not step.exists()


def test_a_pin_keeps_a_step_until_it_is_taken_away(run, steps):
    step = steps / "step-00000010"
    assert run("pin", step, "--why", "for the paper").stdout == f"pinned {step}\n"
    assert "pinned: for the paper" in run("prune", steps, "--keep", "last=1").stdout
    assert step.is_dir()
    assert run("unpin", step).stdout == f"unpinned {step}\n"
    assert run("unpin", step).stdout == f"{step} is not pinned\n"
    run("prune", steps, "--keep", "last=1")
    assert not step.exists()
    assert "no checkpoint of that name" in run("pin", step, code=2).stderr


def test_hours_and_age_count_from_when_a_save_began(run, steps):
    kept = run("prune", steps, "--keep", "newer=1").stdout
    assert "removed 0 steps" in kept
    kept = run("prune", steps, "--keep", "hours=1").stdout
    assert "removed 3 steps" in kept  # The oldest and the newest stay.


def test_a_quarantined_step_is_listed_with_its_reason_and_removed_on_request(
    run, run_json, steps, state
):
    flip_a_bit(steps / "step-00000050" / "manifest.bin", 50)
    flip_a_bit(data_file(steps / "step-00000050"), 20)  # Of its header: no manifest is made of it.
    with varve.CheckpointManager(steps) as manager:
        assert manager.resume(state) == 40
    (entry,) = [e for e in run_json("ls", steps) if e["state"] == "quarantined"]
    assert entry["step"] == 50
    assert "manifest.bin" in entry["detail"]
    assert run("latest", steps).stdout == f"{steps / 'step-00000040'}\n"
    assert "not the manifest" in (steps / entry["name"] / "varve-damaged.txt").read_text()
    run("gc", steps)
    run("rm", steps / entry["name"])
    assert not (steps / entry["name"]).exists()


def test_a_step_whose_note_is_damaged_is_damaged_in_every_list(run, run_json, steps):
    flip_a_bit(steps / "step-00000050" / "varve-step.json", 3)
    entry = run_json("ls", steps)[-1]
    assert entry["name"] == "step-00000050" and entry["state"] == "damaged"
    assert "varve-step.json" in entry["detail"]
    assert run("latest", steps).stdout == f"{steps / 'step-00000040'}\n"


def test_latest_takes_what_a_job_saved_that_went_on_from_an_older_step(run, steps, state):
    with varve.CheckpointManager(steps) as manager:
        manager.restore(20, state)
        manager.save(25, state, force=True)
    assert run("latest", steps).stdout == f"{steps / 'step-00000025'}\n"


def test_advise_prints_how_often_to_save(run, run_json):
    lines = run_json("advise", "--size", "1TB", "--nodes", "16")
    assert [line["nodes"] for line in lines] == [4, 8, 16, 32, 64]
    middle = lines[2]
    assert middle["stall_seconds"] == pytest.approx(12.5)
    # Young: sqrt(2 * 12.5 s * 375 h), with Daly's correction.
    assert middle["interval_seconds"] == pytest.approx((2 * 12.5 * 375 * 3600) ** 0.5, rel=0.01)
    assert middle["save_share"] <= 0.01
    assert "save every" in run("advise", "--size", "1TB", "--nodes", "16").stdout
    measured = run_json("advise", "--stall", "2", "--save-time", "30", "--nodes", "1")
    assert measured[0]["stall_seconds"] == 2
    overlapped = run_json("advise", "--size", "1TB", "--stall", "0", "--save-time", "30")
    assert overlapped[0]["stall_seconds"] == 0 and overlapped[0]["interval_seconds"] == 30


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--size", "1TB", "--nodes", "0"),
        ("--size", "1TB", "--nodes", "many"),
        ("--size", "1TB", "--share", "2"),
        ("--size", "1TB", "--mtbf-hours", "nan"),
        ("--size", "1TB", "--copy", "0"),
        ("--size", "1TB", "--nodes", "99999999999"),
    ],
)
def test_advise_refuses_what_makes_no_sense(run, arguments):
    complaint = run("advise", *arguments, code=2).stderr
    assert complaint.startswith("varve: ")
    assert len(arguments) < 3 or arguments[2] in complaint
