"""A lease that is kept as long as the work under it lasts, and is soon over if whoever has it dies."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeAlias

from lakehead.errors import LakeheadError

LEASE = timedelta(minutes=1)
"""How long something is ours without a word from us. It saves work that would be done twice; safety is not its job.
Whoever comes after a crash on another machine waits for as long."""

STALLED = timedelta(days=1)
"""How long work may go on without a sign of progress until its lease is not renewed any more. A task that reads for
hours gives no sign, so it is long: if each hourly run took over from the one before, none would ever end."""

Progress: TypeAlias = Callable[[], object]
"""Answers another value whenever the work has come further, and None where that cannot be told."""


def no_sign() -> None:
    """Work that gives no sign of progress keeps its lease for as long as `STALLED` says."""


@contextmanager
def renewed(
    renew: Callable[[], object], lease: timedelta, *, progress: Progress = no_sign, stalled: timedelta = STALLED
) -> Iterator[None]:
    """Renew a lease from a thread of its own, three times while it lasts, until the `with` ends.

    Work that hangs must not keep others away for good: what has made no progress for `stalled` is not renewed.
    """
    done, pause = threading.Event(), lease.total_seconds() / 3

    def renewing() -> None:
        seen: object = None
        silent = 0.0
        while not done.wait(pause):
            now = progress()
            silent = 0.0 if now is not None and now != seen else silent + pause
            seen = seen if now is None else now
            if silent < stalled.total_seconds():
                with suppress(LakeheadError):  # a lease that is lost costs work, not correctness
                    renew()

    thread = threading.Thread(target=renewing, name="lakehead-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
