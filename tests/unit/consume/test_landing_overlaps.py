"""What a landing drops is compared before its messages get their last, short extension."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakehead.consume.decode.frames import AcceptedFrame
from lakehead.consume.landing_overlaps import LandingOverlaps
from lakehead.consume.overlaps import DroppedRecords, FindOwners, OverlapCheck
from lakehead.consume.ports import OverlapReport
from lakehead.errors import Unavailable
from lakehead.lake.landing import LandedPart, Landing, Numbers, Unit, UnitRemainder
from lakehead.lake.ports import Staged
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.record_schemas import FrameKind
from tests.support.async_tests import async_test

BATCH = Unit("batch", numbers=Numbers("stream", 10, 21))
FRAME = AcceptedFrame(identity=BatchIdentity("agent", "boot", 10, 20), kind=FrameKind.SAMPLES, sha256="ab" * 32)


class Check(OverlapCheck):
    """Notes when it compares."""

    def __init__(self, events: list[Any], error: Exception | None) -> None:
        super().__init__(overlaps=cast("Any", None), store_url="s3://bucket")
        self.events, self.error = events, error

    async def check(self, dropped: Sequence[DroppedRecords], *, table: str, owners: FindOwners) -> OverlapReport:
        del table, owners
        self.events.append([each.spans for each in dropped])
        if self.error is not None:
            raise self.error
        return OverlapReport(equal=1)


def audit(events: list[Any], error: Exception | None = None) -> LandingOverlaps:
    return LandingOverlaps(
        open_check=lambda: Check(events, error),
        frames={BATCH: FRAME},
        table=cast("Any", SimpleNamespace(uuid="table")),
        ledger=cast("Any", None),
        is_cancelled=lambda: False,
        was_read=lambda units: events.append([unit.id for unit in units]),
    )


def staged(*remainders: UnitRemainder) -> Staged[Any]:
    return cast("Staged[Any]", SimpleNamespace(landing=Landing(token="t", remainders=remainders)))


@async_test
async def test_units_are_read_when_they_were_compared_and_are_compared_once() -> None:
    """Comparing may take longer than the last extension: then the messages would go to others meanwhile."""
    events: list[Any] = []
    begun = UnitRemainder(Unit("large"), part=LandedPart(0, 1, 1, "etag"))
    landing, tested = staged(UnitRemainder(BATCH, ((15, 21),)), UnitRemainder(Unit("file")), begun), audit(events)
    await tested.compare(landing)
    assert events == [[((10, 15),)], ["batch", "file"]]
    await tested.compare(landing)
    assert events == [[((10, 15),)], ["batch", "file"], ["batch", "file"]]


@async_test
async def test_units_that_could_not_be_compared_are_not_read() -> None:
    events: list[Any] = []
    with pytest.raises(Unavailable):
        await audit(events, Unavailable("The store is down.")).compare(staged(UnitRemainder(BATCH, ())))
    assert events == [[((10, 21),)]]
