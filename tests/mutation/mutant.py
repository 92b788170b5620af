"""A mutant: the text that it replaces, which must be in the file once, and what takes its place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: str  # A filter of gtest; "sim" is the simulator.
