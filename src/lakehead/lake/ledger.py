"""The ledger: every landing of a table, for good, in object storage. Long unit lists are kept beside it."""

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
)
from lakehead.lake.landing import Share, Snapshot
from lakehead.storage.port import Store
from lakehead.wire.errors import Unreadable


@dataclass(frozen=True, slots=True)
class StoreLedger:
    """`Ledger` in a store."""

    store: Store

    async def record(self, table: str, snapshot: Snapshot) -> None:
        """Store a snapshot's landing. Whoever else records it stores the same."""
        if snapshot.landing is not None:
            await self.store.create(
                ledger_key(table, snapshot.id, snapshot.sequence), encode_entry(table, snapshot, snapshot.landing)
            )

    async def read(self, table: str, snapshot: int, sequence: int) -> Snapshot | None:
        """One landing, or None where it was never settled."""
        key = ledger_key(table, snapshot, sequence)
        found = await self.store.get(key)
        return None if found is None else decode_entry(table, key, found.body)

    async def find(self, table: str, snapshot: int) -> Snapshot | None:
        """One landing by its snapshot alone, or None where it was never settled. Lists the table's ledger."""
        sequence = (await self.sequences(table)).get(snapshot)
        return None if sequence is None else await self.read(table, snapshot, sequence)

    async def sequences(self, table: str) -> dict[int, int]:
        """The sequence number of every landing that was settled, by its snapshot; also of those rolled back since."""
        places = [ledger_place(entry.key) async for page in self.store.list(ledger_folder(table)) for entry in page]
        return dict(places)

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

    async def keep_units(self, table: str, shares: tuple[Share, ...]) -> bytes | Kept:
        """The units as a summary may hold them: themselves, or where they are kept if the list is long."""
        body = encode_units(shares)
        if len(body) <= LONGEST_UNITS:
            return body
        kept = kept_at(table, body)
        await self.store.create(kept.key, body)
        return kept

    async def kept_units(self, kept: Kept) -> tuple[Share, ...] | None:
        """A long unit list, or None where its progress object is missing."""
        found = await self.store.get(kept.key)
        return None if found is None else decode_kept(kept, found.body)
