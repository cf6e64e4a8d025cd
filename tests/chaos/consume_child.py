"""`lakehead consume` in a process of its own, that a test may kill or hold.

The command is the real one, with the short times of a test. Processes come from a fork server that has everything
imported, and borrow the test's JVM, so one costs a moment.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

# What the command loads when it needs it.
import boto3  # noqa: F401 - see above

import lakehead.consume.queues.sqs_client  # noqa: F401 - see above
from lakehead.consume import object_stager
from lakehead.consume.queue import Message
from lakehead.consume.queues.sqs_queue import SqsQueue
from lakehead.consume.shared_state import Opened, QueueSharedState
from lakehead.lake.landing import SnapshotId, Unit, UnitRemainder
from lakehead.lake.state_progress import StateProgress
from lakehead.run import consume_command, consume_pipelines, spark_startup  # noqa: F401 - see above
from lakehead.run.main import main
from tests.chaos.run_child import borrow
from tests.consumer import Consumer, be_quick
from tests.faults.consume_failpoints import watch_consumer
from tests.faults.deadly_decoder import with_deadly_decoder
from tests.faults.failpoints import Reach, die
from tests.support.costs import Mechanism, add
from tests.support.forks import FORKS
from tests.support.spark import Borrowed

ANSWER_SECONDS = 100
ASK_SECONDS = 0.02
SHOWN = 3_000
"""How much of what a process said is shown when it fails."""


class Plant(Enum):
    """A fault that is planted in a process, so that a test sees that it would be found."""

    ACKNOWLEDGES_FIRST = "messages are acknowledged before what they announce has landed"
    ASKS_NOBODY = "units are landed whether they have landed before or not"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a process is told."""

    die_at: str | None = None
    """The moment at which it is killed."""

    after: str | None = None
    """A moment that it waits for at `die_at`, in another thread, before it is killed."""

    hold_at: str | None = None
    """The moment at which it tells that it is there, and waits for a word."""

    plant: Plant | None = None
    deadly_decoder: bool = False
    """Whether objects are read by the decoder that ends its process."""

    settings: Mapping[str, Any] | None = None
    until_empty: bool = False


# --- the process


def child(consumer: Consumer, config: Path, output: Path, order: Order, jvm: Borrowed, theirs: Connection) -> None:
    """Run `lakehead consume`, until the moment comes."""
    said = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, sys.stdout.fileno())
    os.dup2(said, sys.stderr.fileno())
    os.environ.update(consumer.environment)
    sys.argv = ["lakehead", "consume", str(config), *(["--until-empty"] if order.until_empty else [])]
    borrow(jvm)
    be_quick(**(order.settings or {}))
    watch_consumer(_reach(order, theirs))
    if order.deadly_decoder:
        setattr(object_stager, "read_objects", with_deadly_decoder())  # noqa: B010 - a function is replaced, which mypy would not have
    if order.plant is Plant.ACKNOWLEDGES_FIRST:
        _acknowledge_first()
    if order.plant is Plant.ASKS_NOBODY:
        _ask_nobody()
    main()


def _reach(order: Order, theirs: Connection) -> Reach:
    came = threading.Event()

    def reach(moment: str) -> None:
        if moment == order.after:
            came.set()
        if moment == order.die_at:
            if order.after is not None:
                assert came.wait(ANSWER_SECONDS), f"{order.after!r} does not come"
            theirs.send(moment)
            die()
        if moment == order.hold_at:
            theirs.send(moment)
            theirs.recv()

    return reach


def _acknowledge_first() -> None:
    receive = SqsQueue.receive

    async def receive_and_acknowledge(self: SqsQueue, most: int, **how: timedelta) -> Sequence[Message]:
        messages = await receive(self, most, **how)
        await self.acknowledge(messages)
        return messages

    setattr(SqsQueue, "receive", receive_and_acknowledge)  # noqa: B010 - a method is replaced, which mypy would not have


