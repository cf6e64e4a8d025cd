"""Objects above `max_object_bytes` land in several landings: each record once, whoever dies in between."""

import gzip
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehead.consume.iceberg_landings import IcebergLandings
from lakehead.consume.ports import LandingReport
from lakehead.errors import Misconfigured
from lakehead.run.consume_wiring import Backfill
from lakehead.state.model import FileState, ShardState
from tests.integration.consume_support import TABLE, Pipeline

LIMIT = 3_000
ROWS = 500


def ndjson(rows: Sequence[int]) -> str:
    """Rows with blank lines between them, which are no records."""
    return "".join(f'{{"n": {n}, "text": "{"x" * (n % 40)}"}}\n{"" if n % 7 else " " + chr(10)}' for n in rows)


def run_and_die(pipeline: Pipeline, *, after: int) -> None:
    """Run the pipeline until so many landings are published; it ends before it knows of the last one."""
    land, done = IcebergLandings.land, 0

    async def dies(self: IcebergLandings, *args: Any, **more: Any) -> LandingReport:
        nonlocal done
        report = await land(self, *args, **more)
        done += 1
        if done == after:
            raise Misconfigured("It dies here.")
        return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IcebergLandings, "land", dies)
        assert pipeline.run() == 1
    assert done == after


def written(pipeline: Pipeline, content: str | bytes, name: str = "large.json") -> Path:
    path = pipeline.inbox / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def numbers(pipeline: Pipeline) -> list[tuple[int, Any]]:
    return [(row["_row"], row["n"]) for row in pipeline.rows()]


def landings(pipeline: Pipeline) -> int:
    with closing(pipeline.wiring.open_catalog("lake")) as catalog:
        return len([each for each in catalog.load_table(TABLE).snapshots() if "lakehead.token" in each.summary])  # type: ignore[operator] # each has one


EACH_ONCE = [(n, n) for n in range(ROWS)]


