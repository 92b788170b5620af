"""Makes every attack as a file or directory, by plain Python: nothing is checked in.

make.py DIRECTORY makes them all there and prints what each must be answered with.
"""

from __future__ import annotations

import sys
from pathlib import Path

import bombs
import legacy_ranks
import lies
import local_ranks
import parts
import slices
from attack import ATTACKS, READ, Attack

__all__ = [
    "ATTACKS",
    "READ",
    "Attack",
    "bombs",
    "legacy_ranks",
    "lies",
    "local_ranks",
    "parts",
    "slices",
]


def main() -> None:
    for name, attack in ATTACKS.items():
        folder = Path(sys.argv[1], name)
        folder.mkdir(parents=True)
        path = attack.make(folder, folder / "canary")
        print(f"{path}: {attack.error}: {attack.says} ({', '.join(attack.reads)})")


if __name__ == "__main__":
    main()