def _ask_nobody() -> None:
    async def open_all(self: QueueSharedState, table: str, units: Sequence[str]) -> Opened:  # noqa: ARG001 - a method's
        return Opened(dict.fromkeys(units, 0), frozenset(), frozenset())

    async def count_all(self: QueueSharedState, table: str, tries: Mapping[str, int]) -> Mapping[str, int]:  # noqa: ARG001 - a method's
        return tries

    async def plan_all(
        self: StateProgress,  # noqa: ARG001 - a method's
        table: str,  # noqa: ARG001 - as above
        *,
        at: SnapshotId | None,  # noqa: ARG001 - as above
        units: Sequence[Unit],
    ) -> Sequence[UnitRemainder]:
        return [UnitRemainder(unit, None) for unit in units]

    async def extend_all(self: QueueSharedState, table: str, units: Sequence[str]) -> set[str]:  # noqa: ARG001 - a method's
        return set(units)

    setattr(QueueSharedState, "extend", extend_all)  # noqa: B010 - as above
    setattr(QueueSharedState, "open", open_all)  # noqa: B010 - as above
    setattr(QueueSharedState, "count_try", count_all)  # noqa: B010 - as above
    setattr(StateProgress, "plan", plan_all)  # noqa: B010 - as above


# --- the test's end of it


class Consuming:
    """A `lakehead consume` that has been started."""

    def __init__(self, consumer: Consumer, jvm: Borrowed, order: Order) -> None:
        self._order = order
        self._output = consumer.folder / f"{uuid4()}.log"
        self._output.touch()
        self._ours, theirs = FORKS.Pipe()
        given = (consumer, consumer.config(), self._output, order, jvm, theirs)
        self._process = FORKS.Process(target=child, args=given, daemon=True)
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def arrive(self) -> None:
        """Wait until it is where it is held or killed."""
        moment = self._order.die_at or self._order.hold_at
        assert self._ours.poll(ANSWER_SECONDS), f"it does not come to {moment!r}: {self.said[-SHOWN:]}"
        try:
            assert self._ours.recv() == moment
        except EOFError:
            raise AssertionError(f"it ended without coming to {moment!r}: {self.said[-SHOWN:]}") from None

    def go(self) -> None:
        """Let it go on."""
        self._ours.send("go")

    def dead(self) -> None:
        """Wait until it has been killed where it was to be."""
        self.arrive()
        assert self._ended() == -signal.SIGKILL
        add(Mechanism.KILLS)

    def done(self, *, code: int = 0) -> dict[str, int]:
        """Wait until it has ended with an exit code, that of a good end if none is given; what it counted."""
        assert self._ended() == code, self.said[-SHOWN:]
        [last] = [line for line in self.told if line["kind"] == "pipeline_ended"]
        counts: dict[str, int] = last["payload"]["counts"]
        return counts

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds, while it lives."""
        ends = time.monotonic() + ANSWER_SECONDS
        while not holds():
            assert self.is_alive, f"it ended before {what}: {self.said[-SHOWN:]}"
            assert time.monotonic() < ends, f"it does not come that {what}: {self.said[-SHOWN:]}"
            time.sleep(ASK_SECONDS)  # how often is asked; nothing depends on it

    def kill(self) -> None:
        """As in a power cut."""
        self.signal(signal.SIGKILL)
        self._process.join(ANSWER_SECONDS)
        add(Mechanism.KILLS)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop(self, *, code: int = 0) -> dict[str, int]:
        """Ask it to end, as a service manager does; what it counted."""
        self.signal(signal.SIGTERM)
        return self.done(code=code)

    def close(self) -> None:
        self._ours.close()
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._process.close()

    @property
    def held(self) -> int:
        """How many messages it held when it last told."""
        counts = [line["payload"]["held_messages"] for line in self.told if line["kind"] == "pipeline_progress"]
        return counts[-1] if counts else 0

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    @property
    def said(self) -> str:
        return self._output.read_text()

    @property
    def told(self) -> list[dict[str, Any]]:
        """The events that it has told."""
        return [
            json.loads(line)
            for line in self.said.splitlines(keepends=True)
            if line.startswith("{") and line.endswith("\n")
        ]

    def _ended(self) -> int | None:
        self._process.join(ANSWER_SECONDS)
        return self._process.exitcode


@contextmanager
def consuming(consumer: Consumer, jvm: Borrowed, **order: Any) -> Iterator[Consuming]:
    """A consumer that is gone afterwards, however the test ends."""
    started = Consuming(consumer, jvm, Order(**order))
    try:
        yield started
    finally:
        started.close()
