"""Reports of S3 Inventory are read as S3 writes them, and what is damaged is never half a report."""

import gzip
import io
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehead.wire.errors import Unreadable
from lakehead.wire.s3_inventory import (
    MAX_LINE,
    PAGE,
    InventoryFile,
    InventoryManifest,
    InventoryObject,
    decode_manifest,
    inventory_objects,
)

SCHEMA = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag"
AT = 1_760_000_000_000_000_000


def manifest(file_format: str = "CSV", schema: str = SCHEMA, **others: object) -> bytes:
    """As the documentation of S3 shows it."""
    return msgspec.json.encode(
        {
            "sourceBucket": "lake",
            "destinationBucket": "arn:aws:s3:::reports",
            "version": "2016-11-30",
            "creationTimestamp": "1760000000000",
            "fileFormat": file_format,
            "fileSchema": schema,
            "files": [{"key": "lake/all/data/1.csv.gz", "size": 3, "MD5checksum": "F11166069F1990ABEB9C97ACE9CDFABC"}],
            **others,
        }
    )


def csv_file(*rows: str) -> io.BytesIO:
    return io.BytesIO(gzip.compress("".join(f"{row}\n" for row in rows).encode()))


def rows_of(file: io.BytesIO, body: bytes | None = None) -> list[InventoryObject]:
    return [row for page in inventory_objects(file, decode_manifest(body or manifest())) for row in page]


def test_a_manifest_names_its_files_and_columns() -> None:
    found = decode_manifest(manifest())

    assert found == InventoryManifest(
        source_bucket="lake",
        file_format="CSV",
        columns=("Bucket", "Key", "VersionId", "IsLatest", "IsDeleteMarker", "Size", "LastModifiedDate", "ETag"),
        created_ms=1_760_000_000_000,
        files=(InventoryFile("lake/all/data/1.csv.gz", 3, "f11166069f1990abeb9c97ace9cdfabc"),),
    )


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        manifest("ORC"),
        manifest(schema="Bucket, Size"),
        manifest(creationTimestamp="soon"),
        manifest(creationTimestamp=None),
        manifest(files=[{"size": 1}]),
    ],
)
def test_what_is_no_manifest_or_tells_no_keys_is_refused(body: bytes) -> None:
    with pytest.raises(Unreadable):
        decode_manifest(body)


def test_keys_of_csv_are_decoded_and_old_versions_left_out() -> None:
    file = csv_file(
        '"lake","a%2Bb/agent%3D61+x%20y.json","v","true","false","12","2025-10-09T08:53:20.000Z","e"',
        '"lake","old","v","false","false","12","2025-10-09T08:53:20.000Z","e"',
        '"lake","deleted","v","true","true","","2025-10-09T08:53:20.000Z",""',
        '"lake","%C3%A9","v","true","false","","",""',
    )

    assert rows_of(file) == [
        InventoryObject("a+b/agent=61 x y.json", 12, AT),
        InventoryObject("deleted", None, AT, is_delete_marker=True),
        InventoryObject("é", None, None),
    ]


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_parquet_has_the_same_objects_with_plain_keys(unit: str) -> None:
    at = pa.array([datetime.fromtimestamp(AT // 10**9, UTC)] * 3, pa.timestamp(unit, "UTC"))
    table = pa.table(
        {
            "bucket": ["lake"] * 3,
            "key": ["a%20b", "old", "deleted"],
            "is_latest": [True, False, True],
            "is_delete_marker": [False, False, True],
            "size": [12, 1, None],
            "last_modified_date": at,
        }
    )
    file = io.BytesIO()
    pq.write_table(table, file)
    file.seek(0)

    assert rows_of(file, manifest("Parquet", "message s3.inventory {}")) == [
        InventoryObject("a%20b", 12, AT),
        InventoryObject("deleted", None, AT, is_delete_marker=True),
    ]


def test_a_file_of_several_gzip_members_is_read_to_its_end() -> None:
    members = [csv_file(f'"lake","k{number}"').getvalue() for number in range(3)]

    found = rows_of(io.BytesIO(b"".join(members)), manifest(schema="Bucket, Key"))

    assert [each.key for each in found] == ["k0", "k1", "k2"]


def test_many_rows_come_in_pages() -> None:
    body = manifest(schema="Bucket, Key")
    file = csv_file(*(f'"lake","k{number}"' for number in range(PAGE + 1)))

    assert [len(page) for page in inventory_objects(file, decode_manifest(body))] == [PAGE, 1]


@pytest.mark.parametrize(
    "file",
    [
        io.BytesIO(b"no gzip"),
        io.BytesIO(csv_file('"lake","a","v","true","false","1","",""' * 50).getvalue()[:-9]),
        csv_file('"lake","a"'),
        csv_file('"lake","a","v","true","false","many","",""'),
        csv_file('"lake","a","v","true","false","1","yesterday",""'),
        csv_file('"lake","%FF","v","true","false","1","",""'),
        csv_file('"lake","' + "a" * MAX_LINE + '","v","true","false","1","",""'),
        csv_file(*['"lake'] * 100_000),
    ],
)
def test_a_damaged_file_is_refused(file: io.BytesIO) -> None:
    with pytest.raises(Unreadable):
        rows_of(file)


def test_a_damaged_parquet_file_or_one_without_keys_is_refused() -> None:
    body = manifest("Parquet", "message s3.inventory {}")
    file = io.BytesIO()
    pq.write_table(pa.table({"bucket": ["lake"]}), file)

    for broken in (io.BytesIO(b"PAR1"), io.BytesIO(file.getvalue()), io.BytesIO(file.getvalue()[:-4])):
        with pytest.raises(Unreadable):
            rows_of(broken, body)
