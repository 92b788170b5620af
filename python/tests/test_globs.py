"""The engine's globs against Python's own, whose syntax they have."""

import fnmatch
import random
import re

import pytest

from varve._core import Globs
from varve._select import Keys

_PARTS = ["a", "b", ".", "*", "?", "[", "[!", "]", "-", "^", "\\", "é", "[a-c]", "[!a-c]", "[]a]"]
#: A set that fnmatch reads as a negated one, because a range in it that holds nothing hides its beginning.
_HIDDEN_NEGATION = re.compile(r"-.!", re.DOTALL)


def test_globs_match_what_fnmatchcase_matches() -> None:
    chosen = random.Random(1)
    compared = 0
    for _ in range(50_000):
        glob = "".join(chosen.choices(_PARTS, k=chosen.randint(0, 6)))
        name = "".join(chosen.choices("ab.[]!-^\\é*", k=chosen.randint(0, 6)))
        if _HIDDEN_NEGATION.search(glob) is None:
            compared += 1
            assert (name in Globs([glob])) == fnmatch.fnmatchcase(name, glob), (glob, name)
    assert compared > 45_000


def test_many_globs_match_what_one_of_them_does() -> None:
    globs = [f"model.{i}.*" for i in range(0, 1000, 2)] + ["*.bias", "opt[!0-9]m"]
    many = Globs(globs)
    for name in ["model.2.w", "model.3.w", "model.3.bias", "optim", "opt1m", "model.2", ""]:
        assert (name in many) == any(fnmatch.fnmatchcase(name, glob) for glob in globs), name


@pytest.mark.parametrize("name", ["a\ud800", "\ud800"])
def test_names_with_lone_surrogates_are_names(name: str) -> None:
    assert name in Keys([name])
    assert name in Keys(["*\ud800"])
    assert name not in Keys(["*\ud801"])
