"""Two gateways on one S3 server: they race on the same identities, also where S3 fails, and are killed at random."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from random import Random

import httpx
import pytest

from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.key_parts import identity_part
from tests.faults.proxy import Fault, Proxy, served
from tests.servers.seaweed import Seaweed
from tests.support.async_tests import run_bounded
from tests.support.effort import effort
from tests.support.gateways import GatewayAuthority, GatewayProcess, accepted_manifest, sample_frame

pytestmark = [pytest.mark.slow, pytest.mark.timeout(effort(200, soak=3_000))]

RACES = effort(40, soak=1_000)
AT_ONCE = 15
"""Races behind the proxies that are run at once. Below `agent_requests`."""

READ_FAULTS = (None, None, Fault.UNAVAILABLE, Fault.RESET)
BLOWS = effort(4, soak=60)
STOPS = effort(2, soak=40)
BATCHES = 6
"""Batches that each client sends between two blows."""


class Authority(GatewayAuthority):
    """A store with a token, and two gateways in front of it."""

    def __init__(self, folder: Path, seaweed: Seaweed) -> None:
        super().__init__(folder, seaweed, ingest={"requests_per_second": None})
        self.gateways = [self.gateway(f"gateway-{number}").start() for number in range(2)]


async def manifest_of(store: Store, identity: BatchIdentity) -> IdentityManifest:
    """The identity manifest, which is there."""
    found = await accepted_manifest(store, identity)
    assert found is not None, f"{identity} is not accepted"
    return found


@pytest.fixture
def authority(tmp_path: Path, seaweed: Seaweed) -> Iterator[Authority]:
    made = Authority(tmp_path, seaweed)
    yield made
    for gateway in made.gateways:
        gateway.kill()


def test_of_two_gateways_that_race_on_an_identity_one_accepts(authority: Authority) -> None:
    async def race(http: httpx.AsyncClient, store: Store, number: int) -> None:
        identity = BatchIdentity("agent", "boot", number * 10, number * 10 + 4)
        one, other = sample_frame(identity), sample_frame(identity, 5.0 if number % 2 else 1.0)
        answers = await asyncio.gather(
            *(
                authority.send(http, gateway, frame)
                for gateway, frame in zip(authority.gateways, (one, other), strict=True)
            )
        )
        manifest = await manifest_of(store, identity)
        if one == other:
            assert sorted((each.status_code, each.json()["duplicate"]) for each in answers) == [
                (200, False),
                (200, True),
            ]
        else:
            assert sorted(each.status_code for each in answers) == [200, 409]
            [accepted] = [each.json() for each in answers if each.status_code == 200]
            [refused] = [each.json() for each in answers if each.status_code == 409]
            assert accepted["duplicate"] is False
            assert accepted["frame_sha256"] == refused["accepted_frame_sha256"] == manifest.frame_sha256
            assert await store.head(keys.identity_conflict(identity, refused["submitted_frame_sha256"])) is not None

    async def races(first: int) -> None:
        store = authority.store()
        async with httpx.AsyncClient(timeout=60) as http:
            for number in range(first, min(first + 20, RACES)):
                await race(http, store, number)

    for first in range(0, RACES, 20):
        run_bounded(races(first))


class FaultyRaces:
    """Two gateways whose requests to the store go each through a proxy of its own, and what they answered."""

    def __init__(
        self, authority: GatewayAuthority, proxies: Sequence[Proxy], gateways: Sequence[GatewayProcess]
    ) -> None:
        self.authority, self.proxies, self.gateways = authority, proxies, gateways
        self.random = Random(11)
        self.accepted: dict[BatchIdentity, IdentityManifest] = {}

    def fail(self, identity: BatchIdentity) -> None:
        """Each gateway meets faults of its own at the key that decides, when it writes and when it reads."""
        for proxy in self.proxies:
            of = f"/{keys.ACCEPTED}/{identity_part(identity)}.json"
            proxy.script("PUT", [self.random.choice([None, *Fault])], of=of)
            for method in ("GET", "HEAD"):
                proxy.script(method, [self.random.choice(READ_FAULTS)], of=of)

    async def race(self, http: httpx.AsyncClient, store: Store, number: int) -> None:
        identity = BatchIdentity("agent", "faulty", number * 10, number * 10 + 4)
        frames = sample_frame(identity), sample_frame(identity, 5.0 if number % 2 else 1.0)
        self.fail(identity)
        firsts = await asyncio.gather(*(self.sent(http, each, one) for each, one in self.pairs(frames)))
        for answer, frame in zip(firsts, frames, strict=True):
            if answer.status_code != 503:
                check_answer(answer, frame, await manifest_of(store, identity))
        retries = [await self.until_decided(http, each, one) for each, one in self.pairs(frames)]
        manifest = self.accepted[identity] = await manifest_of(store, identity)
        for answer, frame in zip(retries, frames, strict=True):
            check_answer(answer, frame, manifest)
            if answer.status_code == 409:
                assert await store.head(keys.identity_conflict(identity, sha256(frame).hexdigest())) is not None
        assert sorted(each.status_code for each in retries) == ([200, 409] if number % 2 else [200, 200])
        news = [each for each in (*firsts, *retries) if each.status_code == 200 and not each.json()["duplicate"]]
        assert len(news) <= 1, f"{identity} was accepted as the first twice"

    def pairs(self, frames: tuple[bytes, bytes]) -> list[tuple[GatewayProcess, bytes]]:
        return list(zip(self.gateways, frames, strict=True))

    async def sent(self, http: httpx.AsyncClient, gateway: GatewayProcess, frame: bytes) -> httpx.Response:
        answer = await self.authority.send(http, gateway, frame)
        assert answer.status_code in (200, 409, 503), answer.text
        return answer

    async def until_decided(self, http: httpx.AsyncClient, gateway: GatewayProcess, frame: bytes) -> httpx.Response:
        while True:
            answer = await self.sent(http, gateway, frame)
            if answer.status_code != 503:
                return answer
            await asyncio.sleep(0.05)

    async def run(self, numbers: range) -> None:
        store, places = self.authority.store(), asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with places:
                await self.race(http, store, number)

        async with httpx.AsyncClient(timeout=60) as http:
            await asyncio.gather(*(one(number) for number in numbers))
        for proxy in self.proxies:
            await proxy.release()  # writes that come after everybody has been answered
        for identity, manifest in self.accepted.items():
            assert await manifest_of(store, identity) == manifest
        self.accepted.clear()


def check_answer(answer: httpx.Response, frame: bytes, manifest: IdentityManifest) -> None:
    """A 200 and a 409 say what stands at the identity's key."""
    digest, body = sha256(frame).hexdigest(), answer.json()
    if answer.status_code == 200:
        assert body["frame_sha256"] == digest == manifest.frame_sha256
    else:
        assert (body["submitted_frame_sha256"], body["accepted_frame_sha256"]) == (digest, manifest.frame_sha256)
        assert digest != manifest.frame_sha256


