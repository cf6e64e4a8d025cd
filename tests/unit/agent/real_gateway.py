"""A gateway that listens on loopback in a thread of its own, for clients that block."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lakehead.gateway.settings import IngestSettings
from tests.unit.gateway.running import Running, running
from tests.unit.gateway.support import Gateway


@contextmanager
def gateway_in_a_thread(settings: IngestSettings | None = None) -> Iterator[Running]:
    """A gateway over a store in memory. What a test changes in it is read by the thread's next request."""
    started = threading.Event()
    found: list[Running] = []
    ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        async with running(Gateway(settings or IngestSettings(requests_per_second=None))) as server:
            end = asyncio.Event()
            ends.append((asyncio.get_running_loop(), end))
            found.append(server)
            started.set()
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="test-gateway")
    thread.start()
    try:
        assert started.wait(60), "the gateway does not start"
        yield found[0]
    finally:
        for loop, end in ends:
            loop.call_soon_threadsafe(end.set)
        thread.join(60)


def url_of(server: Running) -> str:
    return f"http://127.0.0.1:{server.server.ingest_port}"
