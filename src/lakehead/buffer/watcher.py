"""Whether what was ingested is durable yet."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from lakehead.errors import LakeheadError, OutcomeUnknown


@dataclass(frozen=True, slots=True)
class Durable:
    """The entries are stored, and their locations are in the queue."""

    locations: tuple[str, ...]


class WriteWatcher:
    """The fate of the entries of one `ingest` call. It can be asked by any number of tasks, or by none."""

    def __init__(self, parts: Sequence["asyncio.Future[str]"]) -> None:
        self._parts = tuple(parts)

    def result(self) -> Durable | LakeheadError | None:
        """What became of the entries, or None while that is not known. Never waits, never raises.

        `Unavailable` says that none of them is queued or ever will be, so that ingesting them again doubles nothing;
        after `OutcomeUnknown` it may.
        """
        if not all(part.done() for part in self._parts):
            return None
        errors = [error for part in self._parts if (error := _error(part)) is not None]
        if not errors:
            return Durable(tuple(part.result() for part in self._parts))
        if len(errors) == len(self._parts):
            return next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
        return OutcomeUnknown(f"A part of the entries is queued, and another is not: {errors[0]}")

    async def await_durable(self) -> None:
        """Wait until the entries are stored and queued, or raise what `result` tells. Cancelling it changes nothing."""
        if waiting := [part for part in self._parts if not part.done()]:
            await asyncio.wait(waiting)
        outcome = self.result()
        if isinstance(outcome, LakeheadError):
            raise outcome.with_traceback(None)  # many may raise it, and none wants the others' frames


def _error(part: "asyncio.Future[str]") -> LakeheadError | None:
    if part.cancelled():
        return OutcomeUnknown("The flush was interrupted. Look before ingesting again.")
    error = part.exception()
    if error is None or isinstance(error, LakeheadError):
        return error
    return OutcomeUnknown(f"The flush failed in an unforeseen way ({error!r}). Look before ingesting again.")
