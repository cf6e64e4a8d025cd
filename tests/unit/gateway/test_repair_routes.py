"""What the private listener shows of frames that are missing or corrupt."""

import msgspec
import pytest

from lakehead.gateway.batch_ids import batch_id
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.maintenance_records import BatchRepair, BlobProblem
from tests.support.async_tests import async_test
from tests.unit.accept.support import manifest_of, submitted
from tests.unit.gateway.support import Gateway

BATCHES = [BatchIdentity(agent, "boot", 10, 20) for agent in ("agent-a", "agent-b", "agent-c")]


async def damaged() -> Gateway:
    """A gateway with a missing frame, one that was corrupt, and a record that cannot be read."""
    gateway = Gateway()

    def repair(batch: BatchIdentity, problem: BlobProblem) -> BatchRepair:
        return BatchRepair.of(manifest_of(submitted(b"x", batch)), problem, found_at_unix_ns=5, found_by="reconciler-1")

    missing, healed = repair(BATCHES[0], "missing"), repair(BATCHES[1], "corrupt")
    healed = msgspec.structs.replace(healed, state="healed", healed_at_unix_ns=7)
    for each in (missing, healed):
        await gateway.store.create(each.key, each.encode())
    await gateway.store.create(keys.repair(BATCHES[2]), b"{")
    return gateway


@async_test
async def test_open_repairs_are_listed_with_what_is_wrong() -> None:
    gateway = await damaged()

    answer = (await gateway.get("/v1/repairs")).json()
    every = (await gateway.get("/v1/repairs?state=all")).json()
    healed = (await gateway.get("/v1/repairs?state=healed")).json()
    await gateway.close()

    missing, unreadable = answer["repairs"]
    assert (missing["id"], missing["problem"], missing["state"]) == (batch_id(BATCHES[0]), "missing", "open")
    assert (missing["found_by"], missing["found_at_unix_ns"], missing["healed_at_unix_ns"]) == ("reconciler-1", 5, None)
    assert missing["accepted_manifest_key"] == keys.accepted(BATCHES[0])
    assert (unreadable["state"], unreadable["frame_sha256"]) == ("unreadable", None)
    assert keys.repair(BATCHES[2]) in unreadable["problem"]
    assert [each["healed_at_unix_ns"] for each in healed["repairs"]] == [7]
    assert len(every["repairs"]) == 3


@async_test
async def test_repairs_are_listed_by_pages_and_by_agent() -> None:
    gateway = await damaged()

    first = (await gateway.get("/v1/repairs?limit=1")).json()
    second = (await gateway.get(f"/v1/repairs?limit=1&after={first['next_after']}")).json()
    of_agent = (await gateway.get("/v1/repairs?agent=agent-b")).json()
    await gateway.close()

    assert [each["agent_id"] for page in (first, second) for each in page["repairs"]] == ["agent-a", "agent-c"]
    assert second["next_after"] is None
    assert of_agent["repairs"] == []


@pytest.mark.parametrize("query", ["after=nonsense", "agent=%00", "limit=0", "state=closed"])
@async_test
async def test_a_request_that_makes_no_sense_is_400(query: str) -> None:
    gateway = Gateway()

    assert (await gateway.get(f"/v1/repairs?{query}")).status_code == 400
    await gateway.close()


@async_test
async def test_a_store_that_is_out_of_reach_is_503() -> None:
    gateway = await damaged()
    gateway.store.is_down_for_reads = True

    answer = await gateway.get("/v1/repairs")
    await gateway.close()

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
