"""A running gateway takes new tokens, refuses revoked ones, and trusts no list that it cannot read again."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from lakehead.accept.cached_copy import CachedCopy
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from tests.support.async_tests import run_bounded
from tests.support.gateways import GatewayAuthority, GatewayProcess, sample_frame

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

FRAME = sample_frame(BatchIdentity("agent", "boot", 0, 4))


def read_copies_often(stale_after_seconds: float) -> None:
    """Let the gateway of this process read its tokens every tenth of a second, and not every 30."""
    defaults = CachedCopy.__init__.__kwdefaults__
    assert defaults is not None
    defaults.update(every_seconds=0.1, stale_after_seconds=stale_after_seconds)


@pytest.fixture
def authority(tmp_path: Path) -> GatewayAuthority:
    return GatewayAuthority(tmp_path, None, ingest={"requests_per_second": None})


@contextmanager
def started(authority: GatewayAuthority, *, stale_after_seconds: float) -> Iterator[GatewayProcess]:
    gateway = authority.gateway("gateway", before=partial(read_copies_often, stale_after_seconds)).start()
    try:
        yield gateway
    finally:
        gateway.kill()


async def answered(authority: GatewayAuthority, gateway: GatewayProcess, token: str) -> int:
    authority.token = token
    async with httpx.AsyncClient(timeout=60) as http:
        return (await authority.send(http, gateway, FRAME)).status_code


def test_tokens_are_added_and_revoked_while_a_gateway_runs(authority: GatewayAuthority) -> None:
    first, [first_id] = authority.token, authority.token_ids()

    async def test(gateway: GatewayProcess) -> None:
        async def until(token: str, status: int) -> None:
            while (found := await answered(authority, gateway, token)) != status:
                assert found in (200, 401)
                await asyncio.sleep(0.05)

        assert await answered(authority, gateway, first) == 200
        second = await asyncio.to_thread(authority.add_token, "agent")
        await until(second, 200)
        assert await answered(authority, gateway, first) == 200, "two are live at once"
        await asyncio.to_thread(authority.revoke_token, first_id)
        await until(first, 401)
        assert await answered(authority, gateway, second) == 200

    with started(authority, stale_after_seconds=300) as gateway:
        run_bounded(test(gateway))


def test_a_gateway_that_cannot_read_its_tokens_again_knows_nobody_until_it_can(authority: GatewayAuthority) -> None:
    """Not even that somebody has no token: that may have changed."""
    file = authority.folder / "store" / keys.TOKENS
    stored = file.read_bytes()

    async def test(gateway: GatewayProcess) -> None:
        async def until(token: str, status: int) -> None:
            while (found := await answered(authority, gateway, token)) != status:
                assert found == 503 or status == 503
                await asyncio.sleep(0.05)

        token = authority.token
        await until("nobodys", 401)
        file.write_bytes(b"damaged")
        await until("nobodys", 503)
        assert await answered(authority, gateway, token) == 503
        file.write_bytes(stored)
        await until("nobodys", 401)
        await until(token, 200)

    with started(authority, stale_after_seconds=2) as gateway:
        run_bounded(test(gateway))
