"""Delivers events to subscribers."""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from types import TracebackType
from typing import Protocol, Self

from lakehead.clock import Clock
from lakehead.ids import Ids
from lakehead.telemetry.events import Event
from lakehead.telemetry.subscriber_queue import SubscriberQueue

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

CLOSE_SECONDS = 10.0
"""How long slow subscribers are waited for at the end of a run, all of them together."""


def job_group(run: str, table: str) -> str:
    """Return the Spark job group of a table in a run, by which its jobs are found and cancelled."""
    return f"{run}/{table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventEnvelope:
    """An event with its id, time, run and table, as subscribers receive it."""

    id: str
    at: datetime
    run: str
    table: str | None
    event: Event
    load_date: date | None = None
    """The load date of the run."""

    def payload(self) -> dict[str, object]:
        """Return the event's fields and the load date as JSON values."""
        day = {} if self.load_date is None else {"load_date": self.load_date.isoformat()}
        return {**day, **self.event.payload()}

    @property
    def job_group(self) -> str | None:
        """The Spark job group of the table; None for events of the whole run."""
        return None if self.table is None else job_group(self.run, self.table)


class Subscriber(Protocol):
    """Receives events, one at a time and in order. Errors that it raises are counted and do not stop a load."""

    def __call__(self, envelope: EventEnvelope, /) -> None:
        """Handle one event."""
        ...


class Emitter:
    """Delivers every event to every subscriber, in one order. Use it in a `with`, which closes it.

    A fast subscriber is called by `emit` itself, and so holds up every table while it runs: it must not do I/O. A slow
    one has a bounded queue and a thread of its own. No subscriber can stop a load or another subscriber.
    """

    def __init__(
        self,
        run: str,
        clock: Clock,
        ids: Ids,
        subscribers: Iterable[Subscriber] = (),
        *,
        load_date: date | None = None,
    ) -> None:
        """Every envelope carries `run` and `load_date`. The subscribers are fast ones."""
        self.run = run
        self._load_date = load_date
        self._clock = clock
        self._ids = ids
        self._subscribers = tuple(subscribers)
        self._queues: list[SubscriberQueue[EventEnvelope]] = []
        self._lock = threading.RLock()
        self._failures = 0
        self._first_failure: Exception | None = None

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call this subscriber for every event from now on, in the thread that emits it."""
        with self._lock:
            self._subscribers += (subscriber,)

    def subscribe_slow(self, subscriber: Subscriber, name: str) -> None:
        """Queue every event from now on for this subscriber, which may block. `name` is for messages: "the log"."""
        with self._lock:
            self._queues.append(SubscriberQueue(subscriber, name))

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Stop calling this fast subscriber. Does nothing if it is not subscribed."""
        with self._lock:
            self._subscribers = tuple(each for each in self._subscribers if each is not subscriber)

    def emit(self, event: Event, table: str | None = None) -> None:
        """Deliver an event of the run, or of one of its tables. Never waits for a slow subscriber."""
        with self._lock:
            at = EPOCH + timedelta(microseconds=self._clock.now_ns() // 1000)
            envelope = EventEnvelope(
                id=self._ids.uuid(), at=at, run=self.run, table=table, event=event, load_date=self._load_date
            )
            for subscriber in self._subscribers:
                try:
                    subscriber(envelope)
                except Exception as error:  # noqa: BLE001 - telemetry never stops a load
                    self._failures += 1
                    self._first_failure = self._first_failure or error
            for queue in self._queues:
                queue.put(envelope)

    def for_table(self, table: str) -> Callable[[Event], None]:
        """Return a function that emits events of one table."""
        return lambda event: self.emit(event, table)

    @property
    def failures(self) -> int:
        """How often a subscriber raised, or the thread of a slow one could not be started."""
        return self._failures + sum(queue.failures for queue in self._queues)

    @property
    def first_failure(self) -> Exception | None:
        """The first error of a fast subscriber, else of a slow one; None if there was none."""
        found = (self._first_failure, *(queue.first_failure for queue in self._queues))
        return next((error for error in found if error is not None), None)

    @property
    def dropped(self) -> dict[str, int]:
        """How many events each slow subscriber did not get, by its name; only those that missed one."""
        return {queue.name: queue.dropped for queue in self._queues if queue.dropped}

    def flush(self, within: float) -> bool:
        """Wait until slow subscribers have every event so far, at most so many seconds. Returns whether they have."""
        return all(queue.flush(left) for queue, left in self._shared_time(within))

    def close(self, within: float = CLOSE_SECONDS) -> None:
        """Deliver what is queued, for at most so many seconds; the rest is counted in `dropped`."""
        for queue, left in self._shared_time(within):
            queue.close(left)

    def _shared_time(self, within: float) -> Iterator[tuple[SubscriberQueue[EventEnvelope], float]]:
        """Yield every queue with the seconds that are left for it."""
        until = self._clock.monotonic() + within
        for queue in tuple(self._queues):
            yield queue, until - self._clock.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
