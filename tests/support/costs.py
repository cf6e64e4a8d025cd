"""What tests spend their time on, counted where it happens and added up by `tests.support.cost_report`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum


class Mechanism(StrEnum):
    """What takes time in a test besides its own work."""

    JVM = "JVM starts"
    SERVER = "server starts"
    COMMAND = "commands"
    SEEDS = "seeds"
    KILLS = "kills"
    LANDINGS = "landings"


_spent: dict[Mechanism, tuple[int, float]] = {}


def add(mechanism: Mechanism, count: int = 1, seconds: float = 0.0) -> None:
    """Count something that has happened, and the seconds that it took where they are known."""
    before, so_far = _spent.get(mechanism, (0, 0.0))
    _spent[mechanism] = before + count, so_far + seconds


@contextmanager
def spent_on(mechanism: Mechanism, count: int = 1) -> Iterator[None]:
    """Count what happens inside, and how long it takes."""
    began = time.perf_counter()
    try:
        yield
    finally:
        add(mechanism, count, time.perf_counter() - began)


def taken() -> dict[Mechanism, tuple[int, float]]:
    """Count and seconds of each mechanism since this was last asked."""
    spent = dict(_spent)
    _spent.clear()
    return spent
