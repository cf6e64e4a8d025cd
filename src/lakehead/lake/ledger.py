"""The ledger: a permanent record of every landing of a table, in object storage. It also stores long unit lists."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from lakehead.lake.documents import (
    LONGEST_UNITS,
    Kept,
    decode_entry,
    decode_kept,
    encode_entry,
    encode_units,
    kept_at,
    ledger_folder,
    ledger_key,
    ledger_place,
    ledger_start,
)
from lakehead.lake.landing import Snapshot, UnitRemainder
from lakehead.storage.port import Store
from lakehead.wire.errors import Unreadable


@dataclass(frozen=True, slots=True)
class StoreLedger:
    """`Ledger` in a store."""

    store: Store

    async def record(self, table: str, snapshot: Snapshot) -> None:
        """Store a snapshot's landing. Recording it again is harmless: every writer stores the same."""
        if snapshot.landing is not None:
            await self.store.create(
                ledger_key(table, snapshot.id, snapshot.sequence), encode_entry(table, snapshot, snapshot.landing)
            )

    async def read(self, table: str, snapshot: int, sequence: int) -> Snapshot | None:
        """One landing, or None if it was never settled."""
        key = ledger_key(table, snapshot, sequence)
        found = await self.store.get(key)
        return None if found is None else decode_entry(table, key, found.body)

    async def find(self, table: str, snapshot: int) -> Snapshot | None:
        """One landing by its snapshot alone, or None if it was never settled. Lists the table's ledger."""
        sequence = (await self.sequences(table)).get(snapshot)
        return None if sequence is None else await self.read(table, snapshot, sequence)

    async def sequences(self, table: str, *, start: int = 0) -> dict[int, int]:
        """The sequence number of every landing that was settled, by its snapshot; also of those rolled back since.

        With `start`, only of those with this sequence number or a later one: the whole ledger may be long.
        """
        pages = self.store.list(ledger_folder(table), start_after=ledger_start(table, start))
        return dict([ledger_place(entry.key) async for page in pages for entry in page])

    async def landings(self, table: str) -> AsyncIterator[Snapshot]:
        """Every landing of the table that was settled, oldest first; also those that were rolled back since."""
        async for page in self.store.list(ledger_folder(table)):
            for entry in page:
                found = await self.store.get(entry.key)
                if found is None:
                    raise Unreadable(
                        f"The ledger object {entry.key} was deleted while the ledger was read. Read again."
                    )
                yield decode_entry(table, entry.key, found.body)

    async def keep_units(self, table: str, remainders: tuple[UnitRemainder, ...]) -> bytes | Kept:
        """The encoded units for a summary. A long list is stored as a progress object, and its location returned."""
        body = encode_units(remainders)
        if len(body) <= LONGEST_UNITS:
            return body
        kept = kept_at(table, body)
        await self.store.create(kept.key, body)
        return kept

    async def kept_units(self, kept: Kept) -> tuple[UnitRemainder, ...] | None:
        """A long unit list, or None if its progress object is missing."""
        found = await self.store.get(kept.key)
        return None if found is None else decode_kept(kept, found.body)
