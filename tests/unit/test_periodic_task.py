"""A task in the background is called until its `with` ends, also after it has failed."""

import threading

import pytest

from lakehead.periodic_task import PeriodicTask


def test_a_call_that_fails_is_logged_and_the_next_ones_are_made(caplog: pytest.LogCaptureFixture) -> None:
    outcomes = [None, ValueError("once"), ValueError("twice"), None, ValueError("again"), None]
    calls: list[int] = []
    all_made = threading.Event()

    def work() -> None:
        calls.append(len(calls))
        if len(calls) == len(outcomes):
            all_made.set()
        if (error := outcomes[len(calls) - 1]) is not None:
            raise error

    def wait(ended: threading.Event, _: float) -> bool:
        return len(calls) == len(outcomes) and ended.wait(60)

    with PeriodicTask(20, work, name="lakehead-lease", wait=wait):
        assert all_made.wait(60)

    assert [record.getMessage() for record in caplog.records] == [
        "The background task lakehead-lease failed (ValueError('once')). It is called again in 20 s.",
        "The background task lakehead-lease failed (ValueError('again')). It is called again in 20 s.",
    ]
    assert all(record.exc_info for record in caplog.records)
