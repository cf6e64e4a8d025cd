"""`spark.read.format("lakehead")`: objects read in a notebook are what was written."""

import asyncio
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from lakehead.buffer.config import IngestorConfig, ObjectStoreConfig
from lakehead.buffer.ingestor import Ingestor
from lakehead.consume.data_source import LakeheadReader, object_format, register
from lakehead.consume.data_source_objects import find_objects, partitions_of
from lakehead.consume.object_reader import ObjectReader
from lakehead.errors import LakeheadError, Misconfigured
from lakehead.run.environment import spark_settings
from lakehead.storage.open_store import open_store
from lakehead.wire.batch import KeyValueEntry
from tests.servers.seaweed import BUCKET, Seaweed
from tests.support.spark import shared_session
from tests.unit.wire.frames import NOON, SAMPLES, frame

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

OBJECTS = {"a.ndjson": range(3), "deep/b.ndjson": range(3, 5)}
ENTRIES = [KeyValueEntry(b"key-%d" % number, b"\x00value %d" % number) for number in range(20)]


@pytest.fixture(scope="module")
def session(seaweed: Seaweed) -> SparkSession:
    opened = shared_session(spark_settings())
    register(opened, {"s3": seaweed.settings()})
    return opened


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return tmp_path.as_uri() if request.param == "folder" else f"s3://{BUCKET}/{tmp_path.name}"


@pytest.fixture
def put(url: str, seaweed: Seaweed) -> Callable[[str, bytes], None]:
    store = open_store(url, seaweed.settings())

    def stored(key: str, body: bytes) -> None:
        asyncio.run(_put(key, body))

    async def _put(key: str, body: bytes) -> None:
        await store.put(key, body)

    return stored


def load(session: SparkSession, url: str, **options: str) -> DataFrame:
    return session.read.format("lakehead").options(**options).load(url)


def line(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"name {number}", "at": "2024-05-06T07:08:09.123456Z", "price": 0.5 + number}


def test_ndjson_of_a_folder_or_prefix_is_read_as_it_was_written(
    session: SparkSession, url: str, put: Callable[[str, bytes], None]
) -> None:
    for key, numbers in OBJECTS.items():
        put(key, "".join(json.dumps(line(number)) + "\n" for number in numbers).encode())
    put("_hidden/c.ndjson", b"not to be read")

    inferred = load(session, url, format="ndjson").orderBy("_uri", "_row").collect()
    typed = (
        session.read.format("lakehead")
        .schema("id int, price decimal(10,2), at timestamp, _row long, _rescued string")
        .option("format", "ndjson")
        .load([f"{url}/a.ndjson", f"{url}/deep"])
        .orderBy("id")
        .collect()
    )

    expected = [(key, row, line(number)) for key, numbers in OBJECTS.items() for row, number in enumerate(numbers)]
    assert [(row["_uri"].removeprefix(f"{url}/"), row["_row"]) for row in inferred] == [each[:2] for each in expected]
    assert [(row["id"], row["name"], float(row["price"])) for row in inferred] == [
        (each["id"], each["name"], each["price"]) for _, _, each in expected
    ]
    assert {row["_rescued"] for row in inferred} == {None}
    assert [row["price"] for row in typed] == [Decimal(f"{number}.50") for number in range(5)]
    assert typed[0]["at"].astimezone(UTC) == datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)
    assert json.loads(typed[4]["_rescued"]) == {"name": "name 4"}


def test_batches_of_an_ingestor_are_read_as_they_were_ingested(
    session: SparkSession, url: str, seaweed: Seaweed
) -> None:
    async def ingest() -> None:
        where = ObjectStoreConfig(url=url, settings=seaweed.settings())
        async with Ingestor(IngestorConfig(object_store_config=where)) as ingestor:
            for start in (0, 10):
                await ingestor.ingest(ENTRIES[start : start + 10])
                await ingestor.flush()

    asyncio.run(ingest())

    rows = load(session, f"{url}/ingest", format="key_value").collect()

    assert sorted((bytes(row["key"]), bytes(row["value"])) for row in rows) == sorted(
        (entry.key, entry.value) for entry in ENTRIES
    )
    assert len({row["_uri"] for row in rows}) == 2


def test_frames_are_read_with_every_column_of_their_kind(
    session: SparkSession, url: str, put: Callable[[str, bytes], None]
) -> None:
    put("raw-blobs/v1/a.lmbatch", frame(compress=True))
    put("raw-blobs/v1/a.json", b"not to be read")

    rows = load(session, url, format="frames").orderBy("seq").collect()
    chosen = session.read.format("lakehead").option("format", "frames").schema("seq long, labels map<string, string>")

    assert [(row["agent"], row["boot"], row["seq"], row["_row"]) for row in rows] == [
        ("agent-a", "boot-uuid", 10 + number, number) for number in range(7)
    ]
    assert [row["metric"] for row in rows] == [sample["metric"] for sample in SAMPLES]
    assert rows[0]["time_unix_ns"] == NOON
    assert rows[3]["distribution"]["counts"] == [1.0, 2.0, 3.0]
    assert chosen.load(url).orderBy("seq").collect()[1]["labels"] == {"host": "a", "zone": "é"}


