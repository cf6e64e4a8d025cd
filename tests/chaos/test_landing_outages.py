"""Catalogs and stores that do not answer for a while: what was staged is kept, and lands when they do."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lakehead.errors import Unavailable
from lakehead.lake import catalog as catalogs
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Landing, Unit
from lakehead.lake.protocol import Lander
from lakehead.lake.retries import Retries
from lakehead.retry import TimedBackoff
from tests.chaos.landing_child import Order, Place, assert_landed_once, lander_of, make_table
from tests.faults.failpoints import Once, with_failpoints
from tests.faults.proxy import Proxy, Request, Silence, answer, served
from tests.lakehouse import Lakehouse
from tests.servers.seaweed import Seaweed
from tests.support.costs import Mechanism, add

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

QUICK = TimedBackoff(seconds=60, first_seconds=0.01, cap_seconds=0.05)
REST = "rest"
CUTS = 15
"""So many that the client of a table's files, which tries again by itself, has given up in between."""


@dataclass
class Landed:
    """What came of a landing that met an outage when its rows were staged."""

    landing: Landing | None
    stagings: int
    waits: list[str]


@dataclass
class Scene:
    """A table in some catalog, and a lander that lets something happen as soon as its rows are staged."""

    lakehouse: Lakehouse
    place: Place
    outage: TimedBackoff = QUICK
    waits: list[str] = field(default_factory=list)

    def table(self) -> IcebergTable:
        retries = Retries(backoff=self.outage, waiting=self.waits.append)
        return IcebergTable(
            self.lakehouse.catalog(self.place.catalog), f"t.{self.place.table}", self.lakehouse.ledger, retries
        )

    def land(self, unit: str, happens: Callable[[], object] = lambda: None) -> Landed:
        add(Mechanism.LANDINGS)
        table, stagings = self.table(), 0
        first = Once("after stage", happens)

        def reach(moment: str) -> None:
            nonlocal stagings
            stagings += moment == "after stage"
            first(moment)

        made: Lander[Any] = lander_of(self.lakehouse, table, Order((unit,)))
        lander = with_failpoints(replace(made, outage=self.outage, waiting=self.waits.append), reach)
        taken = self.lakehouse.progress().take(table.uuid, [Unit(unit)])
        staged = asyncio.run(lander.land(taken))
        return Landed(staged.landing if staged else None, stagings, self.waits)


class Broken:
    """A proxy that, from a moment on, does the same to every request that goes to some place, for some of them."""

    def __init__(self, upstream: str) -> None:
        self._proxy = Proxy(upstream, None)
        self._left = 0
        self._how: bytes | Silence = answer(503)
        self._concerns: Callable[[Request], bool] = lambda _: True

    def break_down(self, requests: int, how: bytes | Silence, concerns: Callable[[Request], bool]) -> None:
        self._how, self._concerns, self._left = how, concerns, requests

    @property
    def recovered(self) -> bool:
        return self._left == 0

    async def handle(self, request: Request) -> bytes | Silence:
        if self._left and self._concerns(request):
            self._left -= 1
            return self._how
        return await self._proxy.handle(request)


@pytest.fixture
def rest(seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Scene, Broken]]:
    """A table of a REST catalog behind a proxy."""
    monkeypatch.setattr(catalogs, "REST_SECONDS", (10.0, 2.0))
    between = Broken(seaweed.rest_catalog_uri)
    with served(between.handle) as address:
        place = Place(tmp_path, tmp_path.name, REST, {REST: {**seaweed.rest_catalog(), "uri": address}})
        lakehouse = place.open()
        make_table(lakehouse, place)
        yield Scene(lakehouse, place), between
        lakehouse.close()


BREAKDOWNS = {
    "500": (20, answer(500)),
    "502": (20, answer(502, b"<html>bad gateway</html>")),
    "503": (20, answer(503)),
    "429": (20, answer(429)),
    "the connection is lost": (20, Silence.HANG_UP),
    "there is no answer": (2, Silence.NEVER_ANSWER),
}


@pytest.mark.parametrize(("requests", "how"), BREAKDOWNS.values(), ids=BREAKDOWNS)
def test_a_rest_catalog_that_is_out_for_a_while_costs_no_staged_work(
    rest: tuple[Scene, Broken], requests: int, how: bytes | Silence
) -> None:
    scene, between = rest
    scene.land("before")

    landed = scene.land("during", lambda: between.break_down(requests, how, lambda _: True))

    assert between.recovered
    assert landed.landing is not None
    assert landed.stagings == 1
    assert any("does not answer" in told or "did not say" in told for told in landed.waits)
    assert_landed_once(scene.lakehouse, scene.table(), ["before", "during"])


def test_a_rest_catalog_that_stays_out_ends_the_landing_as_unavailable_and_the_next_run_lands(
    rest: tuple[Scene, Broken],
) -> None:
    scene, between = rest
    impatient = replace(scene, outage=TimedBackoff(seconds=0.5, first_seconds=0.01, cap_seconds=0.05))

    with pytest.raises(Unavailable, match="The catalog rest does not answer"):
        impatient.land("a", lambda: between.break_down(10**9, answer(503), lambda _: True))

    between.break_down(0, answer(503), lambda _: True)
    assert scene.land("a").landing is not None
    assert_landed_once(scene.lakehouse, scene.table(), ["a"])


