"""What a pipeline knows of the messages it holds, and of the units of work that they announce."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto

from lakehead.consume.decode.frames import AcceptedFrame
from lakehead.consume.objects import ObjectRef
from lakehead.consume.queue import Message

LARGE_BODY = 2**20
"""As large as a message of SQS can be."""

MANY_UNITS = 100
"""More units than most messages announce. Expected before the first message has come."""


@dataclass(frozen=True, slots=True, order=True)
class UnitKey:
    """A unit of work: one object or inline content, for one table."""

    table: str
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A unit with what is needed to read it."""

    key: UnitKey
    object: ObjectRef | None = None
    content: bytes | None = field(default=None, repr=False)
    """Content that came in the message itself, instead of an object."""

    frame: AcceptedFrame | None = None
    """Which frame the object is, if it is that of an accepted batch."""

    message: Message = field(repr=False, compare=False)
    """The first message that announced it."""

    tries: int = 0
    """How often it was tried before, by any pipeline, without success."""

    is_begun: bool = False
    """Whether a part of it has landed: then the landing of the next one need not wait for other units."""

    @property
    def size(self) -> int:
        """Its bytes, as far as they are known."""
        if self.content is not None:
            return len(self.content)
        return (self.object.size or 0) if self.object else 0


class UnitState(Enum):
    """Where a unit is on its way, from the pipeline's point of view."""

    OPENING = auto()
    """It was received, and the shared state is asked whose it is."""
    READY = auto()
    """Ready for read."""
    READING = auto()
    """Read in progress."""
    AWAITING_COMMIT = auto()


class IllegalTransition(Exception):
    """A unit was moved to a state that it cannot reach from the one it is in: a mistake of the program."""


@dataclass(slots=True)
class _Held:
    work: Work
    state: UnitState
    messages: list[Message]


@dataclass(slots=True)
class HeldMessage:
    """A message that is held until all of its units are settled."""

    message: Message
    units: frozenset[UnitKey]
    missing: set[UnitKey]
    """Those of its units that are not settled yet."""

    acknowledge: bool = True
    """False if one of its units is another pipeline's, or failed: then the message is to be delivered again."""

    retry_after: timedelta | None = None
    """When it should be delivered again, if one of its units failed; None: when its visibility ends."""


