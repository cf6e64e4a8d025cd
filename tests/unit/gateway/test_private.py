"""The private listener: who may see and do what, and what it says of the gateway's health."""

import asyncio

import msgspec
import pytest

from lakehead.accept.accepted_overlaps import AcceptedOverlaps
from lakehead.accept.repairs import Repairs
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.gateway.conflict_ids import conflict_id, parse_conflict_id
from lakehead.gateway.private_app import PrivateListener, private_app
from lakehead.gateway.settings import ReadinessSettings
from lakehead.storage.port import Created, Exists, ObjectMeta
from lakehead.wire.batch_identity import MAX_SEQUENCE, BatchIdentity
from lakehead.wire.conflict_records import QuarantineManifest
from tests.support.async_tests import async_test
from tests.unit.accept.support import DOWN, manifest_of, submitted
from tests.unit.gateway.support import FRAME, Gateway, Listed, WatchedStore, as_role, client
from tests.unit.wire.frames import IDENTITY

HASHES = ["0a" * 32, "0b" * 32, "0c" * 32]
PATH = "/v1/conflicts"


def listed(identity: BatchIdentity, submitted_sha256: str) -> Listed:
    accepted = manifest_of(submitted(FRAME, identity))
    manifest = QuarantineManifest.of(accepted, submitted_sha256, observed_at_unix_ns=1, collector_id="gateway-1")
    return Listed(manifest.key, "identity_conflict", identity, submitted_sha256, manifest)


def with_conflicts() -> Gateway:
    gateway = Gateway()
    gateway.conflicts.known = [listed(IDENTITY, each) for each in HASHES]
    gateway.conflicts.known.append(listed(BatchIdentity("agent-b", "boot", 0, 1), HASHES[0]))
    return gateway


ONE = f"{PATH}/{conflict_id(IDENTITY, HASHES[0])}"
DECISIONS = {"accept-existing": "accept_existing", "quarantine": "quarantine_identity", "release": "release"}
READS = ["/metrics", "/openapi.json", "/openapi/ingest.json", PATH, ONE]
WRITES = [f"{ONE}/{name}" for name in DECISIONS]


@pytest.mark.parametrize("path", READS)
@async_test
async def test_viewers_see_everything_and_nobody_else_does(path: str) -> None:
    gateway = with_conflicts()
    assert [(await gateway.get(path, role)).status_code for role in ("viewer", "operator", "admin")] == [200] * 3
    async with client(gateway.private) as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer token-of-agent-a"}):
            answer = await http.get(path, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")
            assert answer.headers["www-authenticate"].startswith("Bearer")
        gateway.tokens.is_stale = True
        assert (await http.get(path, headers=as_role("admin"))).status_code == 503
    await gateway.close()


@pytest.mark.parametrize("path", WRITES)
@async_test
async def test_operators_decide_and_viewers_do_not(path: str) -> None:
    gateway = with_conflicts()
    async with client(gateway.private) as http:
        assert (await http.post(path)).status_code == 401
        refused = await http.post(path, headers=as_role("viewer"), json={"note": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
        assert not gateway.conflicts.asked
        for role in ("operator", "admin"):
            answer = await http.post(path, headers=as_role(role), json={"note": "a cloned disk"})
            assert answer.status_code == 200
            assert answer.json()["submitted_frame_sha256"] == HASHES[0]
    await gateway.close()
    assert [(what, sha256, note) for what, _, sha256, _, note in gateway.conflicts.asked] == [
        (DECISIONS[path.rpartition("/")[2]], HASHES[0], "a cloned disk")
    ] * 2
    by = gateway.conflicts.asked[0][3]
    assert by.startswith("operator, token sha256 ")
    assert "operate-token" not in by


@async_test
async def test_a_decision_needs_no_note_and_its_body_is_bounded_and_checked() -> None:
    gateway = with_conflicts()
    async with client(gateway.private) as http:
        assert (await http.post(WRITES[0], headers=as_role("operator"))).status_code == 200
        for body, status in [
            (b"[]", 400),
            (b'{"nope": 1}', 400),
            (b"\xff", 400),
            (msgspec.json.encode({"note": "x" * 1_001}), 400),
            (b" " * 9_000, 413),
        ]:
            assert (await http.post(WRITES[0], headers=as_role("operator"), content=body)).status_code == status
    await gateway.close()
    assert len(gateway.conflicts.asked) == 1


@async_test
async def test_conflicts_are_listed_by_pages_and_by_agent() -> None:
    gateway = with_conflicts()
    first = (await gateway.get(f"{PATH}?limit=2")).json()
    assert [each["submitted_frame_sha256"] for each in first["conflicts"]] == HASHES[:2]
    shown = first["conflicts"][0]
    assert BatchIdentity(*(shown[name] for name in ("agent_id", "boot_id", "seq_start", "seq_end"))) == IDENTITY
    assert shown["manifest"]["accepted_frame_sha256"]
    assert shown["manifest"]["observed_at_unix_ns"] == 1
    rest = (await gateway.get(f"{PATH}?limit=2&after={first['next_after']}")).json()
    assert len(rest["conflicts"]) == 2
    assert rest["next_after"] is None
    of_agent = (await gateway.get(f"{PATH}?agent=agent-b")).json()["conflicts"]
    assert [each["agent_id"] for each in of_agent] == ["agent-b"]
    one = (await gateway.get(f"{PATH}/{shown['id']}")).json()
    assert one == shown
    await gateway.close()


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "after=nowhere", "kind=x", "agent=%00", f"agent={'x' * 121}"]
)
@async_test
async def test_a_listing_that_makes_no_sense_is_400(query: str) -> None:
    gateway = with_conflicts()
    answer = await gateway.get(f"{PATH}?{query}")
    await gateway.close()
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


@pytest.mark.parametrize("path", [f"{PATH}/x", f"{PATH}/{conflict_id(IDENTITY, 'ff' * 32)}", "/nothing"])
@async_test
async def test_what_does_not_exist_is_404(path: str) -> None:
    gateway = with_conflicts()
    answer = await gateway.get(path)
    await gateway.close()
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] in {"no_such_conflict", "not_found"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unavailable("503"), "store_unavailable"),
        (OutcomeUnknown("lost"), "outcome_unknown"),
        (Misconfigured("no bucket"), "store_unavailable"),
    ],
)
@async_test
async def test_a_store_that_fails_is_503(error: Exception, code: str) -> None:
    gateway = with_conflicts()
    gateway.conflicts.error = error  # type: ignore[assignment]
    answer = await gateway.get(ONE)
    await gateway.close()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
    assert "retry-after" in answer.headers


