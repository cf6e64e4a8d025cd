"""A gateway that accepts on its own disk, killed at random while its S3 server comes and goes, or its disk is full."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from uuid import uuid4

import httpx
import pytest

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.storage.open_store import open_store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, decode_at_identity
from lakehead.wire.batch_identity import BatchIdentity
from tests.consumer import aws
from tests.faults.gateway_failpoints import SPOOL_STEPS, STEPS, kill_spooling_gateway_at
from tests.faults.proxy import Proxy, Request, Silence, served
from tests.servers.seaweed import Seaweed
from tests.support.async_tests import run_bounded
from tests.support.commands import lakehead_command
from tests.support.effort import effort
from tests.support.gateways import GatewayProcess, gateway_config, sample_frame

pytestmark = [pytest.mark.slow, pytest.mark.timeout(effort(200, soak=3_000))]

BLOWS = effort(3, soak=60)
BATCHES = 5
"""Batches that each client sends between two blows."""


LANDING_STEPS = tuple(step for step in STEPS.values() if not step.startswith("quarantine"))
MOMENTS = effort(
    ["after spooled batch", "before answer", "after manifest", "after removal"],
    soak=[f"{when} {step}" for step in (*SPOOL_STEPS, *LANDING_STEPS) for when in ("before", "after")]
    + ["before answer"],
)
"""When a gateway with a spool is killed: around what it does on its disk and to the store, and before its answer."""

NOT_SPOOLED = {"before boot learned", "after boot learned", "before spooled batch"}
BEFORE_ANSWER = NOT_SPOOLED | {"after spooled batch", "before answer"}


class Outage(Proxy):
    """Between the gateway and its store, which can be out of reach."""

    is_down = False

    async def handle(self, request: Request) -> bytes | Silence:
        return Silence.HANG_UP if self.is_down else await super().handle(request)


class Deployment:
    """A gateway with a spool in front of a store that can be out of reach."""

    def __init__(self, folder: Path, seaweed: Seaweed, endpoint: str, outage: Outage, **ingest: object) -> None:
        self.env, self.url, self.outage = aws(endpoint=endpoint), f"s3://lake/{uuid4().hex}", outage
        self.spool = folder / "spool"
        spool = {"acceptance": "local_spool", "spool_folder": str(self.spool), "object_landing_interval_ms": 50}
        self.config = gateway_config(folder, self.url, ingest={"requests_per_second": None, **spool, **ingest})
        self.store = open_store(
            self.url, seaweed.settings(), clock=SystemClock(), ids=RandomIds(), random=system_random()
        )
        assert self.command("init").returncode == 0
        self.tokens = {
            name: self.command("token", "add", option=option).stdout.strip()
            for name, option in (("agent", ("--agent", "agent")), ("viewer", ("--role", "viewer")))
        }
        self.gateway = GatewayProcess(self.config, self.env, folder / "gateway.log")

    def command(self, *words: str, option: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
        return lakehead_command("gateway", *words, self.config, *option, env=self.env)

    async def send(self, http: httpx.AsyncClient, frame: bytes) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens['agent']}"}
        return await http.post(f"{self.gateway.ingest}/ingest/v1/batch", content=frame, headers=headers)

    async def private(self, http: httpx.AsyncClient, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens['viewer']}"}
        return await http.get(f"{self.gateway.private}{path}", headers=headers)

    async def assert_accepted(self, identity: BatchIdentity, frame_sha256: str) -> None:
        found = await self.store.get(keys.accepted(identity))
        assert found is not None, f"{identity} was answered 200 and is lost"
        manifest = decode_at_identity(found.body, identity)
        assert isinstance(manifest, IdentityManifest)
        assert manifest.frame_sha256 == frame_sha256
        blob = await self.store.get(manifest.raw_blob_key)
        assert blob is not None
        assert sha256(blob.body).hexdigest() == frame_sha256

    def spooled(self) -> int:
        return len(list((self.spool / "batches").rglob("*.lmbatch")))


@contextmanager
def deployed(folder: Path, seaweed: Seaweed, **ingest: object) -> Iterator[Deployment]:
    outage = Outage(seaweed.endpoint, None)
    with served(outage.handle) as endpoint:
        made = Deployment(folder, seaweed, endpoint, outage, **ingest)
        try:
            yield made
        finally:
            outage.is_down = False
            made.gateway.kill()


@pytest.fixture
def deployment(tmp_path: Path, seaweed: Seaweed) -> Iterator[Deployment]:
    with deployed(tmp_path, seaweed) as made:
        made.gateway.start()
        yield made


class Client:
    """Sends batches of one boot, each until it is answered 200."""

    def __init__(self, deployment: Deployment, boot: str, random: Random) -> None:
        self.deployment, self.boot, self.random, self.sent = deployment, boot, random, 0
        self.hashes: dict[BatchIdentity, str] = {}
        self.firsts: Counter[BatchIdentity] = Counter()

    async def send(self, http: httpx.AsyncClient, count: int) -> None:
        for _ in range(count):
            identity = BatchIdentity("agent", self.boot, self.sent * 10, self.sent * 10 + 9)
            frame = sample_frame(identity, float(self.sent))
            self.sent += 1
            for _ in range(self.random.choice([1, 1, 2])):
                answer = await until(lambda frame=frame: self._try(http, frame))  # type: ignore[misc]
                assert answer["frame_sha256"] == sha256(frame).hexdigest()
                self.hashes[identity] = sha256(frame).hexdigest()
                self.firsts[identity] += answer["duplicate"] is False

    async def _try(self, http: httpx.AsyncClient, frame: bytes) -> dict[str, object] | None:
        try:
            response = await self.deployment.send(http, frame)
        except httpx.HTTPError:
            return None
        assert response.status_code in (200, 503), response.text
        answer: dict[str, object] = response.json()
        return answer if response.status_code == 200 else None


async def until(look: Callable[[], Awaitable[dict[str, object] | None]]) -> dict[str, object]:
    """Look until there is something; the test's own limit bounds it."""
    while True:
        if found := await look():
            return found
        await asyncio.sleep(0.05)


