"""What the private listener shows of accepted batches with common sequence numbers."""

import pytest

from lakehead.gateway.conflict_ids import conflict_id
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from tests.support.async_tests import async_test
from tests.unit.accept.support import acceptor, submitted
from tests.unit.gateway.support import Gateway

BATCHES = [BatchIdentity("agent-a", "boot", 10, end) for end in (20, 25, 30)]


async def overlapping() -> Gateway:
    gateway = Gateway()
    for each in BATCHES:
        await acceptor(gateway.store).accept(submitted(str(each).encode(), each))
    return gateway


@async_test
async def test_overlaps_are_shown_with_both_batches_whether_they_are_equal_or_not() -> None:
    gateway = await overlapping()
    different = submitted(str(BATCHES[2]).encode()).sha256
    await gateway.store.create(keys.overlap(BATCHES[2], different), b"its record")

    answer = (await gateway.get("/v1/overlaps")).json()

    assert answer["next_after"] is None
    assert [(each["agent_id"], each["boot_id"], each["common"]) for each in answer["overlaps"]] == [
        ("agent-a", "boot", [10, 20]),
        ("agent-a", "boot", [10, 25]),
    ]
    equal, other = ([batch["conflict_id"] for batch in each["batches"]] for each in answer["overlaps"])
    assert (equal, other) == ([None, None], [None, conflict_id(BATCHES[2], different)])
    assert answer["overlaps"][0]["batches"][1]["accepted_manifest_key"] == keys.accepted(BATCHES[1])
    await gateway.close()


@async_test
async def test_overlaps_are_listed_by_pages_and_by_agent() -> None:
    gateway = await overlapping()

    first = (await gateway.get("/v1/overlaps?limit=1&agent=agent-a")).json()
    second = (await gateway.get(f"/v1/overlaps?agent=agent-a&after={first['next_after']}")).json()

    assert [len(each["overlaps"]) for each in (first, second)] == [1, 1]
    assert second["next_after"] is None
    assert (await gateway.get("/v1/overlaps?agent=agent-b")).json()["overlaps"] == []
    await gateway.close()


@pytest.mark.parametrize("query", ["after=nonsense", "agent=%00", "limit=0", f"agent={'a' * 200}", "agent="])
@async_test
async def test_a_request_that_makes_no_sense_is_400(query: str) -> None:
    gateway = Gateway()

    assert (await gateway.get(f"/v1/overlaps?{query}")).status_code == 400
    await gateway.close()


@async_test
async def test_a_store_that_is_out_of_reach_is_503() -> None:
    gateway = await overlapping()
    gateway.store.is_down_for_reads = True

    answer = await gateway.get("/v1/overlaps")

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
    await gateway.close()
