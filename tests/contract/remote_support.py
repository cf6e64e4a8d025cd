"""One key of a real server, which we write through a faulty proxy and somebody else past it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

import pytest

from lakehead.retry import Backoff
from lakehead.storage.open_store import open_store
from lakehead.storage.port import Created, Exists, Object, Replaced, Stale, Store, Version
from lakehead.storage.reliable_writes import KeyState, WriteRequests
from lakehead.storage.remote_store import RemoteStore
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

create_and_replace = pytest.mark.parametrize("operation", ["create", "replace"])


def of_any(*faults: Fault) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fault", faults, ids=lambda fault: fault.name)


@dataclass(frozen=True, slots=True)
class ProxiedKey:
    """One key: we write to it through the proxy, and somebody else past it."""

    proxy: Proxy
    ours: Store
    theirs: Store
    version: Version | None

    async def write(self) -> Created | Exists | Replaced | Stale:
        """Create the object, or replace it if it existed before."""
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
    """Conditional writes with a short timeout if the proxy will not respond, and with a long one if it will."""

    proxy: Proxy
    hurried: WriteRequests
    patient: WriteRequests
    unconditional: WriteRequests

    async def write_once(self, key: str, body: bytes, *, nonce: str, expected: Version | None) -> Version:
        return await self._requests("PUT").write_once(key, body, nonce=nonce, expected=expected)

    async def put(self, key: str, body: bytes) -> Version:
        return await self.unconditional.put(key, body)

    async def delete(self, key: str) -> None:
        await self.unconditional.delete(key)

    async def key_state(self, key: str) -> KeyState | None:
        return await self._requests("HEAD").key_state(key)

    def _requests(self, method: str) -> WriteRequests:
        return self.patient if self.proxy.will_answer(method) else self.hurried


@asynccontextmanager
async def proxied_key(
    seaweed: Seaweed,
    operation: str = "replace",
    *,
    within: float = PATIENT,
    attempts: int = 6,
    weather: Weather | None = None,
) -> AsyncIterator[ProxiedKey]:
    """A key and a proxy before it. `within` bounds reads and writes without a precondition, answered or not."""
    url = f"s3://{BUCKET}/{uuid4()}"
    theirs = open_store(url, seaweed.settings())
    version = await theirs.put(KEY, BEFORE) if operation == "replace" else None
    async with proxy(seaweed.endpoint, weather=weather) as between:

        def through_the_proxy(seconds: float) -> RemoteStore:
            settings = seaweed.settings(endpoint=between.endpoint, request_timeout=seconds)
            store = open_store(url, replace(settings, backoff=hardly_any_pause(attempts)))
            assert isinstance(store, RemoteStore)
            return store

        ours = through_the_proxy(within)
        if weather is None:
            requests = HurriedInSilence(
                between,
                through_the_proxy(HURRIED)._writes.requests,
                through_the_proxy(PATIENT)._writes.requests,
                ours._writes.requests,
            )
            ours._writes = replace(ours._writes, requests=requests)
        yield ProxiedKey(between, ours, theirs, version)


def hardly_any_pause(attempts: int) -> Backoff:
    return Backoff(attempts=attempts, first_seconds=0.01, cap_seconds=0.05)


def nobodys(seaweed: Seaweed) -> Store:
    """A store at an address where nobody listens."""
    settings = seaweed.settings(endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")
    return open_store(f"s3://{BUCKET}/{uuid4()}", replace(settings, backoff=hardly_any_pause(ATTEMPTS)))


def patience(fault: Fault) -> float:
    """How long to wait for an answer: only where none will come is it worth being quick."""
    return HURRIED if fault in SILENT else PATIENT
