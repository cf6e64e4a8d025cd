"""Threads for blocking calls."""

import threading

import pytest

from lakehead.consume.queues.daemon_pool import DaemonPool


def test_calls_run_side_by_side_but_not_more_than_allowed() -> None:
    pool = DaemonPool(3, "test")
    meeting = threading.Barrier(3)
    running: list[int] = []
    lock = threading.Lock()
    now = 0

    def call() -> None:
        nonlocal now
        with lock:
            now += 1
            running.append(now)
        meeting.wait(timeout=10)  # three are here at once
        with lock:
            now -= 1

    for each in [pool.submit(call) for _ in range(9)]:
        each.result(timeout=10)
    assert max(running) == 3


def test_an_error_is_the_callers() -> None:
    def fail() -> None:
        raise ValueError("so")

    with pytest.raises(ValueError, match="so"):
        DaemonPool(1, "test").submit(fail).result(timeout=10)


def test_a_call_that_has_not_begun_can_be_cancelled_and_threads_are_daemons() -> None:
    pool = DaemonPool(1, "test-daemon")
    go_on, began = threading.Event(), threading.Event()

    def wait() -> bool:
        began.set()
        go_on.wait(timeout=10)
        return threading.current_thread().daemon

    first = pool.submit(wait)
    second = pool.submit(wait)
    assert began.wait(timeout=10)
    assert second.cancel()
    assert not first.cancel()
    go_on.set()
    assert first.result(timeout=10)
