"""What a gateway is compared with: the same server stack and the same puts with the same bytes, without any check.

Run it as `python -m bench.gateway_bare STORE_URL`. It says where it listens. Nobody should use it for anything else: it
believes the client's hash, knows no token and overwrites nothing only because frames differ.
"""

import asyncio
import os
import sys
from collections import deque
from typing import Any

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.run.environment import store_settings
from lakehead.storage.open_store import open_store
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.index_records import AcceptedByBlob, AcceptedByTime, RawBlobByTime
from lakehead.wire.utc_hours import UtcHour

AT_ONCE = 16
"""Batches whose last two puts are under way, as in a gateway."""


class BareApp:
    """An ASGI application that stores what comes: two puts, then one, and two more after the answer."""

    def __init__(self, url: str) -> None:
        self._store = open_store(
            url, store_settings(url, os.environ), clock=SystemClock(), ids=RandomIds(), random=system_random()
        )
        manifest = _some_manifest()
        entry = RawBlobByTime.of(manifest.identity, manifest.frame_sha256, manifest.frame_bytes)
        by_time, by_blob = AcceptedByTime.of(manifest), AcceptedByBlob.of(manifest)
        self._records = [
            (each_key.rpartition("/")[0], each_body)
            for each_key, each_body in (
                (entry.key_in(UtcHour.of(manifest.accepted_at_unix_ns)), entry.encode()),
                (manifest.key, manifest.encode()),
                (by_time.key, by_time.encode()),
                (by_blob.key, by_blob.encode()),
            )
        ]
        self._left: deque[str] = deque()
        self._finished = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._answer = b'{"duplicate":false,"authority":"%s"}' % (b"-" * 300)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store the body of a POST; a GET is told how many batches have all their puts."""
        answer = self._answer
        if scope["method"] == "POST":
            await self._take(scope, receive)
        else:
            answer = b"%d" % self._finished
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _take(self, scope: Scope, receive: Receive) -> None:
        name = next(value for key, value in scope["headers"] if key == b"x-frame-sha256").decode()
        parts, more = [], True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        blob = f"raw-blobs/v1/sha256/{name[:2]}/{name[2:4]}/{name}.lmbatch"
        await asyncio.gather(self._store.create(blob, b"".join(parts)), self._put(0, name))
        await self._put(1, name)
        self._left.append(name)
        if len(self._tasks) < AT_ONCE:
            task = asyncio.create_task(self._follow_up())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _follow_up(self) -> None:
        while self._left:
            name = self._left.popleft()
            await self._put(2, name)
            await self._put(3, name)
            self._finished += 1

    async def _put(self, number: int, name: str) -> None:
        folder, body = self._records[number]
        await self._store.create(f"{folder}/{name}.json", body)


def _some_manifest() -> IdentityManifest:
    """A record as long as a gateway's."""
    identity = BatchIdentity("agent-00", "rate-8-0", 1_000_000, 1_000_999)
    return IdentityManifest(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_sha256="0" * 64,
        frame_bytes=65_536,
        raw_blob_key=f"raw-blobs/v1/sha256/00/00/{'0' * 64}.lmbatch",
        accepted_at_unix_ns=1_760_000_000_000_000_000,
        collector_id="gateway",
        wire_version=1,
        frame_version=1,
        nonce=RandomIds().uuid(),
        kind="samples",
    )


async def _serve(url: str) -> None:
    app: Any = BareApp(url)
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False)
    )
    serving = asyncio.create_task(server.serve())
    while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn sets no event
        await asyncio.sleep(0.01)
    if server.started:
        port = server.servers[0].sockets[0].getsockname()[1]
        print(f"http://127.0.0.1:{port}", flush=True)
    await serving


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
