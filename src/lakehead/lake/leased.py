"""Renewing a lease for as long as the work under it lasts, so that it expires soon if its holder dies."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeAlias

from lakehead.errors import LakeheadError
from lakehead.periodic_task import PeriodicTask

LEASE = timedelta(minutes=1)
"""How long a lease is valid without renewal. It only avoids doing work twice; correctness does not depend on it.
After a crash, a run on another machine waits for as long."""

STALLED = timedelta(days=1)
"""How long work may show no progress before its lease is no longer renewed. It is long because a task that reads for
hours shows none: if each hourly run took over from the one before, none would ever finish."""

WorkProgress: TypeAlias = Callable[[], object]
"""Returns a different value whenever the work has progressed, and None if the progress is unknown."""


def no_sign() -> None:
    """For work whose progress is unknown: it keeps its lease for as long as `STALLED` says."""


@contextmanager
def renewed(
    renew: Callable[[], object], lease: timedelta, *, progress: WorkProgress = no_sign, stalled: timedelta = STALLED
) -> Iterator[None]:
    """Renew a lease from a background thread, three times per lease period, until the `with` ends.

    Work that hangs must not block others for ever, so a lease without progress for `stalled` is no longer renewed.
    """
    pause, without_progress = lease.total_seconds() / 3, 0.0
    last: object = None

    def renew_while_working() -> None:
        nonlocal last, without_progress
        now = progress()
        without_progress = 0.0 if now is not None and now != last else without_progress + pause
        last = last if now is None else now
        if without_progress < stalled.total_seconds():
            with suppress(LakeheadError):  # a lease that is lost costs work, not correctness
                renew()

    with PeriodicTask(pause, renew_while_working, name="lakehead-lease"):
        yield