def test_a_commit_that_is_never_answered_is_looked_for_and_ends_as_unavailable(rest: tuple[Scene, Broken]) -> None:
    scene, between = rest
    impatient = replace(scene, outage=TimedBackoff(seconds=0.5, first_seconds=0.01, cap_seconds=0.05))

    with pytest.raises(Unavailable, match=r"without success.*anything that was published will be found"):
        impatient.land("a", lambda: between.break_down(10**9, answer(503), lambda request: request.method == "POST"))

    between.break_down(0, answer(503), lambda _: True)
    assert scene.land("a").landing is not None
    assert_landed_once(scene.lakehouse, scene.table(), ["a"])


class Line:
    """A line to a server that can be cut: byte by byte, because the client of a table's files speaks more HTTP than
    the proxy does."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self._cuts = 0
        self._method = b""

    def cut(self, times: int, method: str) -> None:
        """Close the connection of each of the next requests of a method."""
        self._cuts, self._method = times, method.encode()

    @property
    def recovered(self) -> bool:
        return self._cuts == 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        back = asyncio.create_task(self._back(up_reader, writer))
        try:
            while data := await reader.read(2**16):
                if self._cuts and data.startswith(self._method):
                    self._cuts -= 1
                    break
                up_writer.write(data)
                await up_writer.drain()
        except ConnectionError:
            pass  # the client has gone
        finally:
            back.cancel()
            up_writer.close()
            writer.close()

    @staticmethod
    async def _back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            writer.write(data)
        writer.close()


@contextmanager
def connected(line: Line) -> Iterator[str]:
    """The address of a line, which is served in a thread of its own."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(line.serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(hang_up(server))
        loop.close()


async def hang_up(server: asyncio.Server) -> None:
    server.close()
    connections = asyncio.all_tasks() - {asyncio.current_task()}
    for connection in connections:
        connection.cancel()
    await asyncio.gather(*connections, return_exceptions=True)


@pytest.mark.parametrize("method", ["PUT", pytest.param("GET", marks=pytest.mark.soak)])
def test_a_store_that_is_out_for_a_while_costs_no_staged_work(seaweed: Seaweed, tmp_path: Path, method: str) -> None:
    line = Line(seaweed.endpoint)
    with connected(line) as address:
        where = seaweed.sqlite_catalog(tmp_path / "catalog.sqlite", warehouse=f"s3://lake/{tmp_path.name}")
        place = Place(tmp_path, "stored", "s3", {"s3": {**where, "s3.endpoint": address}})
        scene = Scene(place.open(), place)
        make_table(scene.lakehouse, place)
        scene.land("before")

        landed = scene.land("during", lambda: line.cut(CUTS, method))

        assert line.recovered
        assert (landed.landing is not None, landed.stagings) == (True, 1)
        assert any("does not answer" in told for told in landed.waits)
        assert_landed_once(scene.lakehouse, scene.table(), ["before", "during"])
        scene.lakehouse.close()


def test_a_catalog_in_sqlite_that_is_locked_for_a_while_costs_no_staged_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "BUSY_SECONDS", 0.05)  # what a commit waits for by itself, before it says busy
    place = Place(tmp_path)
    scene = Scene(place.open(), place)
    make_table(scene.lakehouse, place)
    scene.land("before")
    file = tmp_path / "lakehouse" / "catalog.sqlite"
    assert file.is_file()
    told = threading.Event()
    scene.waits = Hearing(told)

    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:

        def lock_until_told() -> None:
            other.execute("BEGIN IMMEDIATE")
            threading.Thread(target=lambda: told.wait() and other.execute("ROLLBACK")).start()

        landed = scene.land("during", lock_until_told)

    assert (landed.landing is not None, landed.stagings) == (True, 1)
    assert "database is locked" in landed.waits[0]
    assert_landed_once(scene.lakehouse, scene.table(), ["before", "during"])
    scene.lakehouse.close()


class Hearing(list[str]):
    """Keeps what it is told, and sets an event."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self._event = event

    def append(self, told: str) -> None:
        super().append(told)
        self._event.set()


def test_a_ledger_that_is_out_for_a_while_costs_no_staged_work(tmp_path: Path) -> None:
    place = Place(tmp_path)
    lakehouse = place.open()
    table = make_table(lakehouse, place)
    failures = iter(range(5))
    ledger = FailingLedger(lakehouse.ledger, failures)
    lander = lander_of(lakehouse, table, Order(("a",)))
    waits: list[str] = []

    taken = lakehouse.progress().take(table.uuid, [Unit("a")])
    landing = asyncio.run(replace(lander, ledger=ledger, outage=QUICK, waiting=waits.append).land(taken))

    assert landing is not None
    assert next(failures, None) is None
    assert waits == ["the ledger's store is out"]
    assert_landed_once(lakehouse, table, ["a"])
    lakehouse.close()


@dataclass
class FailingLedger:
    """A ledger whose store does not answer so many times."""

    inner: Any
    failures: Iterator[int]

    async def record(self, table: str, snapshot: Any) -> None:
        if next(self.failures, None) is not None:
            raise Unavailable("the ledger's store is out")
        await self.inner.record(table, snapshot)
