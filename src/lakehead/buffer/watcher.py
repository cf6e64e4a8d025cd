"""Waiting until ingested entries are durable."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from lakehead.errors import LakeheadError, OutcomeUnknown


@dataclass(frozen=True, slots=True)
class Durable:
    """The entries are stored, and the locations of their batches are in the queue."""

    locations: tuple[str, ...]


class WriteWatcher:
    """Reports the outcome of one `ingest` call. Any number of tasks may use it."""

    def __init__(self, parts: Sequence["asyncio.Future[str]"]) -> None:
        self._parts = tuple(parts)

    def result(self) -> Durable | LakeheadError | None:
        """Return the outcome, or None if the flush has not finished. Never waits, never raises.

        After `Unavailable`, none of the entries is queued or ever will be: ingesting them again makes no duplicates.
        After `OutcomeUnknown`, it may.
        """
        if not all(part.done() for part in self._parts):
            return None
        errors = [error for part in self._parts if (error := _error(part)) is not None]
        if not errors:
            return Durable(tuple(part.result() for part in self._parts))
        if len(errors) == len(self._parts):
            return next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
        return OutcomeUnknown(f"Some of the entries are queued, others are not: {errors[0]}")

    async def await_durable(self) -> None:
        """Wait until the entries are stored and queued; raise the error if they cannot be.

        Cancelling the call does not cancel the flush.
        """
        if waiting := [part for part in self._parts if not part.done()]:
            await asyncio.wait(waiting)
        outcome = self.result()
        if isinstance(outcome, LakeheadError):
            raise outcome.with_traceback(None)  # several tasks may raise it: drop the others' frames


def _error(part: "asyncio.Future[str]") -> LakeheadError | None:
    if part.cancelled():
        return OutcomeUnknown("The flush was interrupted. Entries may be queued: check before ingesting them again.")
    error = part.exception()
    if error is None or isinstance(error, LakeheadError):
        return error
    return OutcomeUnknown(
        f"The flush failed unexpectedly ({error!r}). The entries may be queued: check before ingesting them again."
    )