@pytest.mark.parametrize(
    "identity",
    [IDENTITY, BatchIdentity("a/b.c=d", ".." * 60, 0, MAX_SEQUENCE), BatchIdentity("é" * 60, "\u2028", 5, 5)],
)
def test_the_id_of_a_conflict_can_be_read_back_and_stands_in_one_path_segment(identity: BatchIdentity) -> None:
    made = conflict_id(identity, HASHES[0])
    assert parse_conflict_id(made) == (identity, HASHES[0])
    assert "/" not in made
    assert parse_conflict_id(made.upper()) is None
    assert parse_conflict_id(made.replace(".", "/")) is None


@async_test
async def test_health_asks_for_no_token_and_no_store() -> None:
    gateway = Gateway()
    answer = await gateway.get("/healthz", role=None)
    await gateway.close()
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert not gateway.store.calls


@async_test
async def test_a_gateway_is_ready_when_its_store_was_probed_and_is_probed_seldom() -> None:
    gateway = Gateway()
    answer = await gateway.get("/readyz", role=None)
    ready = {"ready": True, "checks": {"store": "", "reconciler": ""}, "reconciler_age_seconds": None}
    assert (answer.status_code, answer.json()) == (200, ready)
    probed = len(gateway.store.calls)
    assert probed > 2
    await gateway.get("/readyz", role=None)
    assert len(gateway.store.calls) == probed  # answered from memory
    gateway.clock.seconds += 10
    await gateway.get("/readyz", role=None)
    assert gateway.store.calls[probed:] == ["head authority/v1/authority.json"]
    gateway.store.is_down_for_reads = True
    gateway.clock.seconds += 10
    down = await gateway.get("/readyz", role=None)
    assert (down.status_code, down.json()["ready"]) == (503, False)
    assert "503" in down.json()["checks"]["store"]
    await gateway.close()


@async_test
async def test_a_store_that_fails_its_probe_is_probed_again_until_it_passes() -> None:
    gateway = Gateway()
    gateway.store.next("_probe", DOWN)
    assert (await gateway.get("/readyz", role=None)).status_code == 503
    gateway.clock.seconds += 10
    assert (await gateway.get("/readyz", role=None)).status_code == 200
    await gateway.close()


class Heartbeats:
    def __init__(self) -> None:
        self.age: float | None = None
        self.error: Exception | None = None
        self.hangs = False

    async def age_seconds(self) -> float | None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error:
            raise self.error
        return self.age


@async_test
async def test_a_gateway_whose_reconciler_is_dead_is_not_ready() -> None:
    gateway = Gateway()
    gateway.readiness.settings = ReadinessSettings(cache_seconds=0, reconciler_seconds=100)
    gateway.readiness.reconciler = heartbeats = Heartbeats()
    found = []
    for age, error in [(None, None), (101.0, None), (-101.0, None), (1.0, Unavailable("out of reach")), (99.0, None)]:
        heartbeats.age, heartbeats.error = age, error
        answer = await gateway.get("/readyz", role=None)
        found.append((answer.status_code, answer.json()["checks"]["reconciler"]))
    await gateway.close()
    assert found == [
        (503, "No reconciler was ever started here. Start one: lakehead reconcile CONFIG"),
        (503, "The reconciler gave its last sign of life 101 s ago. Look after it."),
        (503, "The reconciler's last sign of life is of a time in 101 s. Correct the clocks of both machines."),
        (503, "out of reach"),
        (200, ""),
    ]


