"""Repeating a compare-and-set of a manifest until it succeeds."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import QueueContended
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.retry import Backoff

T = TypeVar("T")


async def until_written(
    attempt: Callable[[], Awaitable[T | None]],
    deps: BufferDeps,
    backoff: Backoff,
    *,
    action: str,
    advice: str = "Try again later.",
) -> T:
    """Repeat `attempt`, which reads a manifest and tries to replace it, until it returns something other than None.

    None means that another writer was first. `OutcomeUnknown` is handled in the same way: the next attempt reads what
    is stored, so it must recognize or tolerate that an earlier one was applied, or is applied later.

    Raises `QueueContended` after the last attempt, and whatever else `attempt` raises; but `OutcomeUnknown` instead of
    an error which says that nothing was changed, if that is not known of an attempt. `action` and `advice` are for the
    message, as in "20 attempts to clean up ingest/manifest.json …".
    """
    doubt: OutcomeUnknown | None = None
    try:
        async for _ in backoff.each_attempt(deps.clock, deps.random):
            try:
                if (result := await attempt()) is not None:
                    return result
            except OutcomeUnknown as error:
                doubt = error.with_traceback(None)  # its frames would keep whole manifests in memory
    except Unavailable as error:
        if doubt is None or isinstance(error, QueueContended):
            raise
        raise _unconfirmed(action, doubt) from error
    raise contended(action, backoff, advice) if doubt is None else _unconfirmed(action, doubt)


def _unconfirmed(action: str, doubt: OutcomeUnknown) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"An attempt to {action} was not confirmed ({doubt}). It may have been applied, or may be later. "
        "Try again later: that does no harm."
    )


def contended(action: str, backoff: Backoff, advice: str) -> QueueContended:
    """Return the error for an action whose attempts were all refused because of other writers."""
    return QueueContended(f"{backoff.attempts} attempts to {action} were refused because of other writers. {advice}")
