"""The settings of a pipeline that consumes a queue."""

from dataclasses import dataclass, field
from datetime import timedelta

from lakehead.retry import PollInterval


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """How a pipeline gathers, lands and retries what a queue announces."""

    name: str
    """The pipeline's name, in commit tokens, events and messages. Never change it."""

    commit_timeout: timedelta = timedelta(seconds=10)
    """How long a unit waits at most until its landing begins."""

    max_messages: int = 10_000
    """The number of units in one landing, at most."""

    max_bytes: int = 2**30
    """The bytes of one landing, as far as messages tell them: a landing begins when so many have gathered."""

    max_held: int = 20_000
    """The number of messages, and of units that they announce, held at once. None is received beyond it."""

    max_held_bytes: int = 256 * 2**20
    """The bytes of the bodies of messages held at once. None is received beyond it, but for the last ones."""

    visibility: timedelta = timedelta(seconds=60)
    """How long a received message stays invisible; extended while it is worked on."""

    poll_wait: timedelta = timedelta(seconds=20)
    """How long one request for messages waits for the first."""

    max_tries: int = 5
    """After so many tries a unit becomes a dead letter; at least 3, because the third and later ones are alone."""

    stuck_after: timedelta = timedelta(minutes=10)
    """A landing that is stopped after so long counts as a try of its units: one that hangs is isolated by and by."""

    retry_delay: timedelta = timedelta(seconds=5)
    """The pause before a failed unit is tried again; it doubles with each try, up to `longest_retry_delay`."""

    longest_retry_delay: timedelta = timedelta(minutes=5)

    deduplication_window: timedelta = timedelta(days=7)
    """How long a landed unit is remembered after its message was acknowledged."""

    deduplication_max: int | None = None
    """How many landed units are remembered, at most; None: any number."""

    cleanup_interval: timedelta = timedelta(minutes=1)
    """How often landed units that are older than the window are removed, over all pipelines of a table."""

    polling: PollInterval = field(default_factory=lambda: PollInterval(first_seconds=0.5, cap_seconds=30.0))
    """The pauses while a service does not answer."""

    @property
    def lease(self) -> timedelta:
        """How long a unit stays a pipeline's without a sign of life: twice the commit timeout, at least 10 s."""
        return max(2 * self.commit_timeout, timedelta(seconds=10))

    @property
    def last_visibility(self) -> timedelta:
        """The last extension of a message, when all of it was read: twice the commit timeout."""
        return self.lease

    def delay_after(self, tries: int) -> timedelta:
        """The pause after so many failed tries."""
        return min(self.longest_retry_delay, self.retry_delay * (1 << min(max(tries - 1, 0), 20)))

    def group_limit(self, tries: int) -> int:
        """How many units may be read together with one that was tried so often without success.

        A unit that kills the process takes its group with it, so the groups get smaller, and from the third try on it
        is alone: only then can a death be its own.
        """
        return {0: self.max_messages, 1: 32}.get(tries, 1)