@async_test
async def test_a_gateway_whose_reconciler_is_optional_is_ready_without_one_and_tells_its_age() -> None:
    gateway = Gateway()
    gateway.readiness.settings = ReadinessSettings(cache_seconds=0, reconciler_seconds=100)
    gateway.readiness.reconciler = heartbeats = Heartbeats()
    gateway.readiness.needs_reconciler = False
    found = []
    for heartbeats.age in (None, 101.5, 3.5):
        answer = await gateway.get("/readyz", role=None)
        found.append((answer.status_code, bool(answer.json()["checks"]["reconciler"]), heartbeats.age))
        assert answer.json()["reconciler_age_seconds"] == heartbeats.age
    await gateway.close()
    assert found == [(200, True, None), (200, True, 101.5), (200, False, 3.5)]


@async_test
async def test_a_gateway_that_can_do_without_its_store_is_ready_though_the_reconciler_cannot_be_seen_there() -> None:
    gateway = Gateway()
    gateway.readiness.settings = ReadinessSettings(cache_seconds=0, reconciler_seconds=100)
    gateway.readiness.reconciler = heartbeats = Heartbeats()
    gateway.readiness.tolerated = frozenset({"store"})
    heartbeats.error = Unavailable("out of reach")
    gateway.store.is_down_for_reads = True
    away = await gateway.get("/readyz", role=None)
    gateway.store.is_down_for_reads = False
    heartbeats.error, heartbeats.age = None, 101.0
    dead = await gateway.get("/readyz", role=None)
    await gateway.close()
    assert (away.status_code, away.json()["checks"]["reconciler"]) == (200, "Its signs of life are in the store.")
    assert dead.status_code == 503


class HangingStore(WatchedStore):
    """Answers nothing, until `is_back` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_back = asyncio.Event()

    async def create(self, key: str, body: bytes) -> Created | Exists:
        await self.is_back.wait()
        return await super().create(key, body)

    async def head(self, key: str) -> ObjectMeta | None:
        await self.is_back.wait()
        return await super().head(key)


@async_test
async def test_a_gateway_that_can_do_without_its_store_does_not_wait_for_one_that_never_answers() -> None:
    """A load balancer waits a second or so, and takes no answer for unready."""
    gateway, store = Gateway(), HangingStore()
    gateway.readiness.settings = ReadinessSettings(cache_seconds=0, check_seconds=3_600, tolerated_seconds=0.001)
    gateway.readiness.store = store
    gateway.readiness.reconciler = heartbeats = Heartbeats()
    heartbeats.hangs = True
    gateway.readiness.tolerated = frozenset({"store"})

    away = await gateway.get("/readyz", role=None)
    store.is_back.set()
    heartbeats.hangs, heartbeats.age = False, 1.0
    back = await gateway.get("/readyz", role=None)
    await gateway.close()

    assert (away.status_code, away.json()["ready"]) == (200, True)
    assert away.json()["checks"] == {
        "store": "The store did not answer within 0.001 s.",
        "reconciler": "Its signs of life are in the store.",
    }
    assert back.json() == {"ready": True, "checks": {"store": "", "reconciler": ""}, "reconciler_age_seconds": 1.0}


@async_test
async def test_a_stopping_gateway_is_not_ready() -> None:
    gateway = Gateway()
    gateway.readiness.is_stopping = True
    answer = await gateway.get("/readyz", role=None)
    await gateway.close()
    assert (answer.status_code, answer.json()["ready"]) == (503, False)


@async_test
async def test_metrics_tell_what_happened_and_may_be_open() -> None:
    gateway = Gateway()
    await gateway.post()
    await gateway.post(Authorization="Bearer wrong")
    opened = private_app(
        PrivateListener(
            tokens=gateway.tokens,
            conflicts=gateway.conflicts,
            decisions=gateway.conflicts,
            overlaps=AcceptedOverlaps(store=gateway.store),
            repairs=Repairs(gateway.store),
            readiness=gateway.readiness,
            metrics=gateway.metrics,
            metrics_need_token=False,
        )
    )
    async with client(opened) as http:
        await http.get("/healthz")
        await http.get("/v1/conflicts")
        text = (await http.get("/metrics")).text
    await gateway.close()
    for line in (
        'lakehead_gateway_requests_total{code="",listener="ingest",status="200"} 1.0',
        'lakehead_gateway_requests_total{code="unauthenticated",listener="ingest",status="401"} 1.0',
        'lakehead_gateway_requests_total{code="",listener="private",status="200"} 1.0',
        'lakehead_gateway_requests_total{code="unauthenticated",listener="private",status="401"} 1.0',
        'lakehead_gateway_unavailable_total{code="overloaded"} 0.0',
        'lakehead_gateway_accept_seconds_count{outcome="accepted"} 1.0',
        "lakehead_gateway_not_queued_total 0.0",
    ):
        assert line in text
