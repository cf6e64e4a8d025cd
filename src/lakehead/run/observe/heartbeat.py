"""Emits the heartbeat: the progress of a run at regular intervals."""

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from lakehead.periodic_task import PeriodicTask, Wait
from lakehead.run.observe.run_status import RunStatus
from lakehead.telemetry.emitter import Emitter
from lakehead.telemetry.events import Heartbeat


class HeartbeatEmitter:
    """Emits a `Heartbeat` event every so many seconds, within its `with`.

    Enter it before the run's first event, because it counts tables as a subscriber. Skipped tables count as done.
    """

    def __init__(
        self,
        emitter: Emitter,
        seconds: float,
        *,
        spark: Callable[[], Mapping[str, int | float] | None] = lambda: None,
        wait: Wait = threading.Event.wait,
    ) -> None:
        """`spark` returns Spark's counts; None if it does not answer."""
        self._emitter = emitter
        self._spark = spark
        self._status = RunStatus()
        self._task = PeriodicTask(seconds, self._beat, name="lakehead-heartbeat", wait=wait)

    def __enter__(self) -> Self:
        self._emitter.subscribe(self._status)
        self._task.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._task.__exit__(kind, error, at)
        self._emitter.unsubscribe(self._status)

    def _beat(self) -> None:
        counts = self._status.counts()
        self._emitter.emit(
            Heartbeat(
                total=counts.total,
                done=counts.done + counts.skipped,
                failed=counts.failed,
                rows=counts.rows,
                spark=self._spark(),
            )
        )
