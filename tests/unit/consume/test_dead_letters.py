"""Dead letters of a pipeline: written while the pipeline goes on."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lakehead.buffer.errors import InvalidCall
from lakehead.clock import SystemClock
from lakehead.consume.dead_letters import QueueDeadLetters
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.queue import Message
from lakehead.ids import RandomIds
from lakehead.lake.dead_letters import DeadLetters
from lakehead.state.opening import open_state
from lakehead.storage.memory_store import MemoryStore
from tests.support.async_tests import run_bounded

SLOW = 0.4


@pytest.mark.slow
def test_a_state_that_is_slow_does_not_stop_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same loop keeps messages invisible, of all pipelines of the process."""
    clock = SystemClock()
    message = Message(id="m", body=b"s3://bucket/a")
    work = Work(key=UnitKey("t.t", "a"), message=message)
    with open_state(f"sqlite:///{tmp_path}/state.db", clock, RandomIds()) as state:
        state.shards.open("uuid", ["a"], token="us")
        state.shards.acquire("uuid", ["a"], owner="us", lease_until=state.now())
        letters = QueueDeadLetters(DeadLetters(MemoryStore(clock=clock)), state, "us", "queue")
        real = state.database.patiently

        def slow(attempt: Callable[[], object]) -> object:
            time.sleep(SLOW)
            return real(attempt)

        monkeypatch.setattr(state.database, "patiently", slow)

        async def test() -> None:
            longest, last, done = 0.0, time.monotonic(), asyncio.Event()

            async def watch() -> None:
                nonlocal longest, last
                while not done.is_set():
                    await asyncio.sleep(0.01)
                    longest, last = max(longest, time.monotonic() - last), time.monotonic()

            watching = asyncio.ensure_future(watch())
            await asyncio.sleep(0.05)
            assert await letters.give_up(work, "uuid", "corrupt", 5)
            await letters.close_landed("uuid", ["a"])
            await asyncio.sleep(0.05)
            done.set()
            await watching
            assert longest < SLOW

        run_bounded(test())


class Deleting:
    """A queue that deletes what its messages announce."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    async def keep(self, body: bytes) -> None:
        if not body.endswith(b".batch"):
            raise InvalidCall("It is no location.")
        self.kept.append(body)


def test_what_a_message_announces_is_kept_although_the_message_was_not_understood(tmp_path: Path) -> None:
    """Else the batch is deleted when its message is acknowledged, and nobody can look at it or replay it."""
    clock, queue = SystemClock(), Deleting()
    with open_state(f"sqlite:///{tmp_path}/state.db", clock, RandomIds()) as state:
        letters = QueueDeadLetters(DeadLetters(MemoryStore(clock=clock)), state, "us", "queue", deleting=queue)

        async def test() -> None:
            for body in (b"ingest/0.batch", b"nonsense"):
                await letters.give_up_message(Message(id="m", body=body), "not understood")

        run_bounded(test())

    assert queue.kept == [b"ingest/0.batch"]
