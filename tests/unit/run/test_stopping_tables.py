"""Whom a run that is stopped has to tell: the tables that are at work, and everybody that it has ended."""

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakehead.clock import SystemClock
from lakehead.errors import Unavailable
from lakehead.ids import RandomIds
from lakehead.run import ingestion
from lakehead.run.ingestion import Ingestion
from lakehead.telemetry.emitter import Emitter, EventEnvelope
from lakehead.telemetry.events import RunDone, RunStart


def test_only_jobs_of_tables_that_are_at_work_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark remembers the last 1,000 groups that were cancelled: with more tables it would forget those that matter."""
    cancelled: list[str] = []
    monkeypatch.setattr(ingestion, "cancel_group", lambda _, group: cancelled.append(group))
    monkeypatch.setattr(ingestion, "STOP_SECONDS", 0.0)
    nobody = cast(Any, None)
    run = Ingestion(
        wiring=nobody,
        session=nobody,
        state=nobody,
        emitter=cast(Any, SimpleNamespace(run="run")),
        clock=nobody,
        ids=nobody,
        random=nobody,
        load_date=date(2026, 1, 1),
    )
    done, working, not_begun = futures = [Future[Any](), Future[Any](), Future[Any]()]
    done.set_result(None)
    working.set_running_or_notify_cancel()
    not_begun.cancel()
    tables = [SimpleNamespace(full_name=name) for name in ("done", "working", "not_begun")]

    run._stop_tables(cast(Any, tables), futures, ThreadPoolExecutor(1), by="SIGTERM")

    assert cancelled == ["run/working"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Unavailable("The state is away.")])
def test_a_run_that_ends_before_its_first_table_says_so_too(error: BaseException) -> None:
    told: list[EventEnvelope] = []

    def refuse(*_: object) -> None:
        raise error

    clock, ids = SystemClock(), RandomIds()
    run = Ingestion(
        wiring=cast(
            Any,
            SimpleNamespace(config=SimpleNamespace(runtime=SimpleNamespace(pipeline="shop", max_parallel_tables=1))),
        ),
        session=cast(Any, None),
        state=cast(Any, SimpleNamespace(flush=refuse)),
        emitter=Emitter("run", clock, ids, [told.append]),
        clock=clock,
        ids=ids,
        random=cast(Any, None),
        load_date=date(2026, 1, 1),
    )

    with pytest.raises(type(error)):
        run.run(cast(Any, [SimpleNamespace(full_name="a"), SimpleNamespace(full_name="b")]))

    started, ended = (each.event for each in told)
    assert isinstance(started, RunStart)
    assert isinstance(ended, RunDone)
    assert (ended.done, ended.not_ended) == (0, 2)
