"""The audit trail of one acceptance authority: who did what, written before it is done."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec

from lakehead.accept.record_file import read_record
from lakehead.clock import Clock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import Ids, Random
from lakehead.retry import Backoff
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.audit_records import AuditEntry, AuditValues
from lakehead.wire.errors import Unreadable
from lakehead.wire.utc_hours import UtcHour

_NOT_TOLD = {"schema", "nonce", "token_sha256"}
AT_ONCE = 16
"""Entries that are read at the same time."""


def audit_values(record: msgspec.Struct) -> AuditValues:
    """What a record says in plain words and numbers, without what nobody would ask for."""
    told: dict[str, object] = msgspec.to_builtins(record)
    return {name: value for name, value in told.items() if isinstance(value, str | int) and name not in _NOT_TOLD}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTrail:
    """Appends to the trail. Each entry is an object of its own, which is never replaced."""

    store: Store
    clock: Clock
    ids: Ids
    random: Random
    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=4, first_seconds=0.05, cap_seconds=1.0))

    async def append(
        self,
        action: str,
        *,
        by: str,
        subject: str,
        because_of: str = "",
        before: msgspec.Struct | None = None,
        after: msgspec.Struct | None = None,
    ) -> AuditEntry:
        """Record that somebody is about to change the object with the key `subject`. Call it before it is changed.

        So no action is without its entry. An entry may be without its action: if that failed afterwards, or if this
        call did. `before` and `after` are what the object says just now, and what it shall say.

        Raises `Unavailable` if the entry is not known to be stored: then the action must not be begun. Raises
        `InvalidRecord` if the names or notes are too long.
        """
        entry = AuditEntry(
            action_id=self.ids.uuid(),
            at_unix_ns=self.clock.now_ns(),
            by=by,
            action=action,
            subject=subject,
            because_of=because_of,
            before=None if before is None else audit_values(before),
            after=None if after is None else audit_values(after),
        )
        body = entry.encode_checked()
        try:
            # The key is new, so whatever exists there is this entry.
            await self.backoff.call(
                lambda: self.store.create(entry.key, body), self.clock, self.random, on=(OutcomeUnknown,)
            )
        except OutcomeUnknown as error:
            raise Unavailable(
                f"Nothing was done: the entry {entry.key} of the audit trail, which comes first, is not known to be "
                f"stored ({error}). Try again later."
            ) from error
        return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAuditEntry:
    """An entry of the trail, as it is stored."""

    key: str
    at_unix_ns: int
    entry: AuditEntry | None
    """None if it cannot be read."""

    problem: str = ""
    """Why it cannot be read; empty if it can."""


async def audit_entries(store: Store, *, since_unix_ns: int = 0) -> AsyncIterator[ListedAuditEntry]:
    """Yield the entries of a trail from a moment on, in nanoseconds since the Unix epoch, the oldest first.

    Raises `Unavailable`. An entry that is damaged is yielded with its problem.
    """
    # No entry has this key: it comes before all of its moment, and after all of the one before.
    start = f"{keys.AUDIT}/{UtcHour.of(since_unix_ns).path}/{since_unix_ns:020}"
    async for page in store.list(keys.AUDIT, start_after=start):
        places = [(each.key, parsed[0]) for each in page if (parsed := keys.parse_audit_entry(each.key))]
        for first in range(0, len(places), AT_ONCE):
            for found in await asyncio.gather(*(_listed(store, *each) for each in places[first : first + AT_ONCE])):
                yield found


async def _listed(store: Store, key: str, at_unix_ns: int) -> ListedAuditEntry:
    try:
        entry, problem = await read_record(AuditEntry, key, store), f"{key} is gone. Nothing may delete it."
    except Unreadable as error:
        entry, problem = None, str(error)
    return ListedAuditEntry(key=key, at_unix_ns=at_unix_ns, entry=entry, problem="" if entry else problem)
