"""S3 Inventory reports: a manifest that names data files, and data files that list the objects of a bucket.

Reads CSV (gzip) and Parquet, in bounded memory. Only what is current is returned, and that may be a delete marker:
older versions are left out.
"""

import binascii
import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import BinaryIO
from urllib.parse import unquote_plus

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lakehead.wire.errors import Unreadable

PAGE = 1_000
"""Objects that are returned at once."""

MAX_LINE = 64 << 10
"""Characters of a line of CSV: a key has 1024 bytes at most."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_READ = "Let S3 write a new report."
_PARQUET_COLUMNS = ("key", "size", "last_modified_date", "is_latest", "is_delete_marker")


@dataclass(frozen=True, slots=True)
class InventoryFile:
    """One data file of a report."""

    key: str
    """In the bucket to which S3 writes reports."""

    size: int
    md5: str
    """Of its bytes, in lowercase hex."""


@dataclass(frozen=True, slots=True)
class InventoryManifest:
    """What a report consists of."""

    source_bucket: str
    file_format: str
    """`CSV` or `Parquet`."""

    columns: tuple[str, ...]
    """The columns of CSV files, in order; empty for Parquet, whose files name them."""

    created_ms: int
    """When S3 began to list the bucket, in milliseconds since the Unix epoch."""

    files: tuple[InventoryFile, ...]


@dataclass(frozen=True, slots=True)
class InventoryObject:
    """An object, as it was when the report was made."""

    key: str
    """In the source bucket, decoded."""

    size: int | None
    """In bytes; None if the report does not tell."""

    modified_ns: int | None
    """When it was stored, by the store's clock; None if the report does not tell."""

    is_delete_marker: bool = False
    """Whether there is no object any more: a delete marker hides it. The report must have the column, else none is."""


class _DataFile(msgspec.Struct, frozen=True):
    key: str
    size: int = 0
    md5: str = msgspec.field(name="MD5checksum", default="")


class _Manifest(msgspec.Struct, frozen=True, rename="camel"):
    source_bucket: str
    file_format: str
    file_schema: str
    files: tuple[_DataFile, ...]
    creation_timestamp: str


def decode_manifest(body: bytes) -> InventoryManifest:
    """Decode the `manifest.json` of a report. Raises `Unreadable` if it is none, or of a format that is not read."""
    try:
        found = msgspec.json.decode(body, type=_Manifest)
        created_ms = int(found.creation_timestamp)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unreadable(f"This is not the manifest of an S3 Inventory report ({error}).") from None
    columns: tuple[str, ...] = ()
    if found.file_format == "CSV":
        columns = tuple(each.strip() for each in found.file_schema.split(","))
        if "key" not in map(str.lower, columns):
            raise Unreadable("The S3 Inventory report does not tell the keys of objects. " + _READ)
    elif found.file_format != "Parquet":
        raise Unreadable(
            f"The S3 Inventory report has the format {found.file_format[:40]!r}. Configure it as CSV or Parquet."
        )
    return InventoryManifest(
        source_bucket=found.source_bucket,
        file_format=found.file_format,
        columns=columns,
        created_ms=created_ms,
        files=tuple(InventoryFile(each.key, each.size, each.md5.lower()) for each in found.files),
    )


def inventory_objects(file: BinaryIO, manifest: InventoryManifest) -> Iterator[Sequence[InventoryObject]]:
    """Yield the objects of one data file, page by page. Raises `Unreadable` if it is damaged."""
    rows = _parquet_rows(file) if manifest.file_format == "Parquet" else _csv_rows(file, manifest.columns)
    page: list[InventoryObject] = []
    for row in rows:
        page.append(row)
        if len(page) == PAGE:
            yield page
            page = []
    if page:
        yield page


def _csv_rows(file: BinaryIO, columns: Sequence[str]) -> Iterator[InventoryObject]:
    places = {name.lower(): number for number, name in enumerate(columns)}

    def cell(row: Sequence[str], name: str) -> str:
        return row[places[name]] if name in places else ""

    try:
        with gzip.open(file) as unpacked, io.TextIOWrapper(unpacked, encoding="utf-8", newline="") as text:
            for row in csv.reader(_lines(text)):
                if not row:
                    continue  # an empty line
                if len(row) != len(columns):
                    raise Unreadable(f"A row of the S3 Inventory report has {len(row)} columns, not {len(columns)}.")
                if cell(row, "islatest").lower() == "false":
                    continue
                size, modified = cell(row, "size"), cell(row, "lastmodifieddate")
                yield InventoryObject(
                    # In CSV, and only there, keys are percent-encoded.
                    key=unquote_plus(cell(row, "key"), errors="strict"),
                    size=int(size) if size else None,
                    modified_ns=_ns(datetime.fromisoformat(modified)) if modified else None,
                    is_delete_marker=cell(row, "isdeletemarker").lower() == "true",
                )
    except (OSError, EOFError, ValueError, csv.Error, zlib.error, binascii.Error) as error:
        raise Unreadable(f"A file of the S3 Inventory report cannot be read ({error}). {_READ}") from error


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    """The lines of a file, none of which is held in memory if it has no end."""
    while line := text.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise Unreadable(f"A line of the S3 Inventory report has more than {MAX_LINE} characters. {_READ}")
        yield line


def _parquet_rows(file: BinaryIO) -> Iterator[InventoryObject]:
    try:
        found = pq.ParquetFile(file)
        names = [name for name in _PARQUET_COLUMNS if name in found.schema_arrow.names]
        if "key" not in names:
            raise Unreadable("The S3 Inventory report does not tell the keys of objects. " + _READ)
        for batch in found.iter_batches(batch_size=PAGE, columns=names):
            for row in batch.to_pylist():
                if row.get("is_latest") is False:
                    continue
                modified = row.get("last_modified_date")
                yield InventoryObject(
                    key=row["key"] if isinstance(row["key"], str) else row["key"].decode(),
                    size=row.get("size"),
                    modified_ns=None if modified is None else _ns(modified),
                    is_delete_marker=row.get("is_delete_marker") is True,
                )
    except (OSError, ValueError, AttributeError, pa.ArrowException) as error:
        raise Unreadable(f"A file of the S3 Inventory report cannot be read ({error}). {_READ}") from error


def _ns(at: datetime | int) -> int:
    """Nanoseconds since the Unix epoch. A number is in milliseconds; a time without a zone is in UTC."""
    if isinstance(at, int):
        return at * 1_000_000
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return (at - _EPOCH) // timedelta(microseconds=1) * 1_000
