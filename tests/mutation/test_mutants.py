"""Claims about the list of mutants; `run` applies them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_the_text_of_each_mutant_is_in_its_file_once() -> None:
    sys.path.insert(0, str(HERE))
    mutants = runpy.run_path(str(HERE / "mutants.py"))["MUTANTS"]
    lost = [
        mutant.name
        for mutant in mutants
        if (HERE.parents[1] / mutant.file).read_text(encoding="utf-8").count(mutant.old) != 1
    ]
    assert lost == []
