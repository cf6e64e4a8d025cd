"""A phase that fails is marked so, and its own error is what is raised, whatever becomes of the mark."""

from dataclasses import replace
from datetime import date
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakehead.errors import DiskFull, Unavailable
from lakehead.extract.strategy import ExecutionContext
from lakehead.telemetry.events import Event, PhaseMarked


def context(mark: Any, told: list[Event]) -> ExecutionContext:
    """As much of a context as a phase needs."""
    return ExecutionContext(
        table=cast(Any, None),
        sink=cast(Any, SimpleNamespace(id="table")),
        open_source=cast(Any, None),
        state=cast(Any, SimpleNamespace(mark_day=mark)),
        emit=told.append,
        run="run",
        load_date=date(2026, 1, 1),
        planner=cast(Any, None),
        slicing=cast(Any, None),
        clock=cast(Any, None),
        ids=cast(Any, None),
    )


def test_a_state_that_does_not_take_the_mark_does_not_hide_why_the_phase_failed() -> None:
    told: list[Event] = []

    def refuse(_: object) -> None:
        raise Unavailable("The state database did not take a transaction.")

    with pytest.raises(DiskFull, match="The disk of /lake is full") as raised, context(refuse, told).phase("raw"):
        raise DiskFull("The disk of /lake is full.")

    assert [each.state for each in told if isinstance(each, PhaseMarked)] == ["failed"]
    assert "could not be recorded in the state: The state database" in raised.value.__notes__[0]


def test_a_phase_tells_the_sentence_of_an_error_and_not_its_hundred_lines() -> None:
    marked: list[Any] = []
    told: list[Event] = []
    spoken = replace(context(marked.append, told), sentence=lambda error: f"Spark died of {type(error).__name__}.")

    with pytest.raises(ConnectionRefusedError), spoken.phase("raw"):
        raise ConnectionRefusedError(111, "Connection refused")

    said = {"error": "Spark died of ConnectionRefusedError."}
    assert [each.detail for each in told if isinstance(each, PhaseMarked)] == [said]
    assert [each.detail for each in marked] == [said]
