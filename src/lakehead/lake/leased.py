"""A lease that is kept as long as the work under it lasts, and is soon over if whoever has it dies."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from lakehead.errors import LakeheadError

LEASE = timedelta(minutes=1)
"""How long something is ours without a word from us. It saves work that would be done twice; safety is not its job.
Whoever comes after a crash waits for as long."""


@contextmanager
def renewed(renew: Callable[[], object], lease: timedelta) -> Iterator[None]:
    """Renew a lease from a thread of its own, three times while it lasts, until the `with` ends."""
    done = threading.Event()

    def renewing() -> None:
        while not done.wait(lease.total_seconds() / 3):
            with suppress(LakeheadError):  # a lease that is lost costs work, not correctness
                renew()

    thread = threading.Thread(target=renewing, name="lakehead-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
