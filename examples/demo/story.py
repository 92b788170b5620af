"""What the demo prints: headings, remarks with the time, commands with their output, and claims."""

from __future__ import annotations

import shlex
import subprocess
import sys
import textwrap
import time
from pathlib import Path


class Story:
    """Prints as it goes and remembers whether every claim held."""

    def __init__(self) -> None:
        """Start the clock."""
        self._start = self._chapter_start = time.perf_counter()
        self.failed: list[str] = []

    def chapter(self, title: str) -> None:
        """Open a chapter."""
        self._chapter_start = time.perf_counter()
        print(f"\n[{self._chapter_start - self._start:5.1f} s] {title}", flush=True)

    def chapter_seconds(self) -> float:
        """Return the seconds since the chapter began."""
        return time.perf_counter() - self._chapter_start

    def say(self, text: str) -> None:
        """Print a remark, wrapped."""
        print(textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="  "), flush=True)

    def show(self, text: str) -> None:
        """Print lines as they are, indented."""
        print(textwrap.indent(text.rstrip(), "  "), flush=True)

    def claim(self, text: str, holds: bool) -> None:
        """Print whether a claim holds; a claim that does not is remembered."""
        print(f"  {'ok    ' if holds else 'FAILED'}  {text}", flush=True)
        if not holds:
            self.failed.append(text)

    def command(self, *words: str | Path, show: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the `varve` next to this Python and return its result; `show` prints both."""
        program = Path(sys.executable).with_name("varve")
        arguments = [str(word) for word in words]
        result = subprocess.run(
            [str(program), *arguments], capture_output=True, text=True, check=False
        )
        if show:
            print(f"  $ varve {shlex.join(arguments)}", flush=True)
            self._quote(result.stdout)
        if result.returncode != 0 or show:
            self._quote(result.stderr)
        return result

    def _quote(self, output: str) -> None:
        if output.strip():
            print(textwrap.indent(output.rstrip(), "    | "), flush=True)
