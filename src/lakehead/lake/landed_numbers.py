"""Finds in the ledger which units brought the records of given numbers."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from lakehead.lake.landing import Landing, SnapshotId
from lakehead.lake.ledger import StoreLedger
from lakehead.wire.spans import Span, Spans, common, merged, without

AT_ONCE = 32
"""Ledger objects that are read concurrently."""

FIRST_LISTED = 64
"""How many of the newest landings are listed first. It grows eightfold until all numbers were found."""


def numbers_in(landing: Landing, stream: str, wanted: Spans) -> dict[str, Spans]:
    """Return which of the wanted numbers of a stream each unit of a landing brought."""
    found: dict[str, Spans] = {}
    for each in landing.remainders:
        numbers = each.unit.numbers
        if numbers is not None and numbers.stream == stream:
            own = common(wanted, ((numbers.start, numbers.end),) if each.spans is None else each.spans)
            if own:
                found[each.unit.id] = merged([*found.get(each.unit.id, ()), *own])
    return found


async def who_landed(
    ledger: StoreLedger,
    table: str,
    stream: str,
    wanted: Iterable[Span],
    *,
    last: SnapshotId | None,
    newest: int,
    go_on: Callable[[], object] = lambda: None,
) -> Mapping[str, Spans]:
    """Return the units that brought these numbers of a stream, each with those that it brought.

    `last` is the last landing of the table, and `newest` a sequence number that is not below its own. The landings are
    followed back from there, so what was rolled back does not count. Numbers that no landing brought, or only landings
    that the ledger lacks, are in none. `go_on` is called now and then, and what it raises ends it. Raises
    `Unavailable`, and `Unreadable` if the ledger is damaged.
    """
    missing, found, listed, upto = merged(wanted), dict[str, Spans](), FIRST_LISTED, newest + 1
    while missing and last is not None:
        start = max(0, newest + 1 - listed)
        places = await ledger.sequences(table, start=start)
        older = sorted((sequence, snapshot) for snapshot, sequence in places.items() if sequence < upto)
        for end in range(len(older), 0, -AT_ONCE):
            go_on()
            some = older[max(0, end - AT_ONCE) : end][::-1]
            entries = await asyncio.gather(*(ledger.read(table, snapshot, sequence) for sequence, snapshot in some))
            for entry in entries:
                if entry is None or entry.id != last or entry.landing is None:
                    continue  # rolled back
                for unit, own in numbers_in(entry.landing, stream, missing).items():
                    found[unit] = merged([*found.get(unit, ()), *own])
                    missing = without(missing, own)
                last = entry.landing.before
                if not missing:
                    return found
        if start == 0:
            break
        upto, listed = start, listed * 8
    return found
