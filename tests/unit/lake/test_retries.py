"""What is tried again when a catalog or a store does not answer, and for how long."""

import errno
import sqlite3
from dataclasses import dataclass

import pytest
import requests
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    ServerError,
    ServiceUnavailableError,
)
from sqlalchemy.exc import OperationalError

from lakehead.clock import SystemClock
from lakehead.errors import Unavailable
from lakehead.lake.retries import Retries, is_transient
from lakehead.retry import TimedBackoff


def sqlite_error(name: str) -> OperationalError:
    cause = sqlite3.OperationalError("database is locked")
    cause.sqlite_errorname = name
    return OperationalError("SELECT 1", {}, cause)


TRANSIENT = [
    ServerError("500"),
    ServiceUnavailableError("503"),
    requests.ConnectionError("reset"),
    requests.ReadTimeout("late"),
    ConnectionResetError(errno.ECONNRESET, "reset"),
    OSError(errno.ETIMEDOUT, "late"),
    OSError("When reading: AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 7"),
    OSError("When uploading part: AWS Error UNKNOWN (HTTP status 503) during UploadPart operation"),
    OSError("AWS Error SLOW_DOWN during PutObject operation: Please reduce your request rate."),
    sqlite_error("SQLITE_BUSY"),
]
LASTING = [
    NoSuchTableError("t"),
    ForbiddenError("403"),
    CommitFailedException("409"),
    requests.exceptions.SSLError("certificate"),
    requests.exceptions.InvalidURL("what"),
    FileNotFoundError(errno.ENOENT, "gone"),
    PermissionError(errno.EACCES, "not yours"),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError("When reading: AWS Error ACCESS_DENIED during GetObject operation"),
    sqlite_error("SQLITE_CANTOPEN"),
    ValueError("ours to mend"),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=repr)
def test_what_may_be_over_in_a_moment_is_transient(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize("error", LASTING, ids=repr)
def test_what_will_come_again_is_not(error: Exception) -> None:
    assert not is_transient(error)


class Virtual(SystemClock):
    """Time that passes only where somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Failing:
    """Fails so many times, and then answers."""

    error: Exception
    times: float
    calls: int = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return "answer"


def retries(clock: Virtual, told: list[str]) -> Retries:
    return Retries(backoff=TimedBackoff(seconds=10), clock=clock, pause=clock.wait, waiting=told.append)


def test_an_answer_that_comes_late_is_taken_and_the_wait_is_told_once() -> None:
    clock, told = Virtual(), list[str]()

    assert retries(clock, told).call("The catalog lake", Failing(ServerError("500"), 5)) == "answer"

    assert told == ["The catalog lake does not answer (500); retrying"]
    assert 0 < clock.now <= 0.1 + 0.2 + 0.4 + 0.8 + 1.6, "the longest that five pauses may take"


def test_whoever_does_not_answer_in_time_is_unavailable() -> None:
    clock, told, work = Virtual(), list[str](), Failing(ServerError("500"), float("inf"))

    with pytest.raises(Unavailable, match=r"The catalog lake does not answer \(500\)\. Nothing was changed"):
        retries(clock, told).call("The catalog lake", work)

    assert clock.now == pytest.approx(10)
    assert work.calls > 3


def test_an_error_that_will_come_again_is_raised_at_once() -> None:
    clock, told, work = Virtual(), list[str](), Failing(NoSuchTableError("t"), 1)

    with pytest.raises(NoSuchTableError):
        retries(clock, told).call("The catalog lake", work)

    assert (work.calls, clock.now, told) == (1, 0, [])
