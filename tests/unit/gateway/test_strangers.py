"""Whoever has no right is refused on every route of both listeners before a body is read or the store is asked."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from lakehead.errors import Unavailable
from tests.support.async_tests import async_test
from tests.unit.gateway.support import TOKEN, Gateway
from tests.unit.gateway.test_private import ONE, with_conflicts

OPEN_TO_ALL = {"/healthz", "/readyz"}
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


def routes(app: FastAPI) -> list[tuple[str, str]]:
    """All routes, also those that are in no document, with the id of a conflict that exists."""
    found = [(method, each.path) for each in app.routes if isinstance(each, APIRoute) for method in each.methods or ()]
    return [(method, path.replace("/v1/conflicts/{id_text}", ONE)) for method, path in found if path not in OPEN_TO_ALL]


@pytest.mark.parametrize("listener", ["ingest", "private"])
@async_test
async def test_whoever_has_no_right_token_is_401_on_every_route_and_reaches_nothing(listener: str) -> None:
    gateway = with_conflicts()
    gateway.conflicts.error = Unavailable("It was asked.")
    app: FastAPI = getattr(gateway, listener)
    for method, path in routes(app):
        for name, tokens in {**STRANGE, **(OPERATORS if listener == "ingest" else AGENTS)}.items():
            status, body = await answer_without_a_body(app, method, path, tokens)
            assert status == 401, f"{method} {path} with the token: {name}"
            assert msgspec.json.decode(body)["error"]["code"] == "unauthenticated"
    assert gateway.store.calls == []
    assert not gateway.conflicts.listed
    assert not gateway.conflicts.asked
    await gateway.close()


@async_test
async def test_a_viewer_decides_nothing_and_its_body_is_not_read() -> None:
    gateway = with_conflicts()
    decisions = [(method, path) for method, path in routes(gateway.private) if method == "POST"]
    assert len(decisions) == 3
    for method, path in decisions:
        status, _ = await answer_without_a_body(gateway.private, method, path, [b"Bearer view-token"])
        assert status == 403
    assert gateway.store.calls == []
    assert not gateway.conflicts.asked
    await gateway.close()


def test_there_are_routes_to_try() -> None:
    gateway = Gateway()
    assert routes(gateway.ingest) == [("POST", "/ingest/v1/batch")]
    assert len(routes(gateway.private)) == 8
    asyncio.run(gateway.close())
