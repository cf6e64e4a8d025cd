"""All retry policies of the buffer, with their numbers."""

from dataclasses import dataclass

from lakehead.retry import Backoff, PollInterval

_AGAINST_PRODUCERS = Backoff(attempts=100, first_seconds=0.02, cap_seconds=2.0)
_AGAINST_COLLECTORS = Backoff(attempts=20, first_seconds=0.02, cap_seconds=1.0)
_WITHOUT_PAUSES = Backoff(attempts=3, first_seconds=0.0)
_POLLS = PollInterval(first_seconds=0.05, cap_seconds=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferRetries:
    """When the buffer tries again. The store has already retried each request by its own policy."""

    appends: Backoff = _AGAINST_PRODUCERS
    """Attempts to append while other producers win. Conflicts are paced by `AppendTurns`, failures by these pauses."""

    max_append_failures: int = 4
    """After how many failures of the store an append is given up."""

    consumer: Backoff = _AGAINST_COLLECTORS
    """Attempts to claim, acknowledge, release, send a heartbeat and clean up while other collectors win."""

    commands: Backoff = _AGAINST_PRODUCERS
    """Attempts of orphan GC, repartitioning and purging while producers and collectors win."""

    idempotent_writes: Backoff = _WITHOUT_PAUSES
    """Attempts to create an object that has the same content in every attempt: batches, owners, quarantine."""

    failed_cleanup_seconds: float = 30.0
    """How long a failed cleanup is not tried again, unless the number of done locations has doubled."""

    polls: PollInterval = _POLLS
    """Pauses between polls while `Collector.next_batch` waits."""
