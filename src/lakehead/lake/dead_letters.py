"""Dead letters in the ledger's store: written before a message is acknowledged, closed by a landing or a drop.

A letter is one object for each unit, changed by compare-and-set. The object is the truth and the state's row its
index, so every change is made to the object first. The state is asked in threads: it may take long to answer, and the
event loop has other work.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from lakehead.errors import Unavailable
from lakehead.state.model import DeadLetter
from lakehead.state.state import State
from lakehead.storage.port import Exists, Object, Stale, Store
from lakehead.wire.dead_letters import (
    ClosedLetter,
    DeadLetterObject,
    letter_folder,
    letter_key,
)
from lakehead.wire.errors import Unreadable

AT_ONCE = 32
"""Letters that are read concurrently."""

_ATTEMPTS = 100
"""Of a compare-and-set: others change the same letter rarely."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters in a store."""

    store: Store

    async def write(self, letter: DeadLetterObject) -> DeadLetterObject:
        """Store a letter, and return it as it is stored.

        A unit has one letter. If it has one already, that one gets the new reason and message, and keeps its first
        time. A letter that is written again, as after a crash, changes nothing. One that was dropped stays dropped.
        """
        letter = replace(letter, reason=letter.reason.encode(errors="replace").decode())
        for _ in range(_ATTEMPTS):
            found = await self.store.get(letter.key)
            if found is None:
                if not isinstance(await self.store.create(letter.key, letter.encode()), Exists):
                    return letter
                continue
            stored = DeadLetterObject.decode(found.body, letter.key)
            if stored.closed is not None and stored.closed.how == "dropped":
                return stored
            if _is_same(stored, letter):
                return stored
            merged = replace(letter, first_at=stored.first_at, burials=stored.burials + 1)
            if await self._replaced(found, merged):
                return merged
        raise _contended(letter.key)

    async def get(self, table: str, unit: str, generation: int = 0) -> DeadLetterObject | None:
        """The letter of a unit, open or closed."""
        return await self.read(letter_key(table, unit, generation))

    async def read(self, key: str) -> DeadLetterObject | None:
        """The letter at a key."""
        found = await self.store.get(key)
        return None if found is None else DeadLetterObject.decode(found.body, key)

    async def mark_replayed(self, letter: DeadLetterObject, at: datetime) -> DeadLetterObject | None:
        """Record that its message was sent again. Returns the letter; None if it was closed meanwhile."""
        return await self._change(letter, replayed_at=at)

    async def close(self, letter: DeadLetterObject, closed: ClosedLetter) -> DeadLetterObject:
        """Close a letter, and return it. One that is closed already stays as it is."""
        changed = await self._change(letter, closed=closed)
        if changed is not None:
            return changed
        stored = await self.read(letter.key)
        return letter if stored is None else stored

    async def list(
        self, table: str, *, after: str = "", limit: int | None = None
    ) -> AsyncIterator[DeadLetterObject | Unreadable]:
        """The letters of a table, open and closed, in the order of their keys; optionally those after a key.

        A letter that cannot be read is answered as its error, so that the others are seen.
        """
        left = limit
        async for page in self.store.list(letter_folder(table), start_after=after):
            for start in range(0, len(page), AT_ONCE):
                some = page[start : start + AT_ONCE]
                if left is not None:
                    some = some[:left]
                    left -= len(some)
                found = await asyncio.gather(*(self._read_or_error(entry.key) for entry in some))
                for letter in found:
                    if letter is not None:
                        yield letter
                if left == 0:
                    return

    async def _read_or_error(self, key: str) -> DeadLetterObject | Unreadable | None:
        try:
            return await self.read(key)
        except Unreadable as error:
            return error

    async def _change(self, letter: DeadLetterObject, **values: object) -> DeadLetterObject | None:
        """Change a letter that is open. Returns None if it is closed or gone."""
        for _ in range(_ATTEMPTS):
            found = await self.store.get(letter.key)
            if found is None:
                return None
            stored = DeadLetterObject.decode(found.body, letter.key)
            if stored.closed is not None:
                return None
            changed = replace(stored, **values)
            if await self._replaced(found, changed):
                return changed
        raise _contended(letter.key)

    async def _replaced(self, found: Object, letter: DeadLetterObject) -> bool:
        return not isinstance(await self.store.replace(letter.key, letter.encode(), found.meta.version), Stale)


async def give_up(letters: DeadLetters, state: State, letter: DeadLetterObject, *, owner: str) -> bool:
    """Give a unit up: first the object, then the state. Acknowledge its message only after this has returned True.

    False if this owner no longer holds the unit: another one tries it. If it lands, `close_landed` closes the letter.
    """
    stored, history = await letters.write(letter), state.history
    if stored.closed is not None and stored.closed.how == "dropped":
        await asyncio.to_thread(history.drop, indexed(stored))  # or it has landed all the same
        return True
    about, generation = (letter.table, letter.unit, letter.reason), letter.generation
    if await asyncio.to_thread(history.bury, *about, owner=owner, generation=generation):
        return True
    await asyncio.to_thread(history.follow, indexed(stored))
    shards = await asyncio.to_thread(state.shards.read, letter.table, [letter.unit], generation=generation)
    if any(shard.snapshot is not None for shard in shards):
        await close_landed(letters, state, letter.table, [letter.unit], generation=letter.generation, at=state.now())
        return True
    return False


async def close_landed(
    letters: DeadLetters, state: State, table: str, units: Iterable[str], *, at: datetime, generation: int = 0
) -> int:
    """Close the letters of units that have just landed: first the objects, then the state. Returns how many.

    Asks only the state if none of the units has a letter, so it can be called after every landing.
    """
    known = await asyncio.to_thread(state.history.letters_of, table, units, generation=generation)
    if not known:
        return 0
    names = [letter.unit for letter in known]
    shards = await asyncio.to_thread(state.shards.read, table, names, generation=generation)
    snapshots = {shard.unit: shard.snapshot for shard in shards}
    for letter in known:
        stored = await letters.get(table, letter.unit, generation)
        if stored is not None:
            await letters.close(stored, ClosedLetter("landed", at, snapshots.get(letter.unit)))
    return await asyncio.to_thread(state.history.close, table, names, generation=generation)


def indexed(letter: DeadLetterObject) -> DeadLetter:
    """The state's row of a letter."""
    closed = letter.closed
    return DeadLetter(
        table=letter.table,
        unit=letter.unit,
        generation=letter.generation,
        reason=letter.reason,
        tries=letter.tries,
        at=letter.last_at,
        replayed_at=letter.replayed_at,
        dropped_at=closed.at if closed is not None and closed.how == "dropped" else None,
    )


async def open_or_dropped(letters: DeadLetters, table: str) -> Sequence[DeadLetter]:
    """What a rebuilt state must know: all letters but those that have landed. Raises `Unreadable`."""
    rows = []
    async for letter in letters.list(table):
        if isinstance(letter, Unreadable):
            raise letter
        if letter.closed is None or letter.closed.how == "dropped":
            rows.append(indexed(letter))
    return rows


def _is_same(stored: DeadLetterObject, letter: DeadLetterObject) -> bool:
    """Whether a letter says what is stored, apart from its times."""
    same = replace(letter, first_at=stored.first_at, last_at=stored.last_at, burials=stored.burials)
    return stored.closed is None and stored.replayed_at is None and stored == same


def _contended(key: str) -> Unavailable:
    return Unavailable(f"Other writers keep changing the dead letter {key}. Nothing was changed; try again later.")
