"""What gateways accept lands: from acceptance through the queue to the tables, each record exactly once."""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakehead.consume.messages import uri_in_store
from lakehead.lake.catalog import open_catalog
from lakehead.lake.tables import create_table
from lakehead.spark.settings import EMBEDDED, embedded_catalog
from lakehead.wire.acceptance_keys import raw_blob
from lakehead.wire.conflict_records import OverlapManifest
from lakehead.wire.frame import frame_sha256
from tests.accepted import DAY, LOGS, NOON, SAMPLES, Gateway, consumer_of, logs, samples
from tests.consumer import Consumer
from tests.lakehouse import Lakehouse
from tests.support.commands import lakehead_command
from tests.support.spark import shared_session
from tests.unit.wire.frames import with_number

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # the very first start fetches jars


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    return shared_session(Lakehouse.settings(tmp_path_factory.mktemp("spark")))


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    (tmp_path / "store").mkdir()
    return Gateway(tmp_path / "store")


@pytest.fixture
def consumer(tmp_path: Path, gateway: Gateway) -> Consumer:
    return consumer_of(tmp_path, gateway)


def test_what_was_accepted_lands_once_by_kind_whatever_batches_its_records_come_in(
    gateway: Gateway, consumer: Consumer, spark: SparkSession
) -> None:
    short, long, other, log = gateway.accept(samples(10, 20), samples(10, 25), samples(10, 12, boot="2"), logs(0, 4))
    gateway.enqueue([short, long, log], [short, other])

    assert consumer.run(spark) == 0

    found = consumer.rows(SAMPLES)
    ids = Counter(zip(*(found[name].to_pylist() for name in ("agent", "boot", "seq")), strict=True))
    assert ids == Counter(
        [*(("agent/a", "boot-1", n) for n in range(10, 26)), *(("agent/a", "2", n) for n in range(10, 13))]
    )
    rows = {row["seq"]: row for row in found.to_pylist() if row["boot"] == "boot-1"}
    assert [rows[n]["value"] for n in range(10, 26)] == [float(n) for n in range(10, 26)]
    assert all(row["labels"] == [("n", str(n))] for n, row in rows.items())
    assert all(row["time_unix_ns"] == NOON + n * DAY // 8 + 1 for n, row in rows.items())
    assert sorted(consumer.rows(LOGS)["body"].to_pylist()) == [f"line {n}" for n in range(5)]

    landings = consumer.landings(SAMPLES), consumer.landings(LOGS)
    gateway.enqueue([long, log, short, other])
    assert consumer.run(spark) == 0
    assert (consumer.landings(SAMPLES), consumer.landings(LOGS)) == landings


def test_the_rest_of_a_batch_lands_after_another_has_brought_some_of_its_records(
    gateway: Gateway, consumer: Consumer, spark: SparkSession
) -> None:
    middle, whole, inside = gateway.accept(samples(13, 15), samples(10, 25), samples(11, 24))
    for each in (middle, whole, inside):
        gateway.enqueue([each])
        assert consumer.run(spark) == 0

    found = consumer.rows(SAMPLES).sort_by("seq")
    assert found["seq"].to_pylist() == list(range(10, 26))
    of_whole = [f"{gateway.url}/{each.raw_blob_key}" for each in (middle, whole)]
    assert [of_whole.index(uri) for uri in found["_uri"].to_pylist()] == [1] * 3 + [0] * 3 + [1] * 10
    assert found["_row"].to_pylist() == [0, 1, 2, 0, 1, 2, *range(6, 16)]


def test_tables_of_records_are_partitioned_by_day_and_sorted_and_spark_reads_them(
    gateway: Gateway, consumer: Consumer, spark: SparkSession
) -> None:
    gateway.enqueue(gateway.accept(samples(10, 25), logs(0, 4)))
    assert consumer.run(spark) == 0

    with closing(open_catalog(EMBEDDED, embedded_catalog(consumer.lakehouse))) as catalog:
        table = catalog.load_table(SAMPLES)
        assert str(table.spec().fields[0].transform) == "day"
        assert [table.schema().find_column_name(each.source_id) for each in table.sort_order().fields] == [
            "metric",
            "time",
        ]
        days = {task.file.partition[0] for task in table.scan().plan_files()}
        assert days == {(NOON + n * DAY // 8 + 1) // DAY for n in range(10, 26)}
        for task in table.scan().plan_files():
            metrics = pq.read_table(task.file.file_path.removeprefix("file://"))["metric"].to_pylist()
            assert metrics == sorted(metrics)
        place = table.metadata_location
    rows = spark.read.format("iceberg").load(place).where("labels['n'] = '12'").select("seq", "value", "time_unix_ns")
    assert [tuple(each) for each in rows.collect()] == [(12, 12.0, NOON + 12 * DAY // 8 + 1)]


def test_a_frame_that_is_not_what_was_accepted_is_a_dead_letter_until_it_is_mended_and_costs_the_others_nothing(
    gateway: Gateway, consumer: Consumer, spark: SparkSession, tmp_path: Path
) -> None:
    """The good batch overlaps the damaged ones: what they would have brought first, it brings."""
    damaged, missing, good = gateway.accept(samples(10, 20), samples(10, 22), samples(15, 25))
    (tmp_path / "store" / damaged.raw_blob_key).write_bytes(samples(10, 21))
    (tmp_path / "store" / missing.raw_blob_key).unlink()
    gateway.enqueue([damaged, missing, good])

    assert consumer.run(spark) == 0

    assert sorted(consumer.rows(SAMPLES)["seq"].to_pylist()) == list(range(15, 26))
    letters = {each.unit: each for each in consumer.letters(SAMPLES)}
    units = [uri_in_store(gateway.url, each.key) for each in (damaged, missing)]
    assert letters.keys() == set(units)
    assert damaged.frame_sha256 in letters[units[0]].reason
    assert letters[units[1]].reason == f"Its frame {gateway.url}/{missing.raw_blob_key}: It does not exist."

    gateway.store_frame(samples(10, 20))
    gateway.store_frame(samples(10, 22))
    for unit in units:
        done = lakehead_command("dead-letters", "replay", consumer.config(), unit)
        assert done.returncode == 0, done.stderr
    assert consumer.run(spark) == 0

    assert sorted(consumer.rows(SAMPLES)["seq"].to_pylist()) == list(range(10, 26))


def test_a_batch_that_comes_again_after_the_state_forgot_its_unit_brings_no_record(
    gateway: Gateway, consumer: Consumer, spark: SparkSession
) -> None:
    """Units are forgotten after the deduplication window, the numbers of landed records never."""
    accepted = gateway.accept(samples(10, 20), logs(0, 4))
    gateway.enqueue(accepted)
    assert consumer.run(spark) == 0
    with closing(sqlite3.connect(consumer.folder / "state.sqlite")) as state, state:
        assert state.execute("DELETE FROM lakehead_shards").rowcount == 2

    gateway.enqueue(accepted)
    assert consumer.run(spark) == 0

    assert sorted(consumer.rows(SAMPLES)["seq"].to_pylist()) == list(range(10, 21))
    assert consumer.rows(LOGS).num_rows == 5


def values(consumer: Consumer) -> dict[int, float]:
    found = consumer.rows(SAMPLES)
    numbers = found["seq"].to_pylist()
    assert len(numbers) == len(set(numbers)), "a record has landed twice"
    return dict(zip(numbers, found["value"].to_pylist(), strict=True))


def other_batches(overlap: OverlapManifest) -> list[tuple[str, str, tuple[tuple[int, int], ...], str]]:
    return [(each.accepted_manifest_key, each.frame_sha256, each.ranges, each.not_compared) for each in overlap.others]


@pytest.mark.parametrize("in_one_landing", [True, False], ids=["together", "one after the other"])
def test_equal_records_of_overlapping_batches_are_dropped_and_others_are_named_in_the_quarantine(
    gateway: Gateway,
    consumer: Consumer,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    *,
    in_one_landing: bool,
) -> None:
    """Samples whose values differ, samples that are equal, and logs of two machines with one identity."""
    short, long = gateway.accept(samples(10, 20), samples(10, 25, other=(12, 13, 17, 23)))
    equal = gateway.accept(samples(10, 20, boot="2"), samples(10, 25, boot="2"))
    log, other_log = gateway.accept(logs(0, 4), logs(3, 6, said="another"))
    if in_one_landing:
        gateway.enqueue([short, long, *equal, log, other_log])
    else:
        gateway.enqueue([short, equal[0], log])
        assert consumer.run(spark) == 0
        gateway.enqueue([long, equal[1], other_log])

    assert consumer.run(spark) == 0

    assert len(consumer.rows(SAMPLES)) == 32
    found = {(row["boot"], row["seq"]): row["value"] for row in consumer.rows(SAMPLES).to_pylist()}
    assert found == {(b, n): -n if (b, n) == ("boot-1", 23) else n for b in ("boot-1", "2") for n in range(10, 26)}
    assert sorted(consumer.rows(LOGS)["body"].to_pylist()) == [
        "another 5",
        "another 6",
        *(f"line {n}" for n in range(5)),
    ]

    overlaps = gateway.overlaps()
    assert overlaps.keys() == {long.key, other_log.key}
    overlap = overlaps[long.key]
    assert (overlap.frame_sha256, overlap.raw_blob_key) == (long.frame_sha256, long.raw_blob_key)
    assert overlap.ranges == ((12, 13), (17, 17))
    assert other_batches(overlap) == [(short.key, short.frame_sha256, ((12, 13), (17, 17)), "")]
    assert other_batches(overlaps[other_log.key]) == [(log.key, log.frame_sha256, ((3, 4),), "")]
    assert gateway.is_kept(long)
    assert gateway.is_kept(other_log)
    assert not gateway.is_kept(short)
    ended = [line for line in capsys.readouterr().out.splitlines() if '"pipeline_ended"' in line]
    counts = json.loads(ended[-1])["payload"]["counts"]
    assert (counts["overlapping"], counts["overlaps_quarantined"], counts["records_quarantined"]) == (8 + 11, 2, 3 + 2)


def test_of_three_batches_each_is_compared_with_the_one_that_landed(
    gateway: Gateway, consumer: Consumer, spark: SparkSession
) -> None:
    """The last equals the first where the second differs, and the second landed only what the first has not."""
    first, second, third = gateway.accept(
        samples(1, 10), samples(5, 15, other=range(5, 16)), samples(8, 20, other=(9, *range(14, 21)))
    )
    for each in (first, second, third):
        gateway.enqueue([each])
        assert consumer.run(spark) == 0

    assert values(consumer) == {n: n if n <= 10 else -n for n in range(1, 21)}
    overlaps = gateway.overlaps()
    assert overlaps.keys() == {second.key, third.key}
    assert other_batches(overlaps[second.key]) == [(first.key, first.frame_sha256, ((5, 10),), "")]
    assert {other[0]: other[2] for other in other_batches(overlaps[third.key])} == {
        first.key: ((9, 9),),
        second.key: ((11, 13),),
    }

    with closing(sqlite3.connect(consumer.folder / "state.sqlite")) as state, state:
        assert state.execute("DELETE FROM lakehead_shards").rowcount == 3
    gateway.enqueue([third], [second, first])
    assert consumer.run(spark) == 0

    assert gateway.overlaps() == overlaps, "years later each is compared with what landed, also with itself"
    assert len(values(consumer)) == 20


def test_a_batch_whose_other_side_is_missing_or_damaged_is_in_quarantine_as_not_compared(
    gateway: Gateway, consumer: Consumer, spark: SparkSession, tmp_path: Path
) -> None:
    gone, spoilt = gateway.accept(samples(10, 20), samples(30, 40))
    gateway.enqueue([gone, spoilt])
    assert consumer.run(spark) == 0
    (tmp_path / "store" / gone.raw_blob_key).unlink()
    (tmp_path / "store" / spoilt.raw_blob_key).write_bytes(samples(30, 41))
    later = gateway.accept(samples(10, 25), samples(35, 45))
    gateway.enqueue(later)

    assert consumer.run(spark) == 0

    assert sorted(values(consumer)) == [*range(10, 26), *range(30, 46)]
    overlaps = gateway.overlaps()
    [(_, sha256, ranges, reason)] = other_batches(overlaps[later[0].key])
    assert (sha256, ranges) == (gone.frame_sha256, ((10, 20),))
    assert reason == f"The frame {gone.raw_blob_key} does not exist."
    [(_, _, ranges, reason)] = other_batches(overlaps[later[1].key])
    assert (ranges, "It is not the frame that was accepted" in reason) == (((35, 40),), True)


def test_a_frame_of_a_newer_version_stops_the_pipeline_and_is_no_dead_letter(
    gateway: Gateway, consumer: Consumer, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an older consumer meets it: the manifest has the hash of what a newer gateway stored."""
    newer = with_number(samples(10, 20), 8, 2, 9)
    [manifest] = gateway.accept(samples(10, 20))
    sha256 = frame_sha256(newer)
    manifest = msgspec.structs.replace(manifest, frame_sha256=sha256, raw_blob_key=raw_blob(sha256))
    gateway.store_frame(newer)
    gateway.enqueue([manifest])

    assert consumer.run(spark) == 1

    assert "its wire version is 9" in capsys.readouterr().out
    assert consumer.rows(SAMPLES).num_rows == 0
    assert consumer.letters(SAMPLES) == []


def test_a_table_with_other_types_is_refused_at_the_start(
    gateway: Gateway, consumer: Consumer, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else each batch would become a dead letter of its own."""
    gateway.enqueue(gateway.accept(samples(10, 20)))
    consumer.lakehouse.mkdir()
    with closing(open_catalog(EMBEDDED, embedded_catalog(consumer.lakehouse))) as catalog:
        create_table(catalog, SAMPLES, pa.schema([("time", pa.string()), ("value", pa.float64())]))

    assert consumer.run(spark) == 1

    assert "The table metrics.samples cannot hold the records of frames. Column 'time'" in capsys.readouterr().out
    assert consumer.letters(SAMPLES) == []
