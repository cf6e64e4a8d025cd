"""Answers that are easily taken for others: what was applied stays applied, and what is unknown stays unknown."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from uuid import uuid4

import pytest

from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.storage.open_store import open_store
from lakehead.storage.port import Created, Store
from tests.contract.remote_support import (
    BEFORE,
    HURRIED,
    KEY,
    MANY,
    OURS,
    create_and_replace,
    hardly_any_pause,
    proxied_key,
)
from tests.faults.proxy import Fault, Request, Silence, failure, loopback, proxy
from tests.servers.seaweed import BUCKET, Seaweed
from tests.support.async_tests import async_test

Unconditional = Callable[[Store], Awaitable[object]]

put_and_delete = pytest.mark.parametrize(
    ("method", "change"),
    [("PUT", lambda store: store.put(KEY, OURS)), ("POST", lambda store: store.delete(KEY))],
    ids=["put", "delete"],
)


@put_and_delete
@async_test
async def test_a_conflict_on_a_write_without_a_precondition_is_tried_again(
    seaweed: Seaweed, method: str, change: Unconditional
) -> None:
    async with proxied_key(seaweed) as target:
        target.proxy.script(method, [Fault.CONFLICT])
        await change(target.ours)
        there = await target.theirs.get(KEY)
        assert there is None or there.body == OURS


@put_and_delete
@async_test
async def test_a_write_applied_before_the_server_went_away_is_unknown(
    seaweed: Seaweed, method: str, change: Unconditional
) -> None:
    url = f"s3://{BUCKET}/{uuid4()}"
    theirs = open_store(url, seaweed.settings())
    await theirs.put(KEY, BEFORE)
    second_try = asyncio.Event()
    async with AsyncExitStack() as stack:
        between = await stack.enter_async_context(proxy(seaweed.endpoint))

        async def second() -> None:
            second_try.set()

        async def first() -> None:
            between.before(method, second)

        between.before(method, first)
        between.script(method, [Fault.UNAVAILABLE_APPLIED, Fault.TIMEOUT])
        settings = replace(seaweed.settings(endpoint=between.endpoint), backoff=hardly_any_pause(4))
        writing = asyncio.ensure_future(change(open_store(url, settings)))
        await second_try.wait()
        await stack.aclose()
        there = await theirs.get(KEY)
        assert there is None or there.body == OURS, "the first try was applied"
        with pytest.raises(OutcomeUnknown):
            await writing


@async_test
async def test_a_delete_that_timed_out_is_tried_again(seaweed: Seaweed) -> None:
    async with proxied_key(seaweed, within=HURRIED, attempts=MANY) as target:
        await target.theirs.put(KEY, BEFORE)
        target.proxy.script("POST", [Fault.TIMEOUT])
        await target.ours.delete(KEY)
        assert await target.theirs.get(KEY) is None


@async_test
async def test_an_object_deleted_while_it_is_read_does_not_make_the_bucket_missing(seaweed: Seaweed) -> None:
    async with proxied_key(seaweed) as target:
        url = f"s3://{BUCKET}/{uuid4()}"
        theirs = open_store(url, seaweed.settings())
        await theirs.put(KEY, bytes(1_000_000))
        cut = False

        async def handle(request: Request) -> bytes | Silence:
            nonlocal cut
            given = await target.proxy.handle(request)
            if request.method == "GET" and not cut and isinstance(given, bytes):
                cut = True
                await theirs.delete(KEY)
                return given[:500_000]
            return given

        async with loopback(handle) as endpoint:
            ours = open_store(url, seaweed.settings(endpoint=endpoint, request_timeout=1))
            with suppress(Unavailable):  # as honest an answer as None
                assert await ours.get(KEY) is None
        assert cut


@create_and_replace
@async_test
async def test_refused_credentials_do_not_hide_that_an_earlier_try_was_applied(
    seaweed: Seaweed, operation: str
) -> None:
    url = f"s3://{BUCKET}/{uuid4()}"
    theirs = open_store(url, seaweed.settings())
    version = await theirs.put(KEY, BEFORE) if operation == "replace" else None
    async with proxy(seaweed.endpoint) as between:
        between.script("PUT", [Fault.UNAVAILABLE_APPLIED])
        between.script("HEAD", [Fault.UNAVAILABLE])

        async def handle(request: Request) -> bytes | Silence:
            if between.seen["PUT"] and request.method == "PUT":
                return failure(request, 403, "ExpiredToken")
            return await between.handle(request)

        async with loopback(handle) as endpoint:
            settings = replace(seaweed.settings(endpoint=endpoint), backoff=hardly_any_pause(3))
            ours = open_store(url, settings)
            with pytest.raises(OutcomeUnknown, match="ExpiredToken"):
                await (ours.create(KEY, OURS) if version is None else ours.replace(KEY, OURS, version))
    there = await theirs.get(KEY)
    assert there is not None
    assert there.body == OURS


@async_test
async def test_a_request_that_s3_found_too_slow_is_tried_again(seaweed: Seaweed) -> None:
    async with proxy(seaweed.endpoint) as between:
        told = False

        async def handle(request: Request) -> bytes | Silence:
            nonlocal told
            if request.method == "PUT" and not told:
                told = True
                return failure(request, 400, "RequestTimeout")
            return await between.handle(request)

        async with loopback(handle) as endpoint:
            ours = open_store(f"s3://{BUCKET}/{uuid4()}", seaweed.settings(endpoint=endpoint))
            assert isinstance(await ours.create(KEY, OURS), Created)
