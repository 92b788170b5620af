"""varve.Progress: what people see of an operation, on a terminal, in a log and in a notebook."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
import scripts

import varve

#: An operation of 100 MiB; shown are what takes longer than 0.2 s, and a line of a log every 0.2 s.
SLOW = """
import time, varve
with varve.Progress("save", after=0.2, every=0.2) as progress:
    for done in range(0, 101, 2):
        progress(done << 20, 100 << 20)
        time.sleep(0.02)
"""

WITHOUT_TQDM = "import sys; sys.modules['tqdm'] = sys.modules['tqdm.auto'] = None\n"

#: The begin of a program whose operations show every report.
SHOWS_ALL = "import numpy as np, varve\nprogress = varve.Progress('{0}', after=0.0, every=0.0)\n"

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")

#: Left out of the environment: ranks, and the size of a terminal, which libraries set for their own use.
TOLD = ("COLUMNS", "LINES", *RANKS)


def environment(**more: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in TOLD} | more


def in_a_log(code: str, **more: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(**more),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return done.stderr


def on_a_terminal(code: str, columns: int = 80, **more: str) -> str:
    """What a real pseudo-terminal gets."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(**more),
    )
    os.close(slave)
    got = b""
    while True:
        try:
            got += os.read(master, 4096)
        except OSError:  # Nobody has the terminal any more.
            break
    os.close(master)
    text = got.decode()
    assert child.wait(timeout=120) == 0, text
    return text


def need_tqdm() -> None:
    if importlib.util.find_spec("tqdm") is None:
        if os.environ.get("VARVE_REQUIRE_BUILD"):
            pytest.fail("tqdm is not installed; requirements/test.txt has it")
        pytest.skip("tqdm is not installed")


def test_a_log_gets_a_line_now_and_then() -> None:
    lines = in_a_log(SLOW).splitlines()
    assert 2 <= len(lines) <= 6
    for line in lines:
        assert re.fullmatch(
            r"save: \d+%  [\d.]+ MiB of 100\.0 MiB  [\d.]+ MiB/s(  ETA 0:0\d)?", line
        )


def test_a_terminal_gets_one_bar_which_goes_in_the_end() -> None:
    text = on_a_terminal(WITHOUT_TQDM + SLOW)
    drawn = [part for part in text.split("\r") if part.strip()]
    assert len(drawn) > 3
    assert all(re.match(r"save \[#*\.*\] +\d+%  ", part) for part in drawn)
    assert "\n" not in text
    assert re.search(r"\r +\r$", text)


@pytest.mark.parametrize("columns", [20, 0])
def test_a_bar_fits_into_its_line(columns: int) -> None:
    text = on_a_terminal(WITHOUT_TQDM + SLOW, columns)
    widest = max(len(part) for part in text.split("\r"))
    assert 0 < widest <= (columns or 80) - 1


@pytest.mark.parametrize("columns", [80, 0])
def test_the_bar_is_that_of_tqdm_where_it_is_installed(columns: int) -> None:
    need_tqdm()
    text = on_a_terminal(SLOW, columns)
    assert re.search(r"save: +\d+%\|.*\| \d+\.\dM/100M \[", text), text
    assert "\n" not in text and text.rstrip(" ").endswith("\r")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_quick_operation_shows_nothing(terminal: bool) -> None:
    quick = SLOW.replace("after=0.2", "after=2.0")
    assert (on_a_terminal if terminal else in_a_log)(quick) == ""


@pytest.mark.parametrize("name", RANKS)
def test_only_rank_0_shows_anything(name: str) -> None:
    code = SHOWS_ALL.format("it") + "with progress:\n    progress(1, 2)\n"
    assert in_a_log(code, **{name: "1"}) == ""
    assert on_a_terminal(code, **{name: "1"}) == ""
    assert in_a_log(code, **{name: "0"}) != ""


def test_the_rank_is_that_of_torch_distributed_where_it_runs(tmp_path: Path) -> None:
    ranked = f"""
import torch.distributed as dist
import varve._progress
dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
assert varve._progress.rank_of_this_process() == 0
dist.destroy_process_group()
assert varve._progress.rank_of_this_process() == 3
"""
    in_a_log(ranked, RANK="3")


