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
from tests.faults.proxy import Fault, Proxy, Weather, proxy
from tests.servers.ports import free_ports
from tests.servers.seaweed import BUCKET, Seaweed

KEY = "thing"
BEFORE, OURS, THEIRS, NEWER = b"before", b"ours", b"theirs", b"newer"
ATTEMPTS = 2
"""Tries where all of them are to fail; elsewhere there are more than a test needs."""
HURRIED = 0.3
PATIENT = 10.0

create_and_replace = pytest.mark.parametrize("deed", ["create", "replace"])


def of_any(*faults: Fault) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fault", faults, ids=lambda fault: fault.name)


def run(story: Coroutine[object, object, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
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


@asynccontextmanager
async def scene(
    seaweed: Seaweed,
    deed: str = "replace",
    *,
    within: float = PATIENT,
    attempts: int = 6,
    weather: Weather | None = None,
) -> AsyncIterator[Scene]:
    url = f"s3://{BUCKET}/{uuid4()}"
    theirs = open_store(url, seaweed.settings())
    version = await theirs.put(KEY, BEFORE) if deed == "replace" else None
    async with proxy(seaweed.endpoint, weather=weather) as between:
        settings = seaweed.settings(endpoint=between.endpoint, request_timeout=within)
        yield Scene(between, open_store(url, replace(settings, backoff=hardly_any_pause(attempts))), theirs, version)


def hardly_any_pause(attempts: int) -> Backoff:
    return Backoff(attempts=attempts, first_seconds=0.01, cap_seconds=0.05)


def nobodys(seaweed: Seaweed) -> Store:
    """A store at an address where nobody listens."""
    settings = seaweed.settings(endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")
    return open_store(f"s3://{BUCKET}/{uuid4()}", replace(settings, backoff=hardly_any_pause(ATTEMPTS)))


def patience(fault: Fault) -> float:
    """How long to wait for an answer: only where none will come is it worth being quick."""
    return HURRIED if fault.name.startswith("TIMEOUT") else PATIENT
