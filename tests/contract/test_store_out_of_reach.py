"""Stores that cannot be used: what each call says, and that nothing is written."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.retry import Backoff
from lakehead.storage.open_store import open_store
from lakehead.storage.port import Created, Store, Version
from tests.servers.ports import free_ports
from tests.servers.seaweed import BUCKET, Seaweed


async def everything_in(store: Store) -> list[str]:
    return [meta.key async for page in store.list() for meta in page]


CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "create": lambda store: store.create("key", b"body"),
    "replace": lambda store: store.replace("key", b"body", Version('"version"')),
    "put": lambda store: store.put("key", b"body"),
    "get": lambda store: store.get("key"),
    "head": lambda store: store.head("key"),
    "list": everything_in,
    "delete": lambda store: store.delete("key"),
}
every_call = pytest.mark.parametrize("call", CALLS)


def error_of(store: Store, call: str) -> LakeheadError:
    async def ask() -> None:
        await CALLS[call](store)

    with pytest.raises(LakeheadError) as raised:
        asyncio.run(ask())
    return raised.value


@every_call
def test_a_missing_bucket_is_named(seaweed: Seaweed, call: str) -> None:
    error = error_of(open_store("s3://no-such-bucket/prefix", seaweed.settings()), call)

    assert isinstance(error, Misconfigured)
    assert "s3://no-such-bucket does not exist" in str(error)
    assert "Create it" in str(error)


@every_call
@pytest.mark.parametrize("wrong", ["access_key_id", "secret_access_key"])
def test_refused_credentials_say_what_to_check_and_not_what_they_were(seaweed: Seaweed, call: str, wrong: str) -> None:
    settings = seaweed.settings()
    settings = replace(settings, credentials={**settings.credentials, wrong: "canary-4711"})

    error = error_of(open_store(f"s3://{BUCKET}/refused", settings), call)

    assert isinstance(error, Misconfigured)
    assert "refused the credentials" in str(error)
    assert "canary-4711" not in f"{error} {settings}"
    assert asyncio.run(everything_in(open_store(f"s3://{BUCKET}/refused", seaweed.settings()))) == []


@every_call
def test_a_server_that_is_not_there_has_changed_nothing(seaweed: Seaweed, call: str) -> None:
    [nobody] = free_ports(1)

    error = error_of(open_store(f"s3://{BUCKET}", seaweed.settings(endpoint=f"http://127.0.0.1:{nobody}")), call)

    assert isinstance(error, Unavailable)
    assert "could not connect" in str(error)


@every_call
def test_a_folder_without_a_parent_is_named_and_not_made(tmp_path: Path, call: str) -> None:
    error = error_of(open_store(f"file://{tmp_path}/missing/store"), call)

    assert isinstance(error, Misconfigured)
    assert f"{tmp_path}/missing/store" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_a_server_killed_in_the_middle_of_writes_keeps_every_one_that_it_answered(memory_folder: Path) -> None:
    server = Seaweed(memory_folder)
    server.start()
    store = open_store(f"s3://{BUCKET}", server.settings(request_timeout=5))
    # A server that has just come back knows its older volumes a moment later; until then it answers 500.
    patient = replace(server.settings(), backoff=Backoff(attempts=60, first_seconds=0.05, cap_seconds=0.5))
    afterwards = open_store(f"s3://{BUCKET}", patient)
    answered: dict[str, bytes] = {}
    doubtful: dict[str, bytes] = {}
    refused: list[str] = []
    enough, killed = 40, asyncio.Event()

    async def writer(number: int) -> None:
        for n in range(1_000):
            key, body = f"kill/{number}-{n}", os.urandom(50_000)
            try:
                assert isinstance(await store.create(key, body), Created)
            except OutcomeUnknown:
                doubtful[key] = body
            except Unavailable:
                refused.append(key)
            else:
                answered[key] = body
            if len(answered) >= enough and not killed.is_set():
                os.kill(server.pid, signal.SIGKILL)
                killed.set()
            if killed.is_set() and key not in answered:
                return

    async def kill_and_restart() -> None:
        await asyncio.gather(*(writer(number) for number in range(8)))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        for key, body in answered.items():
            there = await afterwards.get(key)
            assert there is not None, f"{key} was answered"
            assert there.body == body
        for key, body in doubtful.items():
            there = await afterwards.get(key)
            assert there is None or there.body == body, f"{key} is half"
        for key in refused:
            assert await afterwards.get(key) is None, f"{key} never left"
        assert isinstance(await store.create("kill/after", b"the same client goes on"), Created)

    try:
        asyncio.run(kill_and_restart())
        assert len(answered) >= enough
        assert doubtful or refused, "the server was not killed in the middle"
    finally:
        server.stop()
