"""The heartbeat: how a run stands, told at regular intervals."""

import threading
from types import TracebackType
from typing import Self

from lakehead.run.observe.every import Every, Wait
from lakehead.run.observe.standings import Standings
from lakehead.telemetry import events
from lakehead.telemetry.emitter import Emitter


class Heartbeat:
    """Emits a `Heartbeat` event every so many seconds, while its `with` lasts.

    It listens to the emitter itself, so enter it before the run's first event. A table that was skipped is done. The
    thread has ended when the `with` has, whatever happened in it.
    """

    def __init__(self, emitter: Emitter, seconds: float, *, wait: Wait = threading.Event.wait) -> None:
        self._emitter = emitter
        self._standings = Standings()
        self._every = Every(seconds, self._beat, name="lakehead-heartbeat", wait=wait)

    def __enter__(self) -> Self:
        self._emitter.subscribe(self._standings)
        self._every.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._every.__exit__(kind, error, at)
        self._emitter.unsubscribe(self._standings)

    def _beat(self) -> None:
        counts = self._standings.counts()
        self._emitter.emit(
            events.Heartbeat(
                total=counts.total, done=counts.done + counts.skipped, failed=counts.failed, rows=counts.rows
            )
        )
