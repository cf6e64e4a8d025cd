"""What a coordinator asks of those it works with, besides the queue and the shared state."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.queue import Message


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a unit could not be read."""

    reason: str
    """What is wrong with it and where, for people."""

    temporary: bool = False
    """Whether it is not the unit's fault, such as a store that does not answer: the try does not count."""


@dataclass(frozen=True, slots=True)
class ReadUnit:
    """What was read of one unit."""

    rows: int = 0
    bytes: int = 0
    rescued: int = 0


@dataclass(frozen=True, slots=True)
class PartRead:
    """What was read of the part of a unit that landed."""

    id: str
    """The unit with the bytes of the part: `s3://bucket/key#0-1000`."""

    read: ReadUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapReport:
    """What became of records that did not land, because their numbers had landed with other batches."""

    equal: int = 0
    """Records that are the same as those that landed, and were dropped."""

    records: int = 0
    """Records that differ from those that landed, or could not be compared: they are in quarantine."""

    batches: int = 0
    """The batches of those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingReport:
    """What became of the units of a landing. A unit that is in none of the three is not ours any more."""

    landed: Mapping[UnitKey, ReadUnit] = field(default_factory=dict)
    begun: Mapping[UnitKey, PartRead] = field(default_factory=dict)
    """Units of which only the next part has landed: to be landed again, for the rest of them."""

    failed: Mapping[UnitKey, Failure] = field(default_factory=dict)
    snapshot: int | None = None
    """The snapshot that holds what landed, if it is known."""

    overlaps: OverlapReport = OverlapReport()
    """What did not land of batches that did."""


class UnitLander(Protocol):
    """Lands units in the tables of a pipeline."""

    async def uuid(self, table: str) -> str:
        """Return the uuid of a table, by its name; the table is created if it does not exist."""
        ...

    async def land(
        self,
        table: str,
        works: Sequence[Work],
        *,
        is_held: Callable[[UnitKey], bool],
        read: Callable[[Sequence[UnitKey]], None],
    ) -> LandingReport:
        """Land units in a table, each exactly once.

        `is_held` says whether a unit may still be landed; it is asked right before the commit. `read` is called when
        units were read to their end. Raises `Unavailable` or `OutcomeUnknown` if the landing did not come about, or
        nobody knows whether it did; calling again is safe.
        """
        ...


class Lookup(Protocol):
    """Looks up what messages do not tell of the objects that they announce."""

    async def look_up(self, messages: Sequence[Message]) -> None:
        """Look up the objects of messages that are about to be read. What could not be looked up is known to be so."""
        ...


@dataclass(frozen=True, slots=True)
class ActionReport:
    """How many objects were deleted, moved or tagged, and for how many that failed."""

    done: int = 0
    failed: int = 0


class Actions(Protocol):
    """Does something with objects that have landed."""

    async def act(self, table: str, units: Collection[str]) -> ActionReport:
        """Act on the objects of those units of a table, named by its uuid, that have landed.

        Doing it again is harmless. What fails is counted and left. Raises `Unavailable` if the state does not answer.
        """
        ...


class Replays(Protocol):
    """Lets objects come again whose dead letters are replayed, for a queue without messages that could be sent."""

    async def deliver(self, tables: Collection[str]) -> None:
        """Let the objects of replayed letters of these tables, named by their uuids, come again.

        Doing it again is harmless. Raises `Unavailable` if the state does not answer.
        """
        ...


class DeadLetterBox(Protocol):
    """Keeps what could not be landed, with the reason."""

    async def give_up(self, work: Work, table: str, reason: str, tries: int) -> bool:
        """Make a unit a dead letter of a table, named by its uuid: first the object, then the shared state.

        Its message may be acknowledged afterwards. False if the unit is not ours any more. Calling again is harmless.
        """
        ...

    async def give_up_message(self, message: Message, reason: str) -> None:
        """Make a message that was not understood a dead letter. Calling again is harmless."""
        ...

    async def close_landed(self, table: str, units: Collection[str]) -> None:
        """Close the dead letters of units that have landed after all."""
        ...
