"""What the tests of the state share: a clock that is set by hand, words, and other processes."""

import json
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

from sqlalchemy import event

from lakehead.state.model import Numbered, PruneLimits, StoredLanding, StoredPointer
from lakehead.state.opening import StateSettings
from lakehead.state.state import State

ROOT = Path(__file__).parents[2]
NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
PATIENT = StateSettings(connect_timeout=60)
"""For servers that answer late because others use the machine too: a user's ten seconds are not the point."""
FIRST, SECOND, THIRD = (StoredPointer(snapshot, snapshot) for snapshot in (9_000_000_000_000_000_001, 42, 43))


class HandClock:
    """A clock that stands still until it is moved."""

    def __init__(self, at: datetime = NOON) -> None:
        self.at = at

    def now_ns(self) -> int:
        return (self.at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000

    def monotonic(self) -> float:
        return self.at.timestamp()

    def sleep(self, seconds: float) -> Awaitable[None]:
        raise AssertionError(f"nobody sleeps {seconds} s on a clock that is set by hand")


def landing(at: StoredPointer, *units: str, **more: Any) -> StoredLanding:
    return StoredLanding(snapshot=at.snapshot, units=units, **more)


def numbers(stream: str, *spans: tuple[int, int]) -> tuple[Numbered]:
    """What a landing says of one stream's records."""
    return (Numbered(stream, spans),)


def hold(state: State, table: str, *units: str, owner: str = "us", generation: int = 0) -> None:
    """Open the units and take their leases."""
    state.shards.open(table, units, token=owner, generation=generation)
    until = state.now() + HOUR
    got = state.shards.acquire(table, units, owner=owner, lease_until=until, generation=generation)
    assert got == set(units)


def removed(
    state: State, table: str, window: timedelta, *, every: timedelta = timedelta(0), pipeline: str = "us"
) -> int | None:
    """How many shards one pipeline's pruning deletes; None if it was not its turn."""
    pruned = state.pruning.prune(table, owner=pipeline, pipeline=pipeline, limits=PruneLimits(window), every=every)
    return None if pruned is None else pruned.expired


@contextmanager
def statements(state: State) -> Iterator[list[str]]:
    """The statements about our tables that are sent meanwhile."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "lakehead_" in statement:
            sent.append(statement)

    event.listen(state.database.engine, "before_cursor_execute", note)
    yield sent
    event.remove(state.database.engine, "before_cursor_execute", note)


@dataclass
class Child:
    """Another process with a state of its own, which does one thing at a time, when it is told to."""

    process: "subprocess.Popen[str]"

    def tell(self, do: str, **what: object) -> None:
        print(json.dumps({"do": do, **what}), file=self._pipe(self.process.stdin), flush=True)

    def answer(self) -> Any:
        line = self._pipe(self.process.stdout).readline()
        assert line, "the child has died; its last words are on standard error"
        return json.loads(line)

    def ask(self, do: str, **what: object) -> Any:
        self.tell(do, **what)
        return self.answer()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


@contextmanager
def children(count: int) -> Iterator[list[Child]]:
    """So many other processes, ready to be told."""
    started = [
        Child(
            subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "tests.contract.state_child"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        for _ in range(count)
    ]
    try:
        for child in started:
            assert child.answer() == "ready"
        yield started
    finally:
        for child in started:
            child.process.kill()
            child.process.communicate()
