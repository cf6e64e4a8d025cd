"""What is tried again, and for how long, when a catalog or a store does not answer."""

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
from lakehead.state.faults import Fault, fault_of, first_line
from lakehead.storage.backoff import TimedBackoff

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
"""What PyArrow's file systems say of a store that may answer in a moment: they have one class for every error."""


def is_transient(error: Exception) -> bool:
    """Whether an error of a catalog or of a table's file system may be over in a moment."""
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
    """What a transient error says, in one line."""
    if isinstance(error, DBAPIError):
        return first_line(error)
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Tries again, for a bounded time, what failed because a catalog or a store did not answer."""

    backoff: TimedBackoff = field(default_factory=TimedBackoff)
    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=system_random)
    pause: Callable[[float], object] = field(default_factory=lambda: threading.Event().wait)
    waiting: Callable[[str], None] = lambda _: None
    """Told once for each wait: who does not answer, and what it said."""

    def call(self, whom: str, work: Callable[[], T]) -> T:
        """What `work` answers, which may be called many times: it must do no harm when it is done twice.

        Raises `Unavailable` if `whom` did not answer for all the time, and whatever else `work` raises.
        """
        pauses = self.backoff.pauses(self.random, self.clock)
        told = False
        while True:
            try:
                return work()
            except Exception as error:
                if not is_transient(error):
                    raise
                pause = next(pauses, None)
                if pause is None:
                    raise unavailable(whom, error) from error
                if not told:
                    self.waiting(f"{whom} does not answer ({transient_reason(error)}); it is tried again")
                told = True
            self.pause(pause)


def unavailable(whom: str, error: Exception) -> Unavailable:
    """The sentence for somebody who has not answered in time. It is about something that changes nothing."""
    return Unavailable(f"{whom} does not answer ({transient_reason(error)}). Nothing was changed; try again later.")
