"""Whoever has no right is refused on every route of both listeners before a body is read or the store is asked."""

from collections.abc import MutableMapping
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from lakehead.errors import Unavailable
from lakehead.gateway.batch_ids import batch_id
from lakehead.gateway.conflict_ids import conflict_id
from tests.support.async_tests import async_test
from tests.unit.gateway.spool_gateway import SpoolGateway
from tests.unit.gateway.support import FRAME, ROLES, TOKEN, as_role, client
from tests.unit.gateway.test_private import DECISIONS, HASHES, listed
from tests.unit.wire.frames import IDENTITY

CONFLICT, BATCH = "/v1/conflicts/{id_text}", "/v1/spool/batches/{id_text}"
NEEDED = {
    "ingest": {("POST", "/ingest/v1/batch"): "agent"},
    "private": {
        ("GET", "/healthz"): "",
        ("GET", "/readyz"): "",
        ("GET", "/metrics"): "viewer",
        ("GET", "/openapi.json"): "viewer",
        ("GET", "/openapi/ingest.json"): "viewer",
        ("GET", "/v1/conflicts"): "viewer",
        ("GET", CONFLICT): "viewer",
        **{("POST", f"{CONFLICT}/{name}"): "operator" for name in DECISIONS},
        ("GET", "/v1/overlaps"): "viewer",
        ("GET", "/v1/repairs"): "viewer",
        ("GET", "/v1/spool"): "viewer",
        ("GET", BATCH): "viewer",
        ("POST", "/v1/spool/voids/{id_text}"): "admin",
    },
}
"""Every route of each listener, and the least role that it needs; empty: it is open to all."""

RANKS = ("viewer", "operator", "admin")
STRANGE = {
    "none": [],
    "empty": [b""],
    "no scheme": [TOKEN.encode()],
    "another scheme": [b"Basic " + TOKEN.encode()],
    "no token": [b"Bearer "],
    "garbled": [b"Bearer " + TOKEN[::-1].encode()],
    "not ASCII": [b"Bearer " + TOKEN.encode() + b"\xff"],
    "with a null": [b"Bearer " + TOKEN.encode() + b"\x00"],
    "a part": [b"Bearer " + TOKEN[:-1].encode()],
    "two": [b"Bearer " + TOKEN.encode(), b"Bearer operate-token"],
    "revoked": [b"Bearer revoked-token"],
}
AGENTS, OPERATORS = {"an agent's": [b"Bearer " + TOKEN.encode()]}, {"an operator's": [b"Bearer admin-token"]}


async def answer_without_a_body(app: FastAPI, method: str, path: str, tokens: list[bytes]) -> tuple[int, bytes]:
    """Ask an application for a route. It fails if the application reads the body."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("the body was read")

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
    }
    scope |= {"raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http"}
    scope |= {"headers": [(b"authorization", each) for each in tokens] + [(b"content-length", b"100")]}
    scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)}
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])


class Watched:
    """A gateway with a conflict and a batch in its spool, of which one sees whether anybody reaches them."""

    def __init__(self) -> None:
        self.gateway = SpoolGateway()
        self.gateway.conflicts.known = [listed(IDENTITY, HASHES[0])]
        self.stores = (self.gateway.store, self.gateway.spool_store, self.gateway.spool_disk)

    async def start(self) -> None:
        assert (await self.gateway.post(FRAME)).status_code == 200
        for each in self.stores:
            each.calls.clear()
        self.gateway.conflicts.error = Unavailable("It was asked.")

    def secured(self, listener: str) -> list[tuple[str, str, str]]:
        """Method and path, with the id of something that exists, and the least role, of all routes that need one."""
        conflict, batch = conflict_id(IDENTITY, HASHES[0]), batch_id(IDENTITY)
        return [
            (method, path.replace("{id_text}", conflict if "/conflicts/" in path else batch), role)
            for (method, path), role in NEEDED[listener].items()
            if role
        ]

    async def close(self) -> None:
        """End it. It fails if anybody has reached something."""
        assert [each.calls for each in self.stores] == [[], [], []]
        assert not self.gateway.conflicts.listed
        assert not self.gateway.conflicts.asked
        await self.gateway.close()


def app_of(gateway: SpoolGateway, listener: str) -> FastAPI:
    return gateway.ingest if listener == "ingest" else gateway.private


@pytest.mark.parametrize("listener", NEEDED)
@async_test
async def test_every_route_is_listed_here_with_the_role_that_it_needs(listener: str) -> None:
    gateway = SpoolGateway()

    found = app_of(gateway, listener).routes

    assert all(isinstance(each, APIRoute) for each in found), "a route that this test cannot look into"
    assert {
        (method, each.path) for each in found if isinstance(each, APIRoute) for method in each.methods or ()
    } == set(NEEDED[listener])
    await gateway.close()


@pytest.mark.parametrize("listener", NEEDED)
@async_test
async def test_whoever_has_no_right_token_is_401_on_every_route_and_reaches_nothing(listener: str) -> None:
    watched = Watched()
    await watched.start()
    for method, path, _ in watched.secured(listener):
        for name, tokens in {**STRANGE, **(OPERATORS if listener == "ingest" else AGENTS)}.items():
            status, body = await answer_without_a_body(app_of(watched.gateway, listener), method, path, tokens)
            assert status == 401, f"{method} {path} with the token: {name}"
            assert msgspec.json.decode(body)["error"]["code"] == "unauthenticated"
    await watched.close()


@async_test
async def test_whoever_has_a_lower_role_is_403_on_every_route_and_reaches_nothing() -> None:
    watched = Watched()
    await watched.start()
    refused = 0
    for method, path, role in watched.secured("private"):
        for lower in RANKS[: RANKS.index(role)]:
            token = next(token.encode() for token, has in ROLES.items() if has == lower)
            status, body = await answer_without_a_body(watched.gateway.private, method, path, [b"Bearer " + token])
            assert status == 403, f"{method} {path} as {lower}"
            assert msgspec.json.decode(body)["error"]["code"] == "forbidden"
            refused += 1
    assert refused == 5
    await watched.close()


@async_test
async def test_whoever_has_the_role_that_is_listed_is_not_refused() -> None:
    watched = Watched()
    async with client(watched.gateway.private) as http:
        for method, path, role in watched.secured("private"):
            answer = await http.request(method, path, headers=as_role(role))
            assert answer.status_code not in (401, 403), f"{method} {path} as {role}"
    await watched.gateway.close()
