"""A frame is needed until its batch landed itself, long enough ago, in every table of its kind."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from lakehead.ids import RandomIds
from lakehead.lake.landing import Landing, Numbers, Snapshot, Unit, UnitRemainder
from lakehead.lake.ledger import StoreLedger
from lakehead.maintain.garbage_landings import LandedFrames
from lakehead.maintain.garbage_report import BlobOutcome
from lakehead.maintain.garbage_retention import RetiringBatch
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.storage.memory_store import MemoryStore
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.key_parts import boot_part
from lakehead.wire.record_schemas import FrameKind
from tests.support.async_tests import async_test
from tests.support.state_tools import FIRST, SECOND, HandClock, landing, numbers

TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"
A, B, C = (BatchIdentity("a", "b", first, first + 9) for first in (0, 10, 20))
STREAM = boot_part("a", "b")


class Lake:
    """A table's ledger and state."""

    def __init__(self, state: State, clock: HandClock) -> None:
        self.clock, self.state = clock, state
        self.ledger = StoreLedger(MemoryStore(clock=clock))

    async def land(self, *identities: BatchIdentity, at: object, before: object = None, sequence: int = 1) -> None:
        units = [Unit(str(each), numbers=Numbers(STREAM, each.seq_start, each.seq_end + 1)) for each in identities]
        made = Landing(
            token=f"t{sequence}",
            remainders=tuple(UnitRemainder(each) for each in units),
            before=before.snapshot if before else None,  # type: ignore[attr-defined]
        )
        await self.ledger.record(TABLE, Snapshot(at.snapshot, None, sequence, made))  # type: ignore[attr-defined]
        spans = [(each.seq_start, each.seq_end + 1) for each in identities]
        stored = landing(at, *map(str, identities), numbered=numbers(STREAM, *spans))  # type: ignore[arg-type]
        assert self.state.landings.settle(TABLE, before, at, [stored])  # type: ignore[arg-type]

    async def needed(self, *identities: BatchIdentity, before: int | None = None) -> dict[BatchIdentity, BlobOutcome]:
        frames = LandedFrames(
            state=self.state, ledger=self.ledger, tables=lambda: {FrameKind.SAMPLES: (TABLE,)}, unit_of=str
        )
        batches = [RetiringBatch(each, FrameKind.SAMPLES) for each in identities]
        found = await frames.still_needed(batches, done_before_ns=before or self.clock.now_ns())
        return {identity: reason.outcome for identity, reason in found.items()}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    clock = HandClock()
    with open_state(f"sqlite:///{tmp_path}/state.db", clock, RandomIds()) as state:
        yield Lake(state, clock)


@async_test
async def _landed_before(lake: Lake) -> None:
    await lake.land(A, at=FIRST)
    first_ns = lake.clock.now_ns()
    lake.clock.at += timedelta(days=3)
    await lake.land(B, at=SECOND, before=FIRST, sequence=2)

    assert await lake.needed(A, B, C) == {C: BlobOutcome.NOT_LANDED}
    assert await lake.needed(A, B, C, before=first_ns) == {B: BlobOutcome.LANDED_LATELY, C: BlobOutcome.NOT_LANDED}
    assert await lake.needed(A, before=first_ns - 1) == {A: BlobOutcome.LANDED_LATELY}


def test_when_each_batch_landed_is_read_from_the_ledger(lake: Lake) -> None:
    _landed_before(lake)


@async_test
async def _by_another(lake: Lake) -> None:
    inside = BatchIdentity("a", "b", 2, 5)
    await lake.land(A, at=FIRST)

    assert await lake.needed(inside) == {inside: BlobOutcome.LANDING_UNKNOWN}


def test_a_batch_whose_numbers_another_one_brought_is_needed_until_it_was_compared(lake: Lake) -> None:
    _by_another(lake)


@async_test
async def _rolled_back(lake: Lake) -> None:
    await lake.land(A, at=FIRST)
    lake.state.landings.rebuild(TABLE, None, [])
    assert await lake.needed(A) == {A: BlobOutcome.NOT_LANDED}


def test_what_was_rolled_back_has_not_landed(lake: Lake) -> None:
    _rolled_back(lake)


@async_test
async def _damaged(lake: Lake) -> None:
    await lake.land(A, at=FIRST)
    await lake.land(B, at=SECOND, before=FIRST, sequence=2)
    lake.ledger = StoreLedger(MemoryStore(clock=lake.clock))

    assert await lake.needed(A) == {A: BlobOutcome.LANDING_UNKNOWN}


def test_without_its_ledger_nothing_is_known(lake: Lake) -> None:
    _damaged(lake)


@async_test
async def _no_table(lake: Lake) -> None:
    frames = LandedFrames(state=lake.state, ledger=lake.ledger, tables=dict, unit_of=str)
    found = await frames.still_needed([RetiringBatch(A, FrameKind.LOGS)], done_before_ns=2**62)
    assert found[A].outcome is BlobOutcome.NO_TABLE

    other = "5b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"
    await lake.land(A, at=FIRST)
    frames = LandedFrames(
        state=lake.state, ledger=lake.ledger, tables=lambda: {FrameKind.SAMPLES: (TABLE, other)}, unit_of=str
    )
    found = await frames.still_needed([RetiringBatch(A, FrameKind.SAMPLES)], done_before_ns=2**62)
    assert found[A].outcome is BlobOutcome.NOT_LANDED


def test_a_kind_without_a_table_is_kept_and_all_tables_must_have_it(lake: Lake) -> None:
    _no_table(lake)
