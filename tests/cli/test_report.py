"""varve report: the page, its numbers and its advice, in a real browser too."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Page
from cli_support import flip_a_bit

import varve

HISTORY = "varve-history.jsonl"
BEGAN = 1_795_000_000.0


def state(step: int) -> dict[str, Any]:
    layers = [{"w": np.full((64, 64), step, np.float32)} for _ in range(4)]
    model = {"layers": layers, "embed": np.zeros((1000, 64), np.float16)}
    return {"model": model, "optim": {"m": np.zeros((1000, 64)), "v": np.ones(9)}, "step": step}


def train(run: Path, steps: range, **options: Any) -> None:
    with varve.CheckpointManager(run, every=10, **options) as manager:
        manager.resume(state(0))
        for step in steps:
            manager.save(step, state(step), metrics={"loss": 1 / step})


@pytest.fixture
def trained(folder: Path) -> Path:
    """A run of three jobs, made by a manager: steps removed, one pinned, one damaged and in quarantine."""
    train(folder, range(1, 61), keep=3)
    with varve.CheckpointManager(folder, every=10) as manager:
        manager.pin(50, "for the paper")
    newest = folder / "step-00000060"
    flip_a_bit(newest / "varve.json", 30)
    train(folder, range(51, 101), keep=3)
    return folder


def line(event: str, time: float, **more: Any) -> str:
    return json.dumps({"time": time, "event": event, "attempt": 1} | more) + "\n"


def save_line(time: float, step: int, **more: Any) -> str:
    known = {
        "outcome": "done",
        "step": step,
        "reason": "by its step",
        "began": time,
        "stall_seconds": 0.5,
        "seconds": 20.0,
        "bytes": 10**9,
        "world_size": 8,
    }
    return line("save", time + 20, **(known | more))


def write(folder: Path, *lines: str) -> None:
    (folder / HISTORY).write_text("".join(lines))


def text_of(page: Path) -> str:
    """All text that a browser has made of it, that in closed details too."""
    with Page(page) as shown:
        assert shown.complaints == []
        return str(shown.evaluate("document.querySelector('main').textContent"))


def page_of(run: Any, folder: Path) -> Path:
    run("report", folder)
    return folder / "varve-report.html"


def advice(run_json: Any, folder: Path) -> str:
    return "\n".join(
        f"{one['kind']}: {one['text']}" for one in run_json("report", folder)["advice"]
    )


# ---- numbers ----


def test_the_numbers_are_those_of_the_history(run_json: Any, trained: Path) -> None:
    lines = [json.loads(one) for one in (trained / HISTORY).read_text().splitlines()]
    saves = [one for one in lines if one["event"] == "save"]
    found = run_json("report", trained)
    assert found["lines"] == len(lines) and found["unreadable"] == 0
    assert found["saves"] == len(saves) == 11
    stalls = sorted(one["stall_seconds"] for one in saves)
    assert found["stall_seconds"]["median"] == pytest.approx(stalls[len(stalls) // 2])
    assert found["stall_seconds"]["total"] == pytest.approx(sum(stalls))
    assert found["write_seconds"]["most"] == pytest.approx(max(one["seconds"] for one in saves))
    removed = [one for one in lines if one["event"] == "remove"]
    assert found["removed"]["count"] == len(removed) > 0
    assert found["removed"]["bytes"] == sum(one["bytes"] for one in removed)
    assert [job["resumed_from"] for job in found["jobs"]] == [None, None, 50]
    assert found["jobs"][0]["outcome"] == "done"
    (damaged,) = found["damaged"]["newest"]
    assert damaged["name"] == "step-00000060" and damaged["text"]
    pinned = {step["name"]: step["pin"] for step in found["steps"]}
    assert pinned["step-00000050"] == "for the paper"
    assert not any(path.suffix == ".html" for path in trained.iterdir())


def test_the_sizes_are_those_of_the_newest_step(run_json: Any, trained: Path) -> None:
    model = run_json("report", trained)["model"]
    assert model["step"] == "step-00000100"
    parts = {part["name"]: part["bytes"] for part in model["parts"]}
    assert parts["model"] == 4 * 64 * 64 * 4 + 1000 * 64 * 2
    assert parts["model.layers"] == 4 * 64 * 64 * 4 and parts["optim"] == (1000 * 64 + 9) * 8
    dtypes = {dtype["name"]: dtype["bytes"] for dtype in model["dtypes"]}
    assert dtypes == {"float64": 512_072, "float16": 128_000, "float32": 65_536}


def test_a_killed_job_has_lost_what_follows_its_last_save(run_json: Any, folder: Path) -> None:
    write(
        folder,
        line("start", BEGAN, world_size=8, host="a"),
        save_line(BEGAN + 600, 100),
        save_line(BEGAN + 1200, 200),
        line("start", BEGAN + 1500, world_size=8, host="b"),
        line("load", BEGAN + 1530, step=100, seconds=20),
        save_line(BEGAN + 2000, 200, reason="SIGTERM on rank 3"),
        line("end", BEGAN + 2100, outcome="SIGTERM on rank 3"),
        line("start", BEGAN + 3000),
        line("load", BEGAN + 3010, step=200, seconds=5),
        line("end", BEGAN + 3100, outcome="ValueError: no"),
    )
    found = run_json("report", folder)
    killed, asked, failed = found["jobs"]
    assert killed["killed"] and killed["lost_seconds_at_most"] == 300
    assert killed["steps_back"] == 100
    assert not asked["killed"] and asked["lost_seconds_at_most"] == 0
    assert not failed["killed"] and failed["lost_seconds_at_most"] == 90
    assert found["mtbf_seconds"] == pytest.approx(1220 + 600 + 100)


@pytest.mark.parametrize(("count", "p95"), [(1, 1), (2, 2), (3, 3), (20, 19), (100, 95)])
def test_95_percent_took_at_most_the_p95(run_json: Any, folder: Path, count: int, p95: int) -> None:
    lines = [save_line(BEGAN + 100 * i, i, stall_seconds=float(i)) for i in range(1, count + 1)]
    write(folder, line("start", BEGAN), *lines)
    stalls = run_json("report", folder)["stall_seconds"]
    assert stalls["p95"] == pytest.approx(p95) and stalls["median"] <= stalls["p95"]


# ---- advice ----


def test_it_warns_when_saves_take_too_much_of_the_time(run_json: Any, folder: Path) -> None:
    lines = [save_line(BEGAN + 100 * i, i, stall_seconds=10.0) for i in range(10)]
    write(folder, line("start", BEGAN), *lines)
    assert re.search(
        r"warning: Training stood still in saves for 1\d\.\d\d % ", advice(run_json, folder)
    )


def test_it_warns_when_a_save_takes_longer_than_the_time_to_the_next(
    run_json: Any, folder: Path
) -> None:
    lines = [save_line(BEGAN + 10 * i, i, stall_seconds=0.0) for i in range(10)]
    write(folder, line("start", BEGAN), *lines)
    assert "warning: 9 saves (100.00 %) took longer than the time to the next" in advice(
        run_json, folder
    )


def test_it_names_the_rank_that_is_the_slowest(run_json: Any, folder: Path) -> None:
    def phases(rank: int) -> dict[str, Any]:
        return {"write": {"seconds": 10, "slowest_rank": rank, "slowest_seconds": 19}}

    lines = [save_line(BEGAN + 600 * i, i, phases=phases(5 if i % 4 else i % 8)) for i in range(20)]
    write(folder, line("start", BEGAN, world_size=8), *lines)
    assert 'warning: Rank 5 was the slowest in "write" in 15 of 20 saves' in advice(
        run_json, folder
    )
    assert run_json("report", folder)["slowest_ranks"]["write"] == {"0": 3, "4": 2, "5": 15}


def test_it_says_how_often_to_save(run_json: Any, folder: Path) -> None:
    lines = [save_line(BEGAN + 36_000 * i, i) for i in range(10)]
    write(folder, line("start", BEGAN), *lines, line("start", BEGAN + 400_000))
    assert re.search(
        r"note: Saves were 10 h apart .* a save every [\d.]+ min is advised",
        advice(run_json, folder),
    )


def test_it_says_how_fast_the_disk_fills_where_nothing_is_removed(
    run_json: Any, folder: Path
) -> None:
    train(folder, range(1, 51))
    text = advice(run_json, folder)
    assert "warning: Nothing has ever been removed: 5 steps hold" in text
    assert re.search(r"Training adds .* a day; the .* that are free last for", text)
    train(folder, range(51, 61), keep=2)
    assert "Nothing has ever been removed" not in advice(run_json, folder)


def test_it_shows_failures_with_their_messages(run: Any, folder: Path) -> None:
    failed = save_line(BEGAN, 7, outcome="OutOfSpaceError", error="save run/step-7: no space left")
    write(folder, line("start", BEGAN), failed)
    page = text_of(page_of(run, folder))
    assert "save run/step-7: no space left" in page and "OutOfSpaceError" in page
    assert "1 save of 1 failed" in page


def test_it_shows_what_rules_would_keep(run: Any, run_json: Any, trained: Path) -> None:
    run("report", trained, "--keep", "last=1", "-o", trained / "page.html")
    assert "the rules given would remove it" in text_of(trained / "page.html")
    assert "the rules given would remove it" not in text_of(page_of(run, trained))
    assert [step["keeps"] for step in run_json("report", trained, "--keep", "last=1")["steps"]][-1]


# ---- where it writes ----


def test_a_run_without_a_manager_has_a_report(run: Any, folder: Path, checkpoint: Path) -> None:
    page = text_of(page_of(run, folder))
    assert "This run has no history" in page and checkpoint.name in page


def test_an_older_report_is_replaced_and_nothing_else(
    run: Any, folder: Path, checkpoint: Path, tmp_path: Path
) -> None:
    page_of(run, folder)
    page_of(run, folder)
    mine = tmp_path / "mine.html"
    mine.write_text("<!DOCTYPE html>\n<html>mine</html>")
    assert (
        "is no page of `varve report`; it stays" in run("report", folder, "-o", mine, code=2).stderr
    )
    assert mine.read_text() == "<!DOCTYPE html>\n<html>mine</html>"
    assert "no such directory" in run("report", folder / "none", code=2).stderr
    assert "--json, which is printed" in run("report", folder, "-o", "-", code=2).stderr
    missing = run("report", folder, "-o", tmp_path / "none" / "x.html", code=2).stderr
    assert "No such file or directory" in missing
    assert sorted(path.name for path in folder.iterdir()) == [checkpoint.name, "varve-report.html"]


def test_a_directory_that_is_no_run_is_refused_and_stays_as_it_is(run: Any, folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    assert "it is no run" in run("report", folder, code=2).stderr
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_it_does_not_wait_for_a_pipe_that_has_the_historys_name(run: Any, folder: Path) -> None:
    os.mkfifo(folder / "varve-history.jsonl")
    assert "varve-history.jsonl: not a regular file" in run("report", folder, code=2).stderr


# ---- hostile and long ----

BREAKOUT = (
    "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'\u2028\u202e&"
)

HOSTILE = [
    b"no JSON\n",
    b"\xff\xfe\x00\n",
    b"[1, 2]\n",
    b'"save"\n',
    b"NaN\n",
    b'{"time": 1795000000, "event": 7}\n',
    b'{"time": "nan", "event": "save"}\n',
    b'{"time": NaN, "event": "save"}\n',
    b'{"time": 1e999, "event": "save"}\n',
    b"[" * 200_000 + b"\n",
    b'{"time": 1, "event": "start", "x": "' + b"y" * 3_000_000 + b'"}\n',
]

STRANGE: list[dict[str, Any]] = [
    {"event": "start", "attempt": -1, "world_size": "many", "host": BREAKOUT},
    {"event": "save", "outcome": "done", "step": 2**64 - 1, "stall_seconds": "nan", "seconds": -1},
    {"event": "save", "outcome": "done", "step": 1e300, "bytes": 1e300, "began": 1e17, "phases": 3},
    {"event": "save", "outcome": "done", "step": 3, "seconds": 1e-300, "bytes": 1e18},
    {"event": "save", "outcome": BREAKOUT, "error": BREAKOUT * 1000, "step": None, "metrics": []},
    {
        "event": "save",
        "outcome": "done",
        "phases": {BREAKOUT: {"seconds": [], "slowest_rank": 2**63}},
    },
    {"event": "load", "step": -5, "name": {}, "seconds": "inf"},
    {"event": "remove", "step": [], "name": BREAKOUT, "bytes": "x"},
    {"event": "quarantine", "name": BREAKOUT, "reason": BREAKOUT},
    {"event": BREAKOUT},
    {"event": "end", "outcome": BREAKOUT},
]


@pytest.fixture
def hostile(folder: Path) -> Path:
    varve.save({BREAKOUT: {"<b>": np.ones(3)}, "x": np.ones(2)}, folder / "step-1")
    lines = [
        json.dumps({"time": BEGAN + i} | one).encode() + b"\n" for i, one in enumerate(STRANGE)
    ]
    (folder / HISTORY).write_bytes(b"".join(HOSTILE + lines) + b'{"time": 1, "eve')
    return folder


def test_a_hostile_history_is_counted_passed_over_and_escaped(
    run: Any, run_json: Any, hostile: Path
) -> None:
    found = run_json("report", hostile)
    assert found["unreadable"] == len(HOSTILE) + 1
    assert found["lines"] == len(HOSTILE) + len(STRANGE) + 1
    page = page_of(run, hostile).read_text()
    assert "<img" not in page and "window.hacked=1</script>" not in page
    assert "\\u003c/script\\u003e\\u003cscript\\u003ewindow.hacked" in page
    assert "\u202e" not in page and "\u2028" not in page
    assert len(page) < 2_000_000


def test_a_history_of_100000_saves_gives_a_small_page_with_all_peaks(
    run: Any, run_json: Any, folder: Path
) -> None:
    chance = random.Random(1)
    lines = [
        save_line(BEGAN + 60 * i, i, stall_seconds=chance.random(), seconds=chance.uniform(1, 2))
        for i in range(100_000)
    ]
    for peak in (777, 50_000):
        lines[peak] = save_line(BEGAN + 60 * peak, peak, stall_seconds=99.5, seconds=333.25)
    lines[60_000] = save_line(BEGAN + 60 * 60_000, 60_000, outcome="Error", error="lost")
    write(folder, line("start", BEGAN), *lines)
    page = page_of(run, folder)
    assert page.stat().st_size < 1_500_000
    found = run_json("report", folder)
    assert len(found["points"]) <= 1500
    drawn = {point["step"] for point in found["points"]}
    assert {777, 50_000, 60_000, 0, *range(99_800, 100_000)} <= drawn
    assert found["stall_seconds"]["most"] == 99.5
    shown = text_of(page)
    assert "The newest 200 of 100000 saves" in shown
    with_charts(page)
    assert f"{len(drawn)} of 100000 saves are drawn" in shown


# ---- in a browser ----

DRAWN = """[...document.querySelectorAll("canvas")].map((canvas) => {
    const blank = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
    return canvas.width > 0 && canvas.height > 0 && canvas.toDataURL() !== blank.toDataURL();
})"""


def with_charts(page: Path) -> None:
    if "Chart.js v3" not in page.read_text():
        if os.environ.get("VARVE_REQUIRE_BUILD"):
            pytest.fail("varve was built without Chart.js; ./setup installs libjs-chart.js")
        pytest.skip("varve was built without Chart.js (Debian package libjs-chart.js)")


def with_ranks(folder: Path) -> None:
    """Adds saves by several ranks to the history."""
    phases = {"write": {"seconds": 1.0, "slowest_rank": 2, "slowest_seconds": 3.0}}
    with (folder / HISTORY).open("a") as file:
        file.writelines(save_line(BEGAN + 60 * i, i, phases=phases) for i in range(20))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_draws_all_charts_and_asks_for_nothing(
    run: Any, trained: Path, dark: bool
) -> None:
    with_ranks(trained)
    path = page_of(run, trained)
    with_charts(path)
    with Page(path, dark=dark) as page:
        assert page.evaluate(DRAWN) == [True] * 5
        assert page.evaluate("document.documentElement.dataset.charts") == "5"
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(21, 24, 28)" if dark else "rgb(255, 255, 255)")
        page.evaluate("document.querySelector('input[value=time]').click()")
        assert page.evaluate(DRAWN) == [True] * 5
        picture = colours(page.screenshot())
        assert len(picture) > 20  # Text, lines and charts on the ground.
        assert page.pdf().startswith(b"%PDF")
        assert page.requests == [path.resolve().as_uri()]
        assert page.complaints == []


def colours(png: bytes) -> set[tuple[int, ...]]:
    from io import BytesIO

    from matplotlib import image

    pixels = (image.imread(BytesIO(png)) * 255).astype(np.uint8)
    return {tuple(colour) for colour in pixels.reshape(-1, pixels.shape[2]).tolist()}


def test_a_telephone_shows_the_page_without_scrolling_sideways(run: Any, trained: Path) -> None:
    with_ranks(trained)
    with Page(page_of(run, trained), width=360) as page:
        assert page.evaluate("innerWidth") == 360
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate(
            "[...document.querySelectorAll('canvas')].every((c) => c.clientWidth <= 360)"
        )


def test_nothing_of_a_hostile_history_runs_in_a_browser(run: Any, hostile: Path) -> None:
    path = page_of(run, hostile)
    with Page(path, width=360) as page:
        assert page.evaluate("window.hacked === undefined && document.images.length === 0")
        assert "</script><script>window.hacked=1" in page.evaluate("document.body.innerText")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.requests == [path.resolve().as_uri()]
        assert page.complaints == []