def test_csv_is_read_by_its_header_or_in_the_order_of_the_columns(
    session: SparkSession, url: str, put: Callable[[str, bytes], None]
) -> None:
    put("a.csv", b'\xef\xbb\xbfid;name;at\r\n1;"line 1\nline ""2"""; 2024\r\n007;NULL;"NULL"\r\n')
    options = {"format": "csv", "delimiter": ";", "null_text": "NULL"}

    inferred = load(session, url, **options).orderBy("_row").collect()
    typed = session.read.format("lakehead").options(**options).schema("at string, id int, _rescued string")
    numbered = load(session, url, **options, header="false").orderBy("_row").collect()

    assert [(row["id"], row["name"], row["at"], row["_row"]) for row in inferred] == [
        ("1", 'line 1\nline "2"', " 2024", 0),
        ("007", None, "NULL", 1),
    ]
    assert {row["_uri"] for row in inferred} == {f"{url}/a.csv"}
    assert [(row["at"], row["id"], row["_rescued"]) for row in typed.load(url).collect()] == [
        (" 2024", 1, '{"name":"line 1\\nline \\"2\\""}'),
        ("NULL", 7, None),
    ]
    assert [row["column_1"] for row in numbered] == ["id", "1", "007"]


def test_parquet_is_read_as_it_was_written_and_what_spark_lacks_is_text(
    session: SparkSession, url: str, put: Callable[[str, bytes], None]
) -> None:
    table = pa.table(
        {
            "i": pa.array([2**63 - 1, None], pa.int64()),
            "u": pa.array([2**64 - 1, 1], pa.uint64()),
            "d": pa.array([Decimal("1.50"), None], pa.decimal128(38, 2)),
            "f": pa.array([float("nan"), -0.0], pa.float64()),
            "b": pa.array([b"\x00\xff", None]),
            "x": pa.array([b"ab", None], pa.binary(2)),
            "y": pa.array([0, None], pa.date32()),
            "z": pa.array([1, None], pa.timestamp("us", "UTC")),
            "n": pa.array([1, None], pa.timestamp("ns")),
            "t": pa.array([1, None], pa.time64("us")),
            "s": pa.array(
                [{"x": [1, None], "m": [("k", "v")]}, None],
                pa.struct([("x", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.string()))]),
            ),
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=1)
    put("a.parquet", buffer.getvalue())

    one, two = load(session, url, format="parquet").orderBy("_row").collect()

    assert (one["i"], one["u"], one["d"], repr(one["f"])) == (2**63 - 1, 2**64 - 1, Decimal("1.50"), "nan")
    assert (bytes(one["b"]), bytes(one["x"]), str(one["y"])) == (b"\x00\xff", b"ab", "1970-01-01")
    assert one["z"].astimezone(UTC) == datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)
    assert (one["n"], str(one["t"])) == ("1970-01-01 00:00:00.000000001", "00:00:00.000001")
    assert (one["s"]["x"], one["s"]["m"]) == ([1, None], {"k": "v"})
    assert (repr(two["f"]), two["u"], two["s"], two["_row"]) == ("-0.0", 1, None, 1)
    assert {one["_rescued"], two["_rescued"]} == {None}


def test_a_column_that_must_not_be_null_refuses_an_object_that_lacks_it(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(b'{"id":1}\n{"other":2}\n')
    form, reader = object_format({"format": "ndjson"}), ObjectReader({})
    groups = partitions_of(find_objects([str(tmp_path)], form, {}), form, reader)
    rows = LakeheadReader([], form, StructType().add("id", "long", nullable=False), {})

    with pytest.raises(LakeheadError, match=r"a\.ndjson: Column 'id' is required"):
        list(rows.read(InputPartition(groups[0])))


def test_a_corrupt_object_is_named_with_line_and_column(
    session: SparkSession, url: str, put: Callable[[str, bytes], None]
) -> None:
    put("a.ndjson", b'{"id": 1}\n')
    put("bad.ndjson", b'{"id": 1}\n{"id": x}\n')

    frame = session.read.format("lakehead").schema("id long").option("format", "ndjson").load(url)
    with pytest.raises(PySparkException, match=r"bad\.ndjson: [Ll]ine 2, column 8"):
        frame.collect()


def test_a_path_without_objects_is_refused(session: SparkSession, url: str) -> None:
    with pytest.raises(PySparkException, match="nothing to read at"):
        load(session, f"{url}/none", format="ndjson")


def test_large_objects_are_split_and_small_ones_share_a_task(tmp_path: Path) -> None:
    (tmp_path / "large.ndjson").write_text("".join(f'{{"id": {number}}}\n' for number in range(1_000)))
    for number in range(3):
        (tmp_path / f"small-{number}.ndjson").write_text(f'{{"id": {number}}}\n')
    form, reader = object_format({"format": "ndjson"}), ObjectReader({})

    groups = partitions_of(find_objects([str(tmp_path)], form, {}), form, reader, task_bytes=4_000)

    rows = LakeheadReader([], form, StructType().add("id", "long").add("_row", "long"), {})
    read = [row for group in groups for batch in rows.read(InputPartition(group)) for row in batch.to_pylist()]
    assert len(groups) > 3
    assert read[:1_000] == [{"id": number, "_row": number} for number in range(1_000)]
    assert read[1_000:] == [{"id": number, "_row": 0} for number in range(3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option format to one of"),
        ({"format": "csv", "delimiter": "||"}, "one character"),
        ({"format": "csv", "delimeter": ";"}, "no option 'delimeter'"),
        ({"format": "key_value", "value": "xml"}, "option value to one of raw, json"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        object_format(options)
