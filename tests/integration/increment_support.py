"""Tables that are read in increments, for tests: made in a server, filled, run, and compared with what came of them."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError
from lakehead.extract.sink import TableSink
from lakehead.extract.table_settings import TableSettings
from lakehead.ids import RandomIds
from lakehead.lake.run_context import RunContext
from lakehead.run.config.table_config import TableConfig
from lakehead.run.wiring import Wiring
from lakehead.state.model import Mark, Watermark
from lakehead.state.opening import open_state
from lakehead.telemetry.events import TablePlanned
from tests.integration.pipeline_support import Scene
from tests.pipeline import Ran
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres

MOMENT = {"postgresql": "timestamp(6)", "mysql": "datetime(6)"}
"""Moments without a zone, to the microsecond."""

DAY = datetime.fromisoformat("2024-05-01 12:00")
ONE_A_SLICE = {"target_rows": 1}
SECOND = timedelta(seconds=1)


def scd1(table: str, **more: Any) -> dict[str, Any]:
    return {"table": table, "mode": "scd1", "incremental_column": "at", "primary_keys": ["id"], **more}


def at(moment: datetime) -> str:
    """A moment in SQL."""
    return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}'"


def make(scene: Scene, columns: str = "id bigint, at {moment}, v text") -> str:
    """A table that no other test knows, without rows."""
    name = scene.name()
    scene.sql(f"CREATE TABLE {name} ({columns.format(moment=MOMENT[scene.database.kind])})")
    return name


def series(scene: Scene, count: int) -> str:
    """The numbers `n` from 1, as something to select from."""
    if scene.database.kind == "postgresql":
        return f"generate_series(1::bigint, {count}) AS g(n)"
    return f"(SELECT seq AS n FROM seq_1_to_{count}) AS g"


def source_rows(scene: Scene, table: str) -> list[tuple[object, ...]]:
    return sorted(scene.database.run(f"SELECT id, at, v FROM {table}"), key=str)


def lake_rows(scene: Scene, table: str) -> list[tuple[object, ...]]:
    return sorted((tuple(row.values()) for row in scene.rows(table).to_pylist()), key=str)


def now(scene: Scene) -> datetime:
    """The server's time, in the form in which it writes moments without a zone."""
    return scene.database.source.now().local


def done(ran: Ran) -> None:
    assert ran.exit_code == 0, ran.errors


def planned(ran: Ran, table: str | None = None) -> TablePlanned:
    [event] = ran.of(TablePlanned, table)
    return event


def mark_of(scene: Scene, table: str, mark: Mark = Mark.DONE) -> Watermark | None:
    """How far the state says that a raw table is."""
    catalog = scene.pipeline.catalog()
    try:
        uuid = str(catalog.load_table(table).metadata.table_uuid)
    finally:
        catalog.close()
    with open_state(f"sqlite:///{scene.pipeline.folder}/state.sqlite", SystemClock(), RandomIds()) as state:
        return state.progress.watermark(uuid, mark)


def reached(scene: Scene, table: str) -> datetime:
    """The moment up to which a raw table is done."""
    mark = mark_of(scene, table)
    assert mark is not None
    assert isinstance(mark.value, datetime)
    return mark.value


def told_by_snapshot(scene: Scene, table: str) -> dict[str, str]:
    """What the last snapshot of a table carries."""
    catalog = scene.pipeline.catalog()
    try:
        snapshot = catalog.load_table(table).current_snapshot()
    finally:
        catalog.close()
    assert snapshot is not None
    assert snapshot.summary is not None
    return snapshot.summary.additional_properties


@contextmanager
def other_session(scene: Scene, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A connection beside the scene's own, in a transaction that is not committed until somebody does."""
    database = scene.pipeline.source["url"].rpartition("/")[2]
    server: Postgres | MariaDB
    if scene.database.kind == "postgresql":
        server = request.getfixturevalue("postgres")
    else:
        server = request.getfixturevalue("mariadb")
    connection: Any = server.connect(database)
    try:
        cursor = connection.cursor()
        cursor.execute("BEGIN")
        yield cursor
    finally:
        connection.close()


def append(table: str, **more: Any) -> dict[str, Any]:
    return {"table": table, "mode": "append", "incremental_column": "at", **more}


# --- runs that are cut short


class Crash(LakeheadError):
    """Where a test ends a run."""


class Breaking:
    """A sink that fails instead of doing a step, once it has done it so many times."""

    def __init__(self, sink: TableSink, step: str, after: int) -> None:
        self._sink, self._step, self._left = sink, step, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._sink, name)
        return self._broken(found) if name == self._step else found

    def _broken(self, found: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if self._left == 0:
                raise Crash(f"{self._step} was cut short")
            self._left -= 1
            return found(*args, **kwargs)

        return call


def broken_at(step: str, after: int = 0) -> Callable[[Wiring], Wiring]:
    """A wiring whose sinks fail at a step."""

    def broken(made: Wiring) -> Wiring:
        class Broken(Wiring):
            def sink_of(self, table: TableConfig, settings: TableSettings, run: RunContext) -> TableSink:
                return cast(TableSink, Breaking(made.sink_of(table, settings, run), step, after))

        return Broken(made.config, made.environment)

    return broken


def fill(scene: Scene, table: str, *ids: int, v: str = "x", since: datetime = DAY) -> None:
    """Rows one second apart, the lowest number first."""
    for number in ids:
        scene.sql(f"INSERT INTO {table} VALUES ({number}, {at(since + number * SECOND)}, '{v}')")


def add(scene: Scene, table: str, *ids: int) -> None:
    """Rows that are written just now."""
    for number in ids:
        scene.sql(f"INSERT INTO {table} VALUES ({number}, {at(now(scene))}, 'x')")


def raw_rows(scene: Scene, table: str) -> list[tuple[object, object]]:
    """Which slice holds which row."""
    raw = scene.rows(f"raw.{table}", ingest=True)
    return sorted(zip(raw["_slice"].to_pylist(), raw["id"].to_pylist(), strict=True))