def test_every_record_lands_once_with_its_number_in_the_whole_object(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, max_object_bytes=LIMIT)
    long = f'{{"n": {ROWS - 2}, "text": "{"y" * 3 * LIMIT}"}}\n'
    path = written(pipeline, "\ufeff" + ndjson(range(ROWS - 2)) + long + f'{{"n": {ROWS - 1}}}')
    small = pipeline.write("small.json", {"n": -1})
    pipeline.configure([path.as_uri(), small])

    assert pipeline.run() == 0

    assert [(row["_uri"], row["_row"], row["n"]) for row in pipeline.rows()] == [
        *((path.as_uri(), n, n) for n in range(ROWS)),
        (small, 0, -1),
    ]
    assert landings(pipeline) == -(-path.stat().st_size // LIMIT)
    with pipeline.state() as state:
        files = state.files.list(pipeline.uuid)
        [first, *_] = [each.unit for each in files if each.unit.startswith(f"{path.as_uri()}#0-")]
        assert int(first.rpartition("-")[2]) <= LIMIT
        assert sum(each.rows for each in files) == ROWS + 1
        assert (
            sum(each.bytes for each in files)
            == path.stat().st_size + Path(pipeline.inbox / "small.json").stat().st_size
        )
        assert {each.unit: each.state for each in state.shards.page(pipeline.uuid)} == dict.fromkeys(
            (path.as_uri(), small), ShardState.COMPLETED
        )


def test_parquet_lands_a_few_row_groups_at_a_time_and_goes_on_with_the_next(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, table={"format": "parquet"}, max_object_bytes=1_500)
    path = pipeline.inbox / "large.parquet"
    pq.write_table(pa.table({"n": pa.array(range(ROWS), pa.int64())}), path, row_group_size=60)
    pipeline.configure([path.as_uri()])

    run_and_die(pipeline, after=2)
    assert 0 < len(numbers(pipeline)) < ROWS
    assert pipeline.run() == 0

    assert numbers(pipeline) == EACH_ONCE
    assert landings(pipeline) > 3


def test_a_pipeline_that_dies_goes_on_where_it_was_whatever_the_limit_is_by_then(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    path = written(pipeline, ndjson(range(ROWS)))
    rows = 0
    for limit, deaths in ((LIMIT, 2), (1_111, 3)):
        pipeline.configure([path.as_uri()], max_object_bytes=limit)
        run_and_die(pipeline, after=deaths)
        assert rows < len(numbers(pipeline)) < ROWS
        rows = len(numbers(pipeline))
        assert numbers(pipeline) == EACH_ONCE[:rows]
    pipeline.configure([path.as_uri()])

    assert pipeline.run() == 0
    assert numbers(pipeline) == EACH_ONCE
    assert landings(pipeline) == 6

    pipeline.configure([path.as_uri()], max_object_bytes=100)
    assert pipeline.run() == 0
    assert landings(pipeline) == 6, "what has landed is not divided once more"


def test_a_lost_state_is_told_by_the_snapshots_how_far_an_object_is(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, max_object_bytes=LIMIT)
    path = written(pipeline, ndjson(range(ROWS)))
    pipeline.configure([path.as_uri()])
    run_and_die(pipeline, after=2)
    for file in tmp_path.glob("state.db*"):
        file.unlink()

    assert pipeline.run() == 0
    assert numbers(pipeline) == EACH_ONCE


def test_a_backfill_goes_on_with_an_object_that_is_begun(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, max_object_bytes=LIMIT)
    path = written(pipeline, ndjson(range(ROWS)))
    pipeline.configure([path.as_uri()])
    run_and_die(pipeline, after=2)

    for _ in range(2):
        assert pipeline.run(Backfill(url=str(pipeline.inbox))) == 0
        assert numbers(pipeline) == EACH_ONCE


def test_it_is_deleted_when_all_of_it_has_landed(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, max_object_bytes=LIMIT, after_landing="delete")
    path = written(pipeline, ndjson(range(ROWS)))
    pipeline.configure([path.as_uri()])
    run_and_die(pipeline, after=3)
    assert path.exists()

    with pytest.MonkeyPatch.context() as patch:
        seen: list[int] = []
        unlink = Path.unlink

        def noted(self: Path, **more: Any) -> None:
            if self == path:
                seen.append(len(numbers(pipeline)))
            unlink(self, **more)

        patch.setattr(Path, "unlink", noted)
        assert pipeline.run() == 0

    assert seen == [ROWS]
    assert not path.exists()
    assert numbers(pipeline) == EACH_ONCE


def test_one_that_is_replaced_before_its_end_is_a_dead_letter_and_nothing_of_the_new_content_lands(
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(tmp_path, max_object_bytes=LIMIT, max_tries=3, retry_delay_seconds=0.1)
    path = written(pipeline, ndjson(range(ROWS)))
    pipeline.configure([path.as_uri()])
    run_and_die(pipeline, after=1)
    rows = numbers(pipeline)
    path.write_text(ndjson(range(1_000, 2_000)))

    assert pipeline.run() == 0

    assert numbers(pipeline) == rows
    with pipeline.state() as state:
        [letter] = state.history.letters_of(pipeline.uuid, [path.as_uri()])
        assert f"and their {len(rows)} rows stay in the table" in letter.reason
        record = state.files.find(pipeline.uuid, path.as_uri())
        assert record is not None
        assert record.state is FileState.DEAD_LETTER


def test_one_with_a_bad_row_in_a_later_part_goes_on_there_when_it_is_replayed_with_bad_rows_rescued(
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(tmp_path, max_object_bytes=LIMIT, max_tries=3, retry_delay_seconds=0.1)
    path = written(pipeline, ndjson(range(ROWS // 2)) + "{nonsense\n" + ndjson(range(ROWS // 2 + 1, ROWS)))
    pipeline.configure([path.as_uri()])

    assert pipeline.run() == 0
    begun = numbers(pipeline)
    assert 0 < len(begun) < ROWS // 2
    assert begun == EACH_ONCE[: len(begun)]
    with pipeline.state() as state:
        [letter] = state.history.letters_of(pipeline.uuid, [path.as_uri()])
        assert f"and their {len(begun)} rows stay in the table" in letter.reason
        assert state.history.revive(pipeline.uuid, path.as_uri())
    table = {"table": TABLE, "format": "ndjson", "bad_rows": "rescue"}
    pipeline.configure([path.as_uri()], tables=[table])

    assert pipeline.run() == 0
    assert numbers(pipeline) == [(n, None if n == ROWS // 2 else n) for n in range(ROWS)]


@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_what_cannot_be_divided_lands_at_once(tmp_path: Path, form: str) -> None:
    pipeline = Pipeline(tmp_path, table={"format": form}, max_object_bytes=100)
    lines = "n\n" + "".join(f"{n}\n" for n in range(ROWS))
    content = lines.encode() if form == "csv" else gzip.compress(ndjson(range(ROWS)).encode())
    pipeline.configure([written(pipeline, content).as_uri()])

    assert pipeline.run() == 0
    assert [row for row, _ in numbers(pipeline)] == list(range(ROWS))
    assert landings(pipeline) == 1
