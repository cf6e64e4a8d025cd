"""A JSON record in the store that is changed by compare-and-set."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from lakehead.clock import Clock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import Ids, Random
from lakehead.retry import Backoff
from lakehead.storage.port import Created, Object, Replaced, Store, Version
from lakehead.wire.stored_record import StoredRecord, VersionedRecord

S = TypeVar("S", bound=StoredRecord)
R = TypeVar("R", bound=VersionedRecord)


async def read_record(kind: type[S], key: str, store: Store) -> S | None:
    """Return the record at a key; None if there is none. Raises `Unavailable`, and `Unreadable` if it is damaged."""
    found = await _get(kind, key, store)
    return None if found is None else kind.decode(found.body, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFile(Generic[R]):
    """The record at one key. Each stored version has a higher number than the one before."""

    kind: type[R]
    key: str
    store: Store
    clock: Clock
    ids: Ids
    random: Random
    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=10, first_seconds=0.1, cap_seconds=2.0))

    async def read(self) -> R | None:
        """Return the record; None if there is none. Raises `Unavailable`, and `Unreadable` if it is damaged."""
        return await read_record(self.kind, self.key, self.store)

    async def update(self, change: Callable[[R | None], R]) -> R:
        """Replace the record by what `change` makes of it (None: there is none yet), and return what is stored then.

        `change` is called again on what another writer has stored meanwhile, in rare cases also after its own result
        was stored and changed by somebody else: it must see that, and do nothing twice. If it returns the record
        itself, nothing is written. The version and the nonce are set here. What it raises ends the update.

        Raises `Unavailable` if nothing was changed, `OutcomeUnknown` if something may have been or may be later,
        `InvalidRecord` if the record could not be read back, and `Unreadable` if the stored one cannot be.
        """
        nonce = self.ids.uuid()
        doubt: OutcomeUnknown | None = None
        try:
            async for _ in self.backoff.each_attempt(self.clock, self.random):
                current, version = await self._read()
                if current is not None and current.nonce == nonce:
                    return current
                changed = change(current)
                if changed is current:
                    return changed
                number = current.version + 1 if current else 1
                changed = msgspec.structs.replace(changed, version=number, nonce=nonce)
                try:
                    if await self._write(changed, version):
                        return changed
                except OutcomeUnknown as error:
                    doubt = error
            current, _ = await self._read()
            if current is not None and current.nonce == nonce:
                return current
        except Unavailable as error:
            if doubt is None:
                raise
            raise self._in_doubt(doubt) from error
        if doubt is not None:
            raise self._in_doubt(doubt)
        raise Unavailable(f"{self.key} was changed by others at each of {self.backoff.attempts} attempts. Try again.")

    async def _read(self) -> tuple[R | None, Version | None]:
        found = await _get(self.kind, self.key, self.store)
        return (None, None) if found is None else (self.kind.decode(found.body, self.key), found.meta.version)

    async def _write(self, record: R, expected: Version | None) -> bool:
        body = record.encode_checked()
        if expected is None:
            return isinstance(await self.store.create(self.key, body), Created)
        return isinstance(await self.store.replace(self.key, body, expected), Replaced)

    def _in_doubt(self, doubt: OutcomeUnknown) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"Whether {self.key} was changed is not known ({doubt}). Look at what it says now, and try again if needed."
        )


async def _get(kind: type[StoredRecord], key: str, store: Store) -> Object | None:
    """Read at most one byte more than a record may have: whatever is stored there, memory is bounded."""
    return await store.get(key, end=kind.MAX_BYTES + 1)