def test_every_200_of_a_gateway_that_is_killed_ends_in_one_accepted_identity(deployment: Deployment) -> None:
    random = Random(11)
    clients = [Client(deployment, f"boot-{number}", random) for number in range(3)]

    async def blow() -> None:
        """Kill the gateway while the store is away, sometimes; it needs the store to start."""
        deployment.outage.is_down = random.random() < 0.7
        await asyncio.sleep(random.uniform(0, 0.4))
        await asyncio.to_thread(deployment.gateway.kill)
        deployment.outage.is_down = False
        await asyncio.to_thread(deployment.gateway.start)

    async def test() -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            for client in clients:
                await client.send(http, 1)
            for _ in range(BLOWS):
                await asyncio.gather(blow(), *(client.send(http, BATCHES) for client in clients))
            deployment.outage.is_down = True
            for client in clients:  # their boots are known: the disk is enough
                await client.send(http, 1)
            await asyncio.to_thread(deployment.gateway.kill)
            assert deployment.spooled() > 0
            deployment.outage.is_down = False
        refused = deployment.command("set-mode", option=("s3_manifest",))
        assert refused.returncode == 2
        assert "spools are open" in refused.stderr
        drained = deployment.command("drain")
        assert drained.returncode == 0, drained.stderr
        assert deployment.spooled() == 0
        assert deployment.command("set-mode", option=("s3_manifest",)).returncode == 0
        for client in clients:
            assert len(client.hashes) == 2 + BLOWS * BATCHES
            for identity, digest in client.hashes.items():
                await deployment.assert_accepted(identity, digest)
                assert client.firsts[identity] <= 1, f"{identity} was accepted as the first twice"

    run_bounded(test())