@pytest.fixture
def faulty_races(tmp_path: Path, seaweed: Seaweed) -> Iterator[FaultyRaces]:
    authority = GatewayAuthority(
        tmp_path, seaweed, ingest={"requests_per_second": None, "accept_seconds": 7.0}, store_seconds=3.0
    )
    proxies = [Proxy(seaweed.endpoint, None) for _ in range(2)]
    with ExitStack() as opened:
        gateways = []
        for number, proxy in enumerate(proxies):
            endpoint = opened.enter_context(served(proxy.handle))
            gateways.append(authority.gateway(f"gateway-{number}", endpoint=endpoint).start())
            opened.callback(gateways[-1].kill)
        yield FaultyRaces(authority, proxies, gateways)


def test_of_two_gateways_that_race_one_accepts_though_s3_fails_each_in_its_own_way(faulty_races: FaultyRaces) -> None:
    for first in range(0, RACES, 40):
        run_bounded(faulty_races.run(range(first, min(first + 40, RACES))))

    injected = sum((proxy.faults for proxy in faulty_races.proxies), Counter[Fault]())
    assert set(injected) == set(Fault)


class Client:
    """Sends batches of one boot, each until a gateway answers 200, whichever that is."""

    def __init__(self, authority: Authority, name: str, random: Random) -> None:
        self.authority = authority
        self.name = name
        self.random = random
        self.sent = 0
        self.answers: dict[BatchIdentity, list[bool]] = {}

    async def send(self, http: httpx.AsyncClient, count: int) -> None:
        for _ in range(count):
            identity = BatchIdentity("agent", self.name, self.sent * 10, self.sent * 10 + 9)
            frame = sample_frame(identity, float(self.sent))
            self.sent += 1
            for _ in range(self.random.choice([1, 1, 2])):
                answer = await self._until_accepted(http, frame)
                self.answers.setdefault(identity, []).append(bool(answer["duplicate"]))
                assert answer["frame_sha256"] == sha256(frame).hexdigest()

    async def _until_accepted(self, http: httpx.AsyncClient, frame: bytes) -> dict[str, object]:
        while True:
            gateway = self.random.choice(self.authority.gateways)
            try:
                response = await self.authority.send(http, gateway, frame)
            except httpx.HTTPError:
                await asyncio.sleep(0.05)
                continue
            if response.status_code == 200:
                answer: dict[str, object] = response.json()
                return answer
            assert response.status_code in (429, 503), response.text
            await asyncio.sleep(0.05)


