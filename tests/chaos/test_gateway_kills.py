"""A gateway is killed at each moment of an upload, and another gets the client's retry: nothing lost, nothing twice."""

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

import httpx
import pytest

from lakehead.buffer.collector import Collector
from lakehead.buffer.config import CollectorConfig, ObjectStoreConfig
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from tests.faults.gateway_failpoints import STEPS, kill_gateway_at
from tests.servers.seaweed import Seaweed
from tests.support.async_tests import run_bounded
from tests.support.costs import Mechanism, add
from tests.support.effort import effort
from tests.support.gateways import GatewayAuthority, GatewayProcess, accepted_manifest, sample_frame

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

AT_ONCE = 6
"""Gateways that are started and killed side by side."""

ROUNDS = effort(1, soak=5)
CONFLICT_STEPS = ("quarantine manifest", "quarantine by blob")
STEPS_BEFORE_ACCEPTANCE = ("blob", "blob by time")
MOMENTS = [
    f"{when} {step}" for step in STEPS.values() if step not in CONFLICT_STEPS for when in ("before", "after")
] + ["before answer", "after answer"]
NOT_ACCEPTED = {f"{when} {step}" for step in STEPS_BEFORE_ACCEPTANCE for when in ("before", "after")} | {
    "before manifest"
}
NOT_QUEUED = {"after manifest", "before queued entries", "before answer"}
"""Moments at which a batch is accepted and surely not in the queue: the reconciler will find it among the accepted."""


@dataclass
class Upload:
    """One batch, what its first gateway said before it was killed, and what was true then."""

    moment: str
    identity: BatchIdentity
    value: float = 1.0
    first: httpx.Response | None = None
    was_accepted: bool = False

    @property
    def frame(self) -> bytes:
        return sample_frame(self.identity, self.value)


@dataclass
class Gateways:
    authority: GatewayAuthority
    survivor: GatewayProcess
    http: httpx.AsyncClient
    places: asyncio.Semaphore

    async def killed_during(self, upload: Upload, name: str) -> None:
        """Upload to a gateway that is killed at the moment."""
        async with self.places:
            victim = self.authority.gateway(name, before=partial(kill_gateway_at, upload.moment))
            await asyncio.to_thread(victim.start)
            with suppress(httpx.TransportError):
                upload.first = await self.authority.send(self.http, victim, upload.frame)
            if upload.moment == "after answer":
                await asyncio.to_thread(victim.kill)
            code = await asyncio.to_thread(victim.wait)
            add(Mechanism.KILLS)
        assert code == -signal.SIGKILL, f"{upload.moment}: ended with {code}"
        if upload.moment != "after answer":
            assert f"killed {upload.moment}" in victim.log.read_text()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory, seaweed: Seaweed) -> GatewayAuthority:
    return GatewayAuthority(tmp_path_factory.mktemp("gateway"), seaweed, ingest={"requests_per_second": None})


@pytest.fixture
def survivor(authority: GatewayAuthority) -> Iterator[GatewayProcess]:
    gateway = authority.gateway("survivor").start()
    yield gateway
    gateway.kill()


async def queued(store: Store) -> Counter[str]:
    """How often each manifest is in the landing queue."""
    found: Counter[str] = Counter()
    config = CollectorConfig(
        object_store_config=ObjectStoreConfig(url="memory://"), manifest_path="landing-queue/manifest.json"
    )
    async with Collector(config, store=store) as collector:
        while (batch := await collector.next_batch()) is not None:
            found.update(entry.key.decode() for entry in batch.entries)
    return found


def test_whenever_a_gateway_is_killed_the_retry_at_another_accepts_the_batch_once(
    authority: GatewayAuthority, survivor: GatewayProcess
) -> None:
    rounds = [
        [Upload(moment, BatchIdentity("agent", f"boot-{number}-{place}", 0, 4)) for place, moment in enumerate(MOMENTS)]
        for number in range(ROUNDS)
    ]
    uploads = [each for some in rounds for each in some]

    async def one(upload: Upload, at: Gateways, store: Store) -> None:
        await at.killed_during(upload, upload.identity.boot_id)
        before = await store.get(keys.accepted(upload.identity))
        upload.was_accepted = before is not None
        assert upload.was_accepted == (upload.moment not in NOT_ACCEPTED), upload.moment
        if upload.first is not None:
            assert (upload.first.status_code, upload.first.json()["duplicate"]) == (200, False), upload.moment
            assert upload.was_accepted, f"{upload.moment}: answered, and not accepted"
        again = await authority.send(at.http, survivor, upload.frame)
        assert (again.status_code, again.json()["duplicate"]) == (200, upload.was_accepted), upload.moment
        manifest = await accepted_manifest(store, upload.identity)
        assert manifest is not None
        assert manifest.frame_sha256 == sha256(upload.frame).hexdigest()
        if before is not None:
            assert manifest.encode() == before.body, f"{upload.moment}: the manifest was replaced"

    async def all_of(some: list[Upload]) -> None:
        store = authority.store()
        async with httpx.AsyncClient(timeout=60) as http:
            at = Gateways(authority, survivor, http, asyncio.Semaphore(AT_ONCE))
            await asyncio.gather(*(one(upload, at, store) for upload in some))

    async def check() -> None:
        store = authority.store()
        assert await asyncio.to_thread(survivor.terminate) == 0
        accepted = [each.key async for page in store.list("accepted/v1") for each in page]
        assert sorted(accepted) == sorted(keys.accepted(each.identity) for each in uploads)
        entries = await queued(store)
        assert set(entries) <= set(accepted)
        for upload in uploads:
            times = entries[keys.accepted(upload.identity)]
            assert times <= 1, f"{upload.moment}: queued {times} times"
            if not upload.was_accepted or upload.moment == "after queue":
                assert times == 1, f"{upload.moment}: not queued"
            if upload.moment in NOT_QUEUED:
                assert times == 0, f"{upload.moment}: queued before its moment"

    for some in rounds:
        run_bounded(all_of(some))
    run_bounded(check())


def test_a_gateway_that_is_killed_while_it_records_a_conflict_leaves_it_to_the_retry(
    authority: GatewayAuthority, survivor: GatewayProcess
) -> None:
    moments = [f"{when} {step}" for step in CONFLICT_STEPS for when in ("before", "after")]

    async def one(number: int, moment: str, at: Gateways, store: Store) -> None:
        identity = BatchIdentity("agent", f"conflict-{number}", 0, 4)
        submitted = sample_frame(identity, 5.0)
        assert (await authority.send(at.http, survivor, sample_frame(identity))).status_code == 200
        accepted = await accepted_manifest(store, identity)
        upload = Upload(moment, identity, value=5.0)
        await at.killed_during(upload, identity.boot_id)
        assert upload.first is None
        again = await authority.send(at.http, survivor, submitted)
        digest = sha256(submitted).hexdigest()
        assert (again.status_code, again.json()["submitted_frame_sha256"]) == (409, digest)
        assert await accepted_manifest(store, identity) == accepted
        for key in (keys.identity_conflict(identity, digest), keys.quarantine_by_blob(digest, identity)):
            assert await store.head(key) is not None, f"{moment}: {key} is not there"
        assert await store.head(keys.raw_blob(digest)) is not None

    async def test() -> None:
        store = authority.store()
        async with httpx.AsyncClient(timeout=60) as http:
            at = Gateways(authority, survivor, http, asyncio.Semaphore(AT_ONCE))
            await asyncio.gather(*(one(*each, at, store) for each in enumerate(moments)))

    run_bounded(test())
