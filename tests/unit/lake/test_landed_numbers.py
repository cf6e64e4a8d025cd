"""Which unit brought a record stands in the ledger: the newest landings are read first, and only those of main."""

import asyncio
from dataclasses import dataclass, field

import pytest

from lakehead.clock import SystemClock
from lakehead.lake.landed_numbers import AT_ONCE, FIRST_LISTED, who_landed
from lakehead.lake.landing import Landing, Numbers, Snapshot, Span, Unit, UnitRemainder
from lakehead.lake.ledger import StoreLedger
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Object

TABLE = "table-uuid"


class CountingStore(MemoryStore):
    """Counts what is read."""

    reads = 0

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        self.reads += 1
        return await super().get(key, start=start, end=end)


@dataclass
class Landings:
    store: CountingStore = field(default_factory=lambda: CountingStore(clock=SystemClock(), page_size=100))
    last: int | None = None
    sequence: int = 0

    @property
    def ledger(self) -> StoreLedger:
        return StoreLedger(self.store)

    def land(self, *units: tuple[str, str, Span, tuple[Span, ...] | None], rolled_back: bool = False) -> None:
        """Each unit has an id, a stream, its numbers, and those that it brought; None: all."""
        self.sequence += 1
        remainders = tuple(
            UnitRemainder(Unit(name, numbers=Numbers(stream, *span)), own) for name, stream, span, own in units
        )
        number = 1_000_000 - self.sequence  # ids of snapshots are in no order
        landing = Landing(f"token {self.sequence}", remainders, self.last)
        asyncio.run(self.ledger.record(TABLE, Snapshot(number, None, self.sequence, landing)))
        if not rolled_back:
            self.last = number

    def who(self, stream: str, *wanted: Span) -> dict[str, tuple[Span, ...]]:
        work = who_landed(self.ledger, TABLE, stream, wanted, last=self.last, newest=self.sequence)
        return dict(asyncio.run(work))


def test_each_number_is_that_of_the_unit_whose_landing_brought_it() -> None:
    landings = Landings()
    landings.land(("a", "boot", (1, 11), None), ("other", "boot 2", (1, 100), None))
    landings.land(("b", "boot", (5, 16), ((11, 16),)), ("file", "boot", (0, 0), None))
    landings.land(("c", "boot", (8, 21), ((16, 21),)), ("all dropped", "boot", (3, 9), ()))

    assert landings.who("boot", (8, 18), (30, 31)) == {"a": ((8, 11),), "b": ((11, 16),), "c": ((16, 18),)}
    assert landings.who("boot", (3, 4), (19, 21)) == {"a": ((3, 4),), "c": ((19, 21),)}
    assert landings.who("boot 3", (3, 4)) == {}


def test_what_was_rolled_back_has_not_landed() -> None:
    landings = Landings()
    landings.land(("first", "boot", (1, 3), None))
    landings.land(("rolled back", "boot", (3, 9), None), rolled_back=True)
    landings.land(("second", "boot", (3, 5), None))

    assert landings.who("boot", (1, 9)) == {"first": ((1, 3),), "second": ((3, 5),)}


@pytest.mark.slow
@pytest.mark.parametrize("behind", [0, FIRST_LISTED - 1, FIRST_LISTED, FIRST_LISTED + 1, 9 * FIRST_LISTED])
def test_the_ledger_is_read_only_as_far_back_as_needed(behind: int) -> None:
    landings = Landings()
    for number in range(700):
        landings.land((f"unit {number}", "boot", (number, number + 1), None))
    wanted = 699 - behind

    assert landings.who("boot", (wanted, wanted + 1)) == {f"unit {wanted}": ((wanted, wanted + 1),)}
    assert landings.store.reads < behind + 64


def test_a_landing_that_the_ledger_lacks_hides_those_before_it() -> None:
    landings = Landings()
    landings.land(("first", "boot", (1, 3), None))
    landings.land(("lost", "boot", (3, 5), None))
    landings.land(("last", "boot", (5, 7), None))
    [lost] = [key for key in landings.store._objects if "00002-" in key]
    asyncio.run(landings.store.delete(lost))

    assert landings.who("boot", (1, 7)) == {"last": ((5, 7),)}


@pytest.mark.slow
def test_following_a_long_ledger_ends_when_there_is_no_time_for_more() -> None:
    landings, left = Landings(), [1, 2]
    for _ in range(AT_ONCE * 3):
        landings.land(("unit", "boot", (1, 2), None))
    work = who_landed(
        landings.ledger, TABLE, "other", [(1, 2)], last=landings.last, newest=landings.sequence, go_on=left.pop
    )
    with pytest.raises(IndexError):
        asyncio.run(work)
    assert landings.store.reads == 2 * AT_ONCE