async def blow(gateways: Sequence[GatewayProcess], random: Random) -> None:
    victim = random.choice(gateways)
    await asyncio.sleep(random.uniform(0, 0.2))
    await asyncio.to_thread(victim.kill)
    await asyncio.to_thread(victim.start)


def test_what_gateways_answered_is_accepted_once_though_they_are_killed(authority: Authority) -> None:
    random = Random(7)
    clients = [Client(authority, f"boot-{number}", random) for number in range(4)]

    async def disturbed() -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            await asyncio.gather(blow(authority.gateways, random), *(client.send(http, BATCHES) for client in clients))

    async def check() -> None:
        store = authority.store()
        for client in clients:
            assert len(client.answers) == BLOWS * BATCHES
            for identity, duplicates in client.answers.items():
                await manifest_of(store, identity)
                assert Counter(duplicates)[False] <= 1, f"{identity} was accepted as the first twice"

    for _ in range(BLOWS):
        run_bounded(disturbed())
    run_bounded(check())


class HastyClient:
    """Sends batches of one boot to one gateway, each once and without a pause, until it is no longer served."""

    def __init__(self, authority: Authority, gateway: GatewayProcess, name: str) -> None:
        self.authority, self.gateway, self.name = authority, gateway, name
        self.answered: set[BatchIdentity] = set()
        self.is_under_way = asyncio.Event()
        """Set when a few batches were accepted."""

    async def send_all(self) -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            while True:
                start = len(self.answered) * 10
                identity = BatchIdentity("agent", self.name, start, start + 9)
                try:
                    response = await self.authority.send(http, self.gateway, sample_frame(identity))
                except httpx.TransportError:
                    return
                assert (response.status_code, response.json()["duplicate"]) == (200, False)
                self.answered.add(identity)
                if len(self.answered) > 3:
                    self.is_under_way.set()


def test_a_gateway_that_is_stopped_under_load_has_accepted_what_it_answered_and_nothing_else(
    authority: Authority,
) -> None:
    """A batch that it did not answer, because the connection was closed, was not taken. And it ends with success."""
    gateway = authority.gateways[0]

    async def stopped(number: int) -> None:
        clients = [HastyClient(authority, gateway, f"boot-{number}-{client}") for client in range(8)]
        sending = [asyncio.ensure_future(client.send_all()) for client in clients]
        await asyncio.gather(*(client.is_under_way.wait() for client in clients))
        assert await asyncio.to_thread(gateway.terminate) == 0
        await asyncio.gather(*sending)
        store = authority.store()
        for client in clients:
            folder = keys.accepted_folder("agent", client.name)
            stored = {keys.parse_accepted(each.key) async for page in store.list(folder) for each in page}
            assert stored == client.answered

    for number in range(STOPS):
        run_bounded(stopped(number))
        gateway.start()
