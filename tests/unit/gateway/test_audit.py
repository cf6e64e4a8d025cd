"""Whatever is done through the private listener is in the audit trail: who did it, to what, before it is done."""

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from lakehead.accept.acceptance import Conflict
from lakehead.accept.accepted_overlaps import AcceptedOverlaps
from lakehead.accept.conflict_decisions import ConflictDecisions
from lakehead.accept.conflicts import Conflicts
from lakehead.accept.repairs import Repairs
from lakehead.clock import SystemClock
from lakehead.gateway.batch_ids import batch_id
from lakehead.gateway.conflict_ids import conflict_id
from lakehead.gateway.private_app import PrivateListener, private_app
from lakehead.ids import RandomIds, system_random
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.spool_records import VOIDS
from tests.support.async_tests import async_test
from tests.unit.accept.support import DOWN, NO_PAUSES, acceptor, audit_trail, submitted
from tests.unit.gateway.spool_gateway import SpoolGateway
from tests.unit.gateway.support import FRAME, as_role, client
from tests.unit.wire.frames import IDENTITY

UNUSED = BatchIdentity("agent-a", "boot-7", 1, 2)
VOID = f"/v1/spool/voids/{batch_id(IDENTITY)}?spool=spool-1"
SUBJECT = f"voids/agent={IDENTITY.agent_id.encode().hex()}/boot={IDENTITY.boot_id.encode().hex()}"
VALUES = ("agent_id", "boot_id", "seq_start", "seq_end")


async def deciding(gateway: SpoolGateway) -> tuple[FastAPI, str]:
    """A private listener that decides about a conflict in the store, and the id of that conflict."""
    store = gateway.spool_store
    conflicts = Conflicts(store=store, clock=SystemClock(), ids=RandomIds(), collector_id="gateway-1")
    await acceptor(store).accept(submitted(b"accepted"))
    conflict = await acceptor(store).accept(submitted(b"other"))
    assert isinstance(conflict, Conflict)
    await conflicts.record(conflict)
    listener = PrivateListener(
        tokens=gateway.tokens,
        conflicts=conflicts,
        overlaps=AcceptedOverlaps(store=store),
        repairs=Repairs(store),
        decisions=ConflictDecisions(conflicts=conflicts, random=system_random(), backoff=NO_PAUSES),
        readiness=gateway.readiness,
        metrics=gateway.metrics,
        spool=gateway.spool,
    )
    return private_app(listener), conflict_id(conflict.submission.identity, conflict.submission.sha256)


@async_test
async def test_every_route_that_changes_something_leaves_who_did_it_in_the_audit_trail() -> None:
    gateway = SpoolGateway()
    app, conflict = await deciding(gateway)
    changing = [each.path for each in app.routes if isinstance(each, APIRoute) and each.methods != {"GET"}]
    assert len(changing) == 4
    async with client(app) as http:
        for path in changing:
            id_text = batch_id(UNUSED) if "/spool/" in path else conflict
            before = len(await audit_trail(gateway.spool_store))
            answer = await http.post(
                path.replace("{id_text}", id_text), params={"spool": "spool-1"}, headers=as_role("admin")
            )
            assert answer.status_code == 200, f"{path}: {answer.text}"
            left = (await audit_trail(gateway.spool_store))[before:]
            assert left, f"{path} left nothing in the audit trail"
            assert all(each.by.startswith("admin, token sha256 ") for each in left)
    await gateway.close()


@async_test
async def test_a_void_says_which_identity_and_in_which_spool() -> None:
    gateway = SpoolGateway()
    async with client(gateway.private) as http:
        assert (await http.post(VOID, headers=as_role("admin"))).status_code == 200

    [entry] = await audit_trail(gateway.spool_store)
    assert (entry.action, entry.because_of, entry.before) == ("void_in_spool", "spool-1", None)
    assert entry.subject.startswith(f"{SUBJECT}/")
    assert entry.after is not None
    assert [entry.after[name] for name in VALUES] == [getattr(IDENTITY, name) for name in VALUES]
    assert "admin-token" not in entry.by
    await gateway.close()


@async_test
async def test_a_void_that_the_spool_refuses_is_in_the_trail_with_that_outcome() -> None:
    gateway = SpoolGateway()
    await gateway.post()
    async with client(gateway.private) as http:
        assert (await http.post(VOID, headers=as_role("admin"))).status_code == 409

    asked, refused = sorted(await audit_trail(gateway.spool_store), key=lambda each: each.at_unix_ns)
    assert [each.action for each in (asked, refused)] == ["void_in_spool", "refuse_void_in_spool"]
    assert (refused.subject, refused.because_of, refused.by) == (asked.subject, asked.key, asked.by)
    await gateway.close()


@async_test
async def test_nothing_becomes_void_without_its_entry_in_the_trail() -> None:
    gateway = SpoolGateway()
    gateway.spool_store.next("audit", DOWN)
    async with client(gateway.private) as http:
        answer = await http.post(VOID, headers=as_role("admin"))

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
    assert answer.headers["retry-after"]
    assert [each async for page in gateway.spool.disk.list(VOIDS) for each in page] == []
    assert (await gateway.post(FRAME)).status_code == 200, "it is not void in memory either"
    await gateway.close()


@pytest.mark.parametrize("path", [VOID.replace("spool-1", "spool-2"), "/v1/spool/voids/nonsense?spool=spool-1"])
@async_test
async def test_a_void_that_is_of_no_identity_or_another_spool_leaves_no_trace(path: str) -> None:
    gateway = SpoolGateway()
    async with client(gateway.private) as http:
        assert (await http.post(path, headers=as_role("admin"))).status_code in (404, 421)

    assert await audit_trail(gateway.spool_store) == []
    await gateway.close()
