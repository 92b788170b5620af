"""Fixtures; and the tests' own modules become importable, for worker processes too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
