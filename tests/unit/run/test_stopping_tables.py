"""Whom a run that is stopped has to tell: the tables that are at work."""

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakehead.run import ingestion
from lakehead.run.ingestion import Ingestion


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