def test_whenever_a_gateway_with_a_spool_is_killed_its_batch_is_accepted_once(tmp_path: Path, seaweed: Seaweed) -> None:
    async def killed_at(moment: str, deployment: Deployment, http: httpx.AsyncClient) -> None:
        gateway, identity, first = deployment.gateway, BatchIdentity("agent", moment, 0, 9), None
        frame = sample_frame(identity)
        gateway.before = partial(kill_spooling_gateway_at, moment)
        await asyncio.to_thread(gateway.start)
        with suppress(httpx.TransportError):
            first = await deployment.send(http, frame)
        assert await asyncio.to_thread(gateway.wait) == -signal.SIGKILL, f"{moment}: {gateway.said}"
        assert f"killed {moment}" in gateway.said
        if first is not None:
            assert (first.status_code, first.json()["duplicate"]) == (200, False), moment
            assert moment not in BEFORE_ANSWER, f"{moment}: answered, and not on disk"
        is_known = deployment.spooled() == 1 or await deployment.store.head(keys.accepted(identity)) is not None
        assert is_known == (moment not in NOT_SPOOLED), moment

        gateway.before = None
        await asyncio.to_thread(gateway.start)
        again = await deployment.send(http, frame)
        assert (again.status_code, again.json()["duplicate"]) == (200, is_known), moment
        assert (await deployment.send(http, sample_frame(identity, 7.0))).status_code == 409, moment
        assert await asyncio.to_thread(gateway.terminate) == 0
        assert deployment.spooled() == 0, moment
        await deployment.assert_accepted(identity, sha256(frame).hexdigest())

    async def at_all(deployment: Deployment) -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            for moment in MOMENTS:
                await killed_at(moment, deployment, http)
        for index in (keys.ACCEPTED, keys.ACCEPTED_BY_TIME, keys.ACCEPTED_BY_BLOB):
            assert len([each async for page in deployment.store.list(index) for each in page]) == len(MOMENTS), index

    with deployed(tmp_path, seaweed) as deployment:
        asyncio.run(at_all(deployment))


def test_with_the_store_away_a_gateway_accepts_shows_and_counts_and_lands_when_it_is_back(
    deployment: Deployment,
) -> None:
    known, new = (BatchIdentity("agent", "boot", first, first + 9) for first in (0, 10))

    async def test() -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            assert (await deployment.send(http, sample_frame(known))).status_code == 200
            deployment.outage.is_down = True
            frame = sample_frame(new)
            first = await deployment.send(http, frame)
            again = await deployment.send(http, frame)
            other = await deployment.send(http, sample_frame(new, 7.0))
            unknown = await deployment.send(http, sample_frame(BatchIdentity("agent", "other boot", 0, 9)))
            assert [each.status_code for each in (first, again, other, unknown)] == [200, 200, 409, 503]
            assert (first.json()["duplicate"], again.json()["duplicate"]) == (False, True)
            listed = (await deployment.private(http, "/v1/spool")).json()
            [entry] = [each for each in listed["batches"] if each["seq_start"] == 10]
            shown = await deployment.private(http, f"/v1/spool/batches/{entry['id']}")
            assert shown.content == frame
            metrics = (await deployment.private(http, "/metrics")).text
            assert f"lakehead_gateway_spool_batches {float(listed['total_batches'])}" in metrics
            ready = await http.get(f"{deployment.gateway.private}/readyz")
            assert ready.status_code == 200
            assert ready.json()["checks"]["store"], "told, and tolerated"

            deployment.outage.is_down = False
            await until(lambda: landed(http))
            assert (await deployment.send(http, frame)).json()["duplicate"] is True
            assert (await deployment.send(http, sample_frame(new, 7.0))).status_code == 409
        for identity in (known, new):
            await deployment.assert_accepted(identity, sha256(sample_frame(identity)).hexdigest())
        conflict = keys.identity_conflict(new, sha256(sample_frame(new, 7.0)).hexdigest())
        assert await deployment.store.head(conflict) is not None

    async def landed(http: httpx.AsyncClient) -> dict[str, object] | None:
        listed: dict[str, object] = (await deployment.private(http, "/v1/spool")).json()
        return None if listed["total_batches"] else listed

    run_bounded(test())


