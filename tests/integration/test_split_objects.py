"""Large objects are split over tasks in one landing: the same rows with the same numbers, or none of them."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakehead.clock import SystemClock
from lakehead.consume.iceberg_landings import IcebergLandings
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.objects import ObjectRef
from lakehead.consume.ports import LandingReport
from lakehead.consume.queue import Message
from lakehead.ids import RandomIds, system_random
from lakehead.run.consume_wiring import PipelineDeps, table_format
from lakehead.run.stopping import StopSignal
from lakehead.spark.jobs import ThreadSessions
from tests.integration.consume_support import TABLE, Pipeline
from tests.support.state_tools import hold

SMALL = 2_000
"""Bytes above which objects are split in these tests."""
ROWS = 500


@contextmanager
def landings_of(pipeline: Pipeline, *, split_bytes: int) -> Iterator[IcebergLandings]:
    config = pipeline.wiring.config.pipelines["files"]
    with pipeline.state() as state:
        deps = PipelineDeps(
            state=state,
            sessions=ThreadSessions(pipeline.session),
            run="run",
            clock=SystemClock(),
            ids=RandomIds(),
            random=system_random(),
            stop=StopSignal(),
            waiting=lambda _: None,
        )
        landings = IcebergLandings(
            [table_format(config.tables[0], {})],
            lambda: pipeline.wiring._landing("files", "us", config, deps),
            stores={},
            lease=timedelta(minutes=1),
            split_bytes=split_bytes,
        )
        try:
            yield landings
        finally:
            landings.close()


def land(pipeline: Pipeline, *uris: str, split_bytes: int = SMALL) -> LandingReport:
    """Land files in one landing."""
    works = [
        Work(key=UnitKey(TABLE, uri), object=ObjectRef(uri=uri), message=Message(id=uri, body=uri.encode()))
        for uri in uris
    ]
    with landings_of(pipeline, split_bytes=split_bytes) as landings:

        async def landed() -> LandingReport:
            uuid = await landings.uuid(TABLE)
            with pipeline.state() as state:
                hold(state, uuid, *uris)
            return await landings.land(TABLE, works, is_held=lambda _: True, read=lambda _: None)

        return asyncio.run(landed())


def numbers(pipeline: Pipeline, name: str) -> list[tuple[int, Any]]:
    return [(row["_row"], row["n"]) for row in pipeline.rows() if row["_uri"].endswith(f"/{name}")]


def data_files(pipeline: Pipeline) -> int:
    return len(list((pipeline.folder / "lakehouse").rglob("*.parquet")))


def ndjson(rows: Sequence[int]) -> str:
    """Rows with blank lines between them, which are no records."""
    return "".join(f'{{"n": {n}, "text": "{"x" * (n % 40)}"}}\n{"" if n % 7 else " " + chr(10)}' for n in rows)


def test_plain_ndjson_has_the_rows_and_numbers_that_it_has_in_one_piece(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    large, small = pipeline.write("large.json"), pipeline.write("small.json", {"n": -1})
    (pipeline.inbox / "large.json").write_text(ndjson(range(ROWS)))

    report = land(pipeline, large, small)

    assert {key.unit: read.rows for key, read in report.landed.items()} == {large: ROWS, small: 1}
    assert report.landed[UnitKey(TABLE, large)].bytes == (pipeline.inbox / "large.json").stat().st_size
    assert numbers(pipeline, "large.json") == [(n, n) for n in range(ROWS)]
    assert numbers(pipeline, "small.json") == [(0, -1)]
    assert data_files(pipeline) > 5


def test_parquet_is_split_by_row_groups(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, table={"format": "parquet"})
    path = pipeline.inbox / "large.parquet"
    pq.write_table(pa.table({"n": pa.array(range(ROWS), pa.int64())}), path, row_group_size=60)

    report = land(pipeline, path.as_uri(), split_bytes=1_000)

    assert [read.rows for read in report.landed.values()] == [ROWS]
    assert numbers(pipeline, "large.parquet") == [(n, n) for n in range(ROWS)]
    assert data_files(pipeline) > 1


def test_a_part_that_cannot_be_read_costs_its_object_and_no_other(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    for name, last in (("good.json", "\n"), ("bad.json", '{"n": \n')):
        (pipeline.inbox / name).write_text(ndjson(range(ROWS)) + last)
    good, bad = ((pipeline.inbox / name).as_uri() for name in ("good.json", "bad.json"))

    report = land(pipeline, good, bad)

    assert ([key.unit for key in report.landed], [key.unit for key in report.failed]) == ([good], [bad])
    assert numbers(pipeline, "bad.json") == []
    assert numbers(pipeline, "good.json") == [(n, n) for n in range(ROWS)]


def test_columns_that_only_the_last_part_has_are_added(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, table={"columns": [{"name": "n", "type": "long"}]})
    path = pipeline.inbox / "large.json"
    path.write_text(ndjson(range(ROWS)) + "".join(json.dumps({"n": n, "late": n}) + "\n" for n in range(3)))

    report = land(pipeline, path.as_uri())

    assert [read.rows for read in report.landed.values()] == [ROWS + 3]
    assert [row["late"] for row in pipeline.rows() if row["late"] is not None] == [0, 1, 2]
