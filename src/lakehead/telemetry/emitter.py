"""How events reach those who listen."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Protocol

from lakehead.clock import Clock
from lakehead.ids import Ids
from lakehead.telemetry.events import Happened

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def job_group(run: str, table: str) -> str:
    """The Spark job group of a table in a run: what its jobs are found and cancelled by."""
    return f"{run}/{table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An event as listeners get it: what happened, when, in which run, and to which table."""

    id: str
    at: datetime
    run: str
    table: str | None
    event: Happened
    load_date: date | None = None
    """The day that the run loads for."""

    def payload(self) -> dict[str, object]:
        """The event's fields as JSON has them, and the load date."""
        day = {} if self.load_date is None else {"load_date": self.load_date.isoformat()}
        return {**day, **self.event.payload()}

    @property
    def job_group(self) -> str | None:
        """The job group in which it happened; None for what happened to the run."""
        return None if self.table is None else job_group(self.run, self.table)


class Subscriber(Protocol):
    """Whoever listens. It should not raise: it would go unheard, for telemetry never stops a load."""

    def __call__(self, told: Told, /) -> None:
        """Hear of an event. Called from the thread in which it happened, one call at a time."""
        ...


class Emitter:
    """Tells every listener of every event, in one order. It never raises because of one of them."""

    def __init__(
        self,
        run: str,
        clock: Clock,
        ids: Ids,
        subscribers: Iterable[Subscriber] = (),
        *,
        load_date: date | None = None,
    ) -> None:
        """`load_date` is the day that the run loads for: every event carries it."""
        self.run = run
        self._load_date = load_date
        self._clock = clock
        self._ids = ids
        self._subscribers = tuple(subscribers)
        self._lock = threading.RLock()
        self.failures = 0
        """How often a listener raised."""
        self.first_failure: Exception | None = None
        """What it raised the first time."""

    def subscribe(self, subscriber: Subscriber) -> None:
        """Tell this one too, of all that happens from now on."""
        with self._lock:
            self._subscribers += (subscriber,)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Tell this one nothing any more. Nothing happens if it was not told anything."""
        with self._lock:
            self._subscribers = tuple(each for each in self._subscribers if each is not subscriber)

    def emit(self, event: Happened, table: str | None = None) -> None:
        """Tell an event of the run, or of one of its tables."""
        with self._lock:
            at = EPOCH + timedelta(microseconds=self._clock.now_ns() // 1000)
            told = Told(id=self._ids.uuid(), at=at, run=self.run, table=table, event=event, load_date=self._load_date)
            for subscriber in self._subscribers:
                try:
                    subscriber(told)
                except Exception as error:  # noqa: BLE001 - whatever a listener does wrong, the load goes on
                    self.failures += 1
                    self.first_failure = self.first_failure or error

    def of(self, table: str) -> Callable[[Happened], None]:
        """A function that tells events of one table."""
        return lambda event: self.emit(event, table)