def test_both_modes_follow_each_other_and_a_second_gateway_cannot_have_the_spool(deployment: Deployment) -> None:
    frames = [sample_frame(BatchIdentity("agent", "boot", first, first + 9)) for first in (0, 10, 20)]
    strict = gateway_config(deployment.config.parent / "strict", deployment.url)
    spooling = deployment.config

    async def send(number: int) -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            for each in frames[: number + 1]:
                answer = (await deployment.send(http, each)).json()
                assert answer["duplicate"] is (each is not frames[number])

    run_bounded(send(0))
    locked = deployment.command("drain")
    assert (locked.returncode, "Another process" in locked.stderr) == (2, True)
    assert deployment.gateway.terminate() == 0
    for number, (mode, config) in enumerate((("s3_manifest", strict), ("local_spool", spooling)), start=1):
        assert deployment.command("drain").returncode == 0
        assert deployment.command("set-mode", option=(mode,)).returncode == 0
        deployment.gateway.config = config
        deployment.gateway.start()
        run_bounded(send(number))
        assert deployment.gateway.terminate() == 0
    assert deployment.spooled() == 0, "what was in the spool was landed before the end"


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A disk of 256 KiB at a folder, if this user may mount one. Yields whether it is there."""
    folder.mkdir()
    is_mounted = os.geteuid() == 0 and _run("mount", "-t", "tmpfs", "-o", "size=256k", "none", folder)
    try:
        yield is_mounted
    finally:
        if is_mounted:
            assert _run("umount", "-l", folder)


def _run(program: str, *words: object) -> bool:
    """Whether a program of the system ends with success."""
    path = shutil.which(program)
    return path is not None and subprocess.run([path, *map(str, words)], check=False).returncode == 0


def test_a_disk_that_is_full_or_read_only_is_503_and_loses_nothing(tmp_path: Path, seaweed: Seaweed) -> None:
    """Without the right to mount a small disk the limit of the settings stands for it."""
    with small_disk(tmp_path / "spool") as is_mounted:
        limit = {} if is_mounted else {"spool_bytes": 1 << 18, "body_bytes": 1 << 18}
        with deployed(tmp_path, seaweed, **limit) as deployment:
            deployment.gateway.start()
            run_bounded(_fill(deployment, is_mounted=is_mounted))


async def _fill(deployment: Deployment, *, is_mounted: bool) -> None:
    accepted: dict[BatchIdentity, str] = {}
    codes = Counter[str]()
    async with httpx.AsyncClient(timeout=60) as http:

        async def send(number: int) -> None:
            identity = BatchIdentity("agent", "boot", number * 1_000, number * 1_000 + 999)
            frame = sample_frame(identity, float(number))
            response = await deployment.send(http, frame)
            if response.status_code == 200:
                accepted[identity] = sha256(frame).hexdigest()
            else:
                assert response.status_code == 503, response.text
                assert response.headers["retry-after"]
                codes[response.json()["error"]["code"]] += 1

        await send(0)
        deployment.outage.is_down = True
        for number in range(1, 80):
            await send(number)
            if codes:
                break
        assert set(codes) == {"spool_unavailable" if is_mounted else "spool_full"}
        if is_mounted:
            assert await asyncio.to_thread(_run, "mount", "-o", "remount,ro", deployment.spool)
            await send(100)
            assert codes["spool_unavailable"] == 2
            assert await asyncio.to_thread(_run, "mount", "-o", "remount,rw", deployment.spool)
        deployment.outage.is_down = False
        await asyncio.to_thread(deployment.gateway.terminate)
        drained = await asyncio.to_thread(deployment.command, "drain")
        assert drained.returncode == 0, drained.stderr
    for identity, digest in accepted.items():
        await deployment.assert_accepted(identity, digest)
