"""What a gateway answers that accepts in a spool, and what its private listener shows of it."""

import pytest

from lakehead.accept.spool_limits import SpoolLimits
from lakehead.accept.spool_uploads import SpoolCounts
from lakehead.gateway.batch_ids import batch_id
from lakehead.wire.batch_identity import BatchIdentity
from tests.support.async_tests import async_test
from tests.unit.accept.support import void_of
from tests.unit.gateway.spool_gateway import SpoolGateway
from tests.unit.gateway.support import FRAME, OTHER_FRAME, as_role, client
from tests.unit.wire.frames import IDENTITY

ID = batch_id(IDENTITY)
OTHER = BatchIdentity("agent-a", "boot-1", 1, 2)


@async_test
async def test_a_batch_of_the_spool_is_answered_shown_and_compared() -> None:
    gateway = SpoolGateway()
    gateway.metrics.watch_spool(gateway.spool, SpoolCounts())

    first, again, other = await gateway.post(), await gateway.post(), await gateway.post(OTHER_FRAME)

    assert [each.status_code for each in (first, again, other)] == [200, 200, 409]
    assert [each.json()["duplicate"] for each in (first, again)] == [False, True]
    listed = (await gateway.get("/v1/spool")).json()
    [entry] = listed["batches"]
    assert (entry["id"], entry["seq_start"], entry["frame_bytes"]) == (ID, IDENTITY.seq_start, len(FRAME))
    assert entry["accepted_at_unix_ns"] == first.json()["accepted_at_unix_ns"]
    assert (await gateway.get(f"/v1/spool/batches/{ID}")).content == FRAME
    assert gateway.metric("spool_batches") == 1
    assert gateway.metric("spool_bytes") == len(FRAME)
    await gateway.close()


@async_test
async def test_batches_are_listed_by_pages() -> None:
    gateway = SpoolGateway()
    await gateway.post()

    page = (await gateway.get("/v1/spool?limit=1")).json()

    assert (len(page["batches"]), page["next_after"], page["total_batches"]) == (1, None, 1)
    assert (await gateway.get(f"/v1/spool?after={ID}")).json()["batches"] == []
    assert (await gateway.get("/v1/spool?after=nonsense")).status_code == 400
    await gateway.close()


@async_test
async def test_a_full_spool_is_503_and_says_when_to_come_again() -> None:
    gateway = SpoolGateway(SpoolLimits(most_bytes=len(FRAME) - 1))

    answer = await gateway.post()

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "spool_full")
    assert answer.headers["retry-after"]
    await gateway.close()


@pytest.mark.parametrize(("role", "status"), [(None, 401), ("viewer", 403), ("operator", 403), ("admin", 200)])
@async_test
async def test_only_admins_void(role: str | None, status: int) -> None:
    gateway = SpoolGateway()
    async with client(gateway.private) as http:
        answer = await http.post(f"/v1/spool/voids/{ID}?spool=spool-1", headers=as_role(role) if role else {})

    assert answer.status_code == status
    await gateway.close()


@async_test
async def test_a_void_is_refused_for_what_is_spooled_and_answered_from_the_store_for_the_rest() -> None:
    gateway = SpoolGateway()
    async with client(gateway.private) as http:
        assert (await http.post(f"/v1/spool/voids/{ID}?spool=spool-1", headers=as_role("admin"))).json() == {"id": ID}
        absent = await gateway.post()
        assert (absent.status_code, absent.json()["error"]["code"]) == (503, "store_unavailable")
        submission = await gateway.uploads._decode(FRAME)
        void = void_of(submission)
        await gateway.spool_store.create(void.key, void.encode())
        assert (await gateway.post()).status_code == 410

    gateway = SpoolGateway()
    await gateway.post()
    async with client(gateway.private) as http:
        refused = await http.post(f"/v1/spool/voids/{ID}?spool=spool-1", headers=as_role("admin"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "in_spool")
        nonsense = await http.post("/v1/spool/voids/nonsense?spool=spool-1", headers=as_role("admin"))
        assert nonsense.status_code == 404
    assert (await gateway.get(f"/v1/spool/batches/{batch_id(OTHER)}")).status_code == 404
    assert (await gateway.get("/v1/spool", role=None)).status_code == 401
    await gateway.close()


@async_test
async def test_a_void_for_another_spool_is_refused() -> None:
    """Private listeners listen at 127.0.0.1 by default: there garbage collection finds its own machine's gateway."""
    gateway = SpoolGateway()
    async with client(gateway.private) as http:
        for query, status in (("?spool=spool-2", 421), ("", 400)):
            answer = await http.post(f"/v1/spool/voids/{ID}{query}", headers=as_role("admin"))
            assert answer.status_code == status
    assert (await gateway.post()).status_code == 200
    assert (await gateway.get("/v1/spool")).json()["spool_id"] == "spool-1"
    await gateway.close()
