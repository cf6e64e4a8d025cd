"""What of accepted batches has not landed is told by sequence number, boot by boot."""

from pathlib import Path

import pytest

from lakehead.ids import RandomIds
from lakehead.maintain.landed_batches import LandedBatches, StateRanges
from lakehead.state.opening import open_state
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.key_parts import boot_part
from lakehead.wire.record_schemas import FrameKind
from tests.support.async_tests import async_test
from tests.support.state_tools import FIRST, HandClock, landing, numbers

TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"


@async_test
async def test_a_batch_has_landed_when_all_of_its_numbers_have_whichever_batches_brought_them(tmp_path: Path) -> None:
    with open_state(f"sqlite:///{tmp_path}/state.db", HandClock(), RandomIds()) as state:
        spans = numbers(boot_part("a", "b"), (0, 10), (12, 20))
        assert state.landings.settle(TABLE, None, FIRST, [landing(FIRST, numbered=spans)])
        landed = LandedBatches(StateRanges(state), {FrameKind.SAMPLES: TABLE})
        whole, partly, other = (
            BatchIdentity("a", "b", 3, 9),
            BatchIdentity("a", "b", 8, 12),
            BatchIdentity("a", "c", 3, 9),
        )

        assert await landed.missing(FrameKind.SAMPLES, [whole, partly, other]) == {
            partly: ((10, 12),),
            other: ((3, 10),),
        }
        assert await landed.missing(FrameKind.SAMPLES, []) == {}
        with pytest.raises(KeyError):
            await landed.missing(FrameKind.LOGS, [whole])
