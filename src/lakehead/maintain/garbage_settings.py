"""What garbage collection may delete, and what one run is asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from lakehead.maintain.garbage_report import BlobDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageSettings:
    """What may be deleted, and how much is done at once."""

    retry_horizon: timedelta = timedelta(days=7)
    """How old a blob must be before it can be an orphan: longer than agents try to send a batch."""

    retention: timedelta | None = None
    """How old the blob of an accepted batch must be before it can go; None: it is kept for good."""

    rollback: timedelta = timedelta(days=7)
    """How long ago it must have landed by then: longer than anybody would roll a table back."""

    at_once: int = 8
    """Orphans that are handled concurrently. Each needs up to 8 MiB of memory."""

    group: int = 1_000
    """Blobs that wait until they are handled together."""

    audited_group: int = 50_000
    """The same, if garbage collection audits: each group reads all identity manifests."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How one run differs from another."""

    by: str = "unknown"
    """Who started it, for the audit trail."""

    is_dry_run: bool = False
    """Decide the same, and change nothing but the audit trail."""

    makes_audit: bool = False
    """Audit what no completed audit covers, instead of keeping it."""

    decided: Callable[[BlobDecision], None] = lambda _: None
    """Called with every decision: of those on accepted batches that are simply kept there may be many."""

    looked: Callable[[str, int], None] = lambda _what, _count: None
    """Called now and then with what is counted, and how many there were: for progress."""

    is_stopped: Callable[[], bool] = lambda: False
    """Asked now and then: if true the run ends as soon as what was begun is done."""
