"""A copy in memory of something in the store that is read again and again, and that is not used when it is too old."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lakehead.clock import Clock
from lakehead.errors import Unavailable

T = TypeVar("T")
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Copy(Generic[T]):
    value: T
    as_of: float
    """When its reading began, by the monotonic clock."""


@dataclass(slots=True, kw_only=True)
class CachedCopy(Generic[T]):
    """What `load` has returned last. `run` keeps it up to date; reading it never touches the store."""

    load: Callable[[], Awaitable[T]]
    clock: Clock
    name: str
    """What it is, for messages: "the list of tokens"."""

    every_seconds: float = 30.0
    """The pause between two readings."""

    stale_after_seconds: float = 300.0
    """How old a copy may be at most, counted from the beginning of its reading."""

    _copy: _Copy[T] | None = field(default=None, init=False)
    _is_failing: bool = field(default=False, init=False)

    def value(self) -> T:
        """Return the copy. Raises `Unavailable` if it is too old, or was never read."""
        if self._copy is None:
            raise Unavailable(f"The copy of {self.name} was not read yet. Try again later.")
        age = self.clock.monotonic() - self._copy.as_of
        if age > self.stale_after_seconds:
            raise Unavailable(
                f"The copy of {self.name} is {age:.0f} s old, and may be {self.stale_after_seconds:.0f} s old at most. "
                "Check that the object store can be reached; try again later."
            )
        return self._copy.value

    async def refresh(self) -> None:
        """Read it now. Raises what `load` raises, and keeps the old copy then."""
        as_of = self.clock.monotonic()
        value = await self.load()
        if self._copy is None or self._copy.as_of <= as_of:  # else another reading began later, and ended before
            self._copy = _Copy(value, as_of)

    async def run(self) -> None:
        """Read it now and then regularly, whatever goes wrong, until the task is cancelled."""
        while True:
            try:
                await self.refresh()
                self._is_failing = False
            except Exception as error:  # noqa: BLE001 - no caller would see it, and the copy would grow old for good
                if not self._is_failing:
                    LOG.warning("The copy of %s could not be read again, and is tried on: %s", self.name, error)
                self._is_failing = True
            await self.clock.sleep(self.every_seconds)
