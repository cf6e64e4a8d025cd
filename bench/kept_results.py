"""What a benchmark found: told at once, and kept in RESULTS.md if that is wanted."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from bench.extract_results import KEPT, memory_size, processor
from bench.figures import figure


class KeptResults:
    """Lines and figures of one run."""

    def __init__(self, title: str, about: str, used: Sequence[str]) -> None:
        """`title` and `about` begin the section that is kept; `used` are packages whose versions matter."""
        self._title = title
        self._about = about
        self._used = used
        self._lines: list[str] = []
        self._figures: list[tuple[str, float, str, float]] = []

    def tell(self, line: str) -> None:
        """A finding, in words."""
        self._lines.append(line)
        print(line, flush=True)

    def judge(self, name: str, value: float, op: str, target: float) -> None:
        """A figure beside its target."""
        self._figures.append((name, value, op, target))
        figure(name, value, op, target)

    def keep(self) -> None:
        """Append all of it to RESULTS.md."""
        used = [f"Python {platform.python_version()}", *(f"{package} {version(package)}" for package in self._used)]
        lines = [
            f"\n# {self._title}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n",
            f"{self._about}\n",
            f"{processor()}, {os.cpu_count()} cores, {memory_size()}; {', '.join(used)}.\n",
            *(f"- {line}" for line in self._lines),
            "",
            "| figure | value | target |\n|---|---|---|",
            *(f"| `{name}` | {value:.3g} | {op} {target:g} |" for name, value, op, target in self._figures),
        ]
        with KEPT.open("a") as file:
            file.write("\n".join(lines) + "\n")