@pytest.mark.slow
def test_of_two_ranks_that_save_one_shows_its_progress(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        SHOWS_ALL.format("it") + "import torch, torch.distributed as dist, varve.torch\n"
        "dist.init_process_group('gloo')\n"
        "state = {'w': varve.torch.PerRank(torch.ones(3000000))}\n"
        f"varve.torch.save(state, '{tmp_path}/c', progress=progress)\n"
        "dist.destroy_process_group()\n"
    )
    said = scripts.run(2, script)
    assert len(re.findall(r"it: 100%", said)) == 1, said


def test_the_bar_goes_when_the_operation_fails() -> None:
    failing = (
        WITHOUT_TQDM
        + """
import varve
try:
    with varve.Progress("load", after=0.0) as progress:
        progress(1, 10)
        raise ValueError("broken")
except ValueError:
    print("after")
"""
    )
    text = on_a_terminal(failing)
    assert re.search(r"load \[###\.+\].*\r +\rafter\r\n$", text)


def test_one_object_serves_several_operations_and_late_reports_begin_none() -> None:
    several = """
import time, varve
progress = varve.Progress(after=0.3, every=0.1)
for _ in range(3):  # Each is quick, all together are not.
    for done in range(11):
        progress(done, 10)
        time.sleep(0.02)
    progress(9, 10)  # Of a thread that was overtaken.
time.sleep(0.6)
progress(0, 10)
"""
    assert in_a_log(several) == ""


def test_standard_error_that_is_closed_disturbs_no_operation() -> None:
    in_a_log("import sys\nsys.stderr.close()\n" + SLOW)
    in_a_log("import sys\nsys.stderr = None\n" + SLOW)
    in_a_log(
        SLOW.replace(
            "time.sleep", "import sys; done > 50 and sys.stderr.close(); time.sleep"
        ).replace(
            "with varve", "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 2)\nwith varve"
        )
    )


@pytest.mark.parametrize(
    "call",
    [
        "varve.save({{'w': np.ones(3000000), 'n': 1}}, '{folder}/new', progress=progress)",
        "state = {{'w': np.zeros(3000000), 'n': 0}}; varve.load(state, '{folder}/c', progress=progress)",
        "assert varve.verify('{folder}/c', progress=progress) == []",
        "varve.convert('{folder}/c', '{folder}/out', 'dcp', progress=progress)",
        "varve.unshard('{folder}/full', '{folder}/out', progress=progress)",
    ],
    ids=["save", "load", "verify", "convert", "unshard"],
)
def test_every_operation_shows_its_progress_to_the_end(call: str, tmp_path: Path) -> None:
    varve.save({"w": np.ones(3_000_000), "n": 1}, tmp_path / "c")
    varve.save({"model": {"w": np.ones(3_000_000)}}, tmp_path / "full")
    lines = in_a_log(SHOWS_ALL.format("it") + call.format(folder=tmp_path)).splitlines()
    assert lines and lines[-1].startswith("it: 100%  22.9 MiB of 22.9 MiB"), lines


def test_async_saves_show_their_progress(tmp_path: Path) -> None:
    code = SHOWS_ALL.format("it") + (
        "import torch, varve.torch\n"
        f"varve.torch.async_save({{'w': torch.ones(3000000)}}, '{tmp_path}/c', progress=progress).result()\n"
    )
    assert "it: 100%" in in_a_log(code)


def test_a_progress_that_is_no_function_is_refused(tmp_path: Path) -> None:
    varve.save({"n": 1}, tmp_path / "c")
    with pytest.raises(varve.InvalidArgumentError, match="progress=3: want a function"):
        varve.verify(tmp_path / "c", progress=3)  # type: ignore[arg-type]
    with pytest.raises(varve.InvalidArgumentError, match="progress=3: want a function"):
        varve.convert(tmp_path / "c", tmp_path / "d", "dcp", progress=3)  # type: ignore[arg-type]
