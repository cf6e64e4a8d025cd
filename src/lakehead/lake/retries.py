"""Retries of calls to a catalog or store that does not answer."""

import errno
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import requests
from pyiceberg.exceptions import (
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from lakehead.clock import Clock, SystemClock
from lakehead.errors import Unavailable
from lakehead.ids import Random, system_random
from lakehead.retry import TimedBackoff
from lakehead.state.faults import Fault, fault_of, first_line

T = TypeVar("T")

_PASSING_ERRNOS = frozenset(
    {
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.ETIMEDOUT,
    }
)
_PASSING_WORDS = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT|THROTTLING)"
    r"|HTTP status 5\d\d|curlCode|UNAVAILABLE"
)
"""Messages of PyArrow's file systems for transient errors: they use one class for all errors."""


def is_transient(error: Exception) -> bool:
    """Whether an error of a catalog or of a table's file system is transient."""
    match error:
        case ServiceUnavailableError() | ServerError() | TooManyRequestsError() | CommitStateUnknownException():
            return True
        case requests.exceptions.SSLError():
            return False
        case requests.ConnectionError() | requests.Timeout() | requests.exceptions.ChunkedEncodingError():
            return True
        case DBAPIError():
            return fault_of(error) in (Fault.CONTENDED, Fault.LOCKED, Fault.LOST)
        case PoolTimeout() | ConnectionError() | TimeoutError():
            return True
        case OSError():
            return error.errno in _PASSING_ERRNOS or bool(_PASSING_WORDS.search(str(error)))
        case _:
            return False


def transient_reason(error: Exception) -> str:
    """The message of a transient error, in one line."""
    if isinstance(error, DBAPIError):
        return first_line(error)
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Retries, for a limited time, what failed because a catalog or a store did not answer."""

    backoff: TimedBackoff = field(default_factory=TimedBackoff)
    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=system_random)
    pause: Callable[[float], object] = field(default_factory=lambda: threading.Event().wait)
    waiting: Callable[[str], None] = lambda _: None
    """Called once for each wait, with what does not answer and its error."""

    def call(self, whom: str, work: Callable[[], T]) -> T:
        """Return what `work` returns, retrying it while it raises transient errors, so it must be idempotent.

        Raises `Unavailable`, which names `whom`, when the time is over, and any other error that `work` raises.
        """
        pauses = self.backoff.pauses(self.random, self.clock)
        reported = False
        while True:
            try:
                return work()
            except Exception as error:
                if not is_transient(error):
                    raise
                pause = next(pauses, None)
                if pause is None:
                    raise unavailable(whom, error) from error
                if not reported:
                    self.waiting(f"{whom} does not answer ({transient_reason(error)}); retrying")
                reported = True
            self.pause(pause)


def unavailable(whom: str, error: Exception) -> Unavailable:
    """The error for a service that did not answer in time, for calls that change nothing."""
    return Unavailable(f"{whom} does not answer ({transient_reason(error)}). Nothing was changed; try again later.")
