"""Notifications about a run by webhook: at intervals, for stale tables, and at the end."""

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

from lakehead.clock import Clock
from lakehead.periodic_task import PeriodicTask, Wait
from lakehead.run.observe.event_text import counted, duration, event_text, one_line, totals
from lakehead.run.observe.run_status import RunStatus, TableOutcome
from lakehead.telemetry.background_sender import BackgroundSender, LostMessages
from lakehead.telemetry.emitter import EPOCH, EventEnvelope
from lakehead.telemetry.events import RunDone, RunStart, TableStale

CLOSE_SECONDS = 10.0
"""How long the end of a run waits for its last notification."""

QUEUE_CAPACITY = 20
"""Notifications that wait for a slow receiver; older ones are dropped."""

SHOWN_FAILURES = 10
"""How many failed tables a notification names."""


class NotifierSubscriber:
    """Posts the status of a run every so many seconds, and once at its end. Use it in a `with`.

    A fast subscriber: it only counts. Notifications are sent on a thread of their own; a receiver that is away or slow
    is only counted in `lost`.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        seconds: float,
        clock: Clock,
        *,
        shape: str = "json",
        wait: Wait = threading.Event.wait,
        pause: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        """`shape` is json, with all fields, or slack: the `text` that a Slack webhook takes."""
        self._status = RunStatus()
        self._clock = clock
        self._shape = shape
        self._run = ""
        self._pipeline = ""
        self._load_date = ""
        self._sender = BackgroundSender(send, "the webhook", capacity=QUEUE_CAPACITY, pause=pause)
        self._task = PeriodicTask(seconds, self._periodic, name="lakehead-notifier", wait=wait)

    def __call__(self, envelope: EventEnvelope) -> None:
        """Count the event, and queue a notification if it ends the run or is an alert."""
        self._status(envelope)
        match envelope.event:
            case RunStart():
                self._run, self._pipeline = envelope.run, envelope.event.pipeline
                self._load_date = envelope.event.load_date.isoformat()
            case RunDone():
                self._notify("final")
            case TableStale():
                text = f"{one_line(envelope.table or '')}: {event_text(envelope.event)}"
                self._notify("alert", alert={"table": envelope.table, **envelope.event.payload()}, text=text)
            case _:
                pass

    @property
    def sent(self) -> int:
        """How many notifications arrived."""
        return self._sender.sent

    @property
    def lost(self) -> LostMessages | None:
        """The notifications that did not arrive; None if all did."""
        return self._sender.lost

    def __enter__(self) -> Self:
        self._task.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._task.__exit__(kind, error, at)
        self._sender.close(CLOSE_SECONDS)

    def _periodic(self) -> None:
        if self._run and self._status.seconds is None:
            self._notify("periodic")

    def _notify(self, kind: str, *, alert: dict[str, object] | None = None, text: str | None = None) -> None:
        counts = self._status.counts()
        failed = self._status.tables(TableOutcome.FAILED)
        seconds = self._seconds()
        title = f"{self._pipeline} for {self._load_date}"
        text = text or (
            f"{'run ended' if kind == 'final' else 'running'} after {duration(seconds)}: "
            f"{counted(counts.total, 'table')}, {totals(counts)}; {counted(counts.rows, 'row')}"
        )
        lines = [f"Lakehead {title}: {text}"]
        if alert is None:
            lines += [f"{one_line(each.table)} failed: {one_line(each.message)}" for each in failed[:SHOWN_FAILURES]]
            lines += [f"and {len(failed) - SHOWN_FAILURES:,} more failed"] if len(failed) > SHOWN_FAILURES else []
        message: dict[str, object] = {
            "text": _escaped("\n".join(lines)) if self._shape == "slack" else "\n".join(lines)
        }
        if self._shape != "slack":
            message |= {
                "kind": kind,
                "run": self._run,
                "pipeline": self._pipeline,
                "load_date": self._load_date,
                "seconds": seconds,
                "tables": {
                    "total": counts.total,
                    "done": counts.done,
                    "skipped": counts.skipped,
                    "failed": counts.failed,
                    "running": counts.running,
                    "waiting": counts.waiting,
                },
                "rows": counts.rows,
                "failures": [{"table": each.table, "error": each.message} for each in failed[:SHOWN_FAILURES]],
                **({"alert": alert} if alert else {}),
            }
        self._sender.put(json.dumps(message).encode())

    def _seconds(self) -> float:
        if self._status.seconds is not None or self._status.started_at is None:
            return self._status.seconds or 0.0
        now = EPOCH + timedelta(microseconds=self._clock.now_ns() // 1000)
        return (now - self._status.started_at).total_seconds()


def _escaped(text: str) -> str:
    """Escape the three characters that Slack reads as markup of links and mentions."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