class QueueLocalState:
    """The messages that a pipeline holds, and the state of each unit that they announce.

    A unit is opening, ready for read, read in progress, or awaiting commit; then it is completed, or abandoned. It
    moves in that order only. Several messages may announce the same unit: they wait for it together. Nothing is kept of
    what is settled: whether a unit has landed is for the shared state to say, so memory is bounded by what is held.
    """

    def __init__(self) -> None:
        self._units: dict[UnitKey, _Held] = {}
        self._messages: dict[str, HeldMessage] = {}
        self._settled: list[HeldMessage] = []
        self._largest, self._most_units = LARGE_BODY, MANY_UNITS
        """The bytes of the largest message that is held, or was held last, and the units of the one with the most."""

    @property
    def messages(self) -> int:
        """How many messages are held, those included that `settled` has not taken out yet."""
        return len(self._messages) + len(self._settled)

    def room(self, *, most: int, most_bytes: int) -> int:
        """How many more messages may be held: at most so many messages and units, and so many bytes of bodies.

        The next ones are expected to be as large as the largest that is held, or was held last, and to announce as many
        units. If nothing is held there is room for one, however large it is.
        """
        held = [*self._messages.values(), *self._settled]
        if held:
            self._largest = max(1, *(len(each.message.body) for each in held))
            self._most_units = max(1, *(len(each.units) for each in held))
        left_bytes = most_bytes - sum(len(each.message.body) for each in held)
        room = min(most - len(held), (most - len(self._units)) // self._most_units, left_bytes // self._largest)
        return room if held else max(room, 1)

    def has_room_for(self, message: Message, *, most: int) -> bool:
        """Whether a message that was received may be held: it is already, or fewer units are held than `most`."""
        return message.id in self._messages or len(self._units) < most

    @property
    def units(self) -> dict[UnitKey, UnitState]:
        """Every held unit with its state."""
        return {key: held.state for key, held in self._units.items()}

    def in_state(self, state: UnitState) -> list[Work]:
        """The units in a state, those received first coming first."""
        return [held.work for held in self._units.values() if held.state is state]

    def oldest_sent_at(self) -> datetime | None:
        """When the oldest of the held messages was sent, as far as it is known."""
        return min((each.message.sent_at for each in self._messages.values() if each.message.sent_at), default=None)

    def holds(self, key: UnitKey) -> bool:
        """Whether a unit is held: a message that announces it has not been lost."""
        return key in self._units

    def state_of(self, key: UnitKey) -> UnitState | None:
        """The state of a unit; None if it is not held."""
        held = self._units.get(key)
        return held.state if held else None

    def messages_read(self, keys: Iterable[UnitKey]) -> list[Message]:
        """The messages that announce any of these units, and whose units were all read: they await commits only."""
        awaiting = UnitState.AWAITING_COMMIT
        return [
            message
            for message in self.messages_of(keys)
            if all(self.state_of(key) is awaiting for key in self._messages[message.id].missing)
        ]

    def messages_of(self, keys: Iterable[UnitKey]) -> list[Message]:
        """The held messages that announce any of these units, each once.

        The thread of a landing may ask, so what it looks at may be settled meanwhile.
        """
        found: dict[str, Message] = {}
        for key in keys:
            unit = self._units.get(key)
            for message in unit.messages if unit else ():
                if (held := self._messages.get(message.id)) is not None:
                    found[message.id] = held.message
        return list(found.values())

    def add(self, message: Message, works: Sequence[Work]) -> list[Work]:
        """Hold a message. Returns the units that are new here: ask the shared state whose they are.

        A message that is held already is only given its new receipt.
        """
        if (held := self._messages.get(message.id)) is not None:
            held.message = message
            return []
        fresh: list[Work] = []
        missing: set[UnitKey] = set()
        for work in works:
            if work.key in missing:
                continue
            missing.add(work.key)
            if (unit := self._units.get(work.key)) is None:
                self._units[work.key] = _Held(work, UnitState.OPENING, [message])
                fresh.append(work)
            else:
                unit.messages.append(message)
        self._messages[message.id] = waiting = HeldMessage(message, frozenset(missing), missing)
        self._settle_if_done(waiting)
        return fresh

    def refuse(self, message: Message, *, retry_after: timedelta) -> None:
        """Let a message be delivered again: what it announces is not known yet. One that is held already stays so."""
        if message.id not in self._messages:
            self._settled.append(HeldMessage(message, frozenset(), set(), acknowledge=False, retry_after=retry_after))

    def settled(self) -> list[HeldMessage]:
        """Take out the messages that wait for nothing any more: to be acknowledged, or to be delivered again."""
        done, self._settled = self._settled, []
        return done

    def open(self, key: UnitKey, tries: int) -> None:
        """The unit is ours: it is ready for read."""
        held = self._move(key, UnitState.OPENING, UnitState.READY)
        held.work = replace(held.work, tries=tries)

    def start_read(self, keys: Iterable[UnitKey]) -> None:
        """Reading of the units begins."""
        for key in keys:
            self._move(key, UnitState.READY, UnitState.READING)

    def end_read(self, keys: Iterable[UnitKey]) -> None:
        """The units were read to their end, and await the commit of their landing."""
        for key in keys:
            self._move(key, UnitState.READING, UnitState.AWAITING_COMMIT)

    def put_back(self, keys: Iterable[UnitKey]) -> None:
        """The landing did not come about through no fault of the units: they are ready again, and still ours."""
        for key in keys:
            held = self._units.get(key)
            if held is not None and held.state in (UnitState.READING, UnitState.AWAITING_COMMIT):
                held.state = UnitState.READY

    def go_on(self, keys: Iterable[UnitKey]) -> None:
        """Parts of the units have landed: they are ready for the next ones, and still ours."""
        for key in keys:
            if (held := self._units.get(key)) is not None:
                held.work = replace(held.work, is_begun=True, tries=0)
                self.put_back([key])

    def complete(self, keys: Iterable[UnitKey]) -> None:
        """The units are settled for good: landed, or given up as dead letters."""
        for key in keys:
            self._leave(key, acknowledge=True)

    def abandon(self, keys: Iterable[UnitKey], *, retry_after: timedelta | None = None) -> None:
        """The units are not ours, or failed: the messages that announce them are to be delivered again."""
        for key in keys:
            self._leave(key, acknowledge=False, retry_after=retry_after)

    def lose(self, messages: Collection[Message]) -> list[UnitKey]:
        """Forget messages that another consumer may have by now. Returns the units that nothing announces any more."""
        orphaned: list[UnitKey] = []
        for message in messages:
            waiting = self._messages.pop(message.id, None)
            for key in sorted(waiting.missing) if waiting else ():
                held = self._units[key]
                held.messages = [other for other in held.messages if other.id != message.id]
                if not held.messages:
                    orphaned.append(key)
        for key in orphaned:
            del self._units[key]
        return orphaned

    def _leave(self, key: UnitKey, *, acknowledge: bool, retry_after: timedelta | None = None) -> None:
        held = self._units.pop(key, None)
        for message in held.messages if held else ():
            if (waiting := self._messages.get(message.id)) is not None:
                waiting.missing.discard(key)
                waiting.acknowledge &= acknowledge
                if waiting.retry_after is None:  # none at all is a pause too
                    waiting.retry_after = retry_after
                self._settle_if_done(waiting)

    def _settle_if_done(self, waiting: HeldMessage) -> None:
        if not waiting.missing:
            del self._messages[waiting.message.id]
            self._settled.append(waiting)

    def _move(self, key: UnitKey, before: UnitState, after: UnitState) -> _Held:
        held = self._units.get(key)
        if held is None or held.state is not before:
            state = held.state.name if held else "not held"
            raise IllegalTransition(f"Unit {key.unit!r} is {state}, so it cannot become {after.name}.")
        held.state = after
        return held
