"""One key of a real server, which we write through a faulty proxy and somebody else past it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

import pytest

from lakehead.storage.backoff import Backoff
from lakehead.storage.opening import open_store
from lakehead.storage.port import Created, Exists, Object, Replaced, Stale, Store, Version
from lakehead.storage.remote import RemoteStore
from lakehead.storage.writes import Seen
from tests.faults.proxy import SILENT, Fault, Proxy, Weather, proxy
from tests.servers.ports import free_ports
from tests.servers.seaweed import BUCKET, Seaweed

KEY = "thing"
BEFORE, OURS, THEIRS, NEWER = b"before", b"ours", b"theirs", b"newer"
ATTEMPTS = 2
"""Tries where all of them are to fail."""
MANY = 100
"""Tries where one is to succeed, but the answers to the others may come too late on a busy machine."""
HURRIED = 0.3
"""Seconds to wait for what will never be answered."""
PATIENT = 30.0
"""Seconds to wait for what will be, however busy the machine is."""

create_and_replace = pytest.mark.parametrize("deed", ["create", "replace"])


def of_any(*faults: Fault) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fault", faults, ids=lambda fault: fault.name)


def run(story: Coroutine[object, object, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(100):
            await story
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(bounded())


@dataclass(frozen=True, slots=True)
class Scene:
    """One key: we write to it through the proxy, and somebody else past it."""

    proxy: Proxy
    ours: Store
    theirs: Store
    version: Version | None

    async def write(self) -> Created | Exists | Replaced | Stale:
        """Create the object, or replace it where the scene began with one."""
        if self.version is None:
            return await self.ours.create(KEY, OURS)
        return await self.ours.replace(KEY, OURS, self.version)

    async def they_write(self) -> Version:
        return await self.theirs.put(KEY, THEIRS)

    async def there(self) -> Object:
        found = await self.theirs.get(KEY)
        assert found is not None
        return found

    async def assert_succeeded(self, outcome: Created | Exists | Replaced | Stale) -> None:
        """We were told of our success, and the server took our body exactly once."""
        there = await self.there()
        assert there.body == OURS
        assert outcome == (Created if self.version is None else Replaced)(there.meta.version)
        assert self.proxy.answers["PUT", 200] == 1


@dataclass(frozen=True, slots=True)
class HurriedInSilence:
    """Requests that are given up soon if the proxy leaves them without an answer, and waited for if it does not."""

    proxy: Proxy
    hurried: RemoteStore
    patient: RemoteStore

    async def attempt(self, key: str, body: bytes, *, nonce: str, expected: Version | None) -> Version:
        return await self._store("PUT").attempt(key, body, nonce=nonce, expected=expected)

    async def look(self, key: str) -> Seen | None:
        return await self._store("HEAD").look(key)

    def _store(self, method: str) -> RemoteStore:
        return self.patient if self.proxy.will_answer(method) else self.hurried


@asynccontextmanager
async def scene(
    seaweed: Seaweed,
    deed: str = "replace",
    *,
    within: float = PATIENT,
    attempts: int = 6,
    weather: Weather | None = None,
) -> AsyncIterator[Scene]:
    """A key and a proxy before it. `within` bounds reads and writes without a precondition, answered or not."""
    url = f"s3://{BUCKET}/{uuid4()}"
    theirs = open_store(url, seaweed.settings())
    version = await theirs.put(KEY, BEFORE) if deed == "replace" else None
    async with proxy(seaweed.endpoint, weather=weather) as between:

        def through_the_proxy(seconds: float) -> RemoteStore:
            settings = seaweed.settings(endpoint=between.endpoint, request_timeout=seconds)
            store = open_store(url, replace(settings, backoff=hardly_any_pause(attempts)))
            assert isinstance(store, RemoteStore)
            return store

        ours = through_the_proxy(within)
        if weather is None:
            remote = HurriedInSilence(between, through_the_proxy(HURRIED), through_the_proxy(PATIENT))
            ours._writes = replace(ours._writes, remote=remote)
        yield Scene(between, ours, theirs, version)


def hardly_any_pause(attempts: int) -> Backoff:
    return Backoff(attempts=attempts, first_seconds=0.01, cap_seconds=0.05)


def nobodys(seaweed: Seaweed) -> Store:
    """A store at an address where nobody listens."""
    settings = seaweed.settings(endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")
    return open_store(f"s3://{BUCKET}/{uuid4()}", replace(settings, backoff=hardly_any_pause(ATTEMPTS)))


def patience(fault: Fault) -> float:
    """How long to wait for an answer: only where none will come is it worth being quick."""
    return HURRIED if fault in SILENT else PATIENT
