"""S3 Inventory reports of a bucket: the identity manifests that they list, read in bounded memory.

A report is a day old or older, and may miss what was written shortly before it was made. So it finds batches without a
listing of the bucket, and proves nothing about what was accepted since.
"""

import asyncio
import csv
import tempfile
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import IO, Literal
from urllib.parse import unquote_plus

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lakehead.errors import Misconfigured, Unavailable
from lakehead.maintain.reconcile_report import ProblemKind, ReconcileReport
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.errors import Unreadable

PART_BYTES = 8 << 20
PAGE = 1_000
MAX_MANIFEST_BYTES = 16 << 20
MAX_LINE_BYTES = 64 << 10

SAFE_SECONDS = 48 * 3600.0
"""What is accepted this long before a report was begun is in it: S3 promises no more than eventual consistency."""


class _File(msgspec.Struct, frozen=True):
    key: str
    size: int
    checksum: str = msgspec.field(name="MD5checksum", default="")


class InventoryManifest(msgspec.Struct, frozen=True, rename="camel"):
    """The `manifest.json` of a report, as far as it is needed."""

    source_bucket: str
    creation_timestamp: str
    """Milliseconds since the Unix epoch."""

    file_format: Literal["CSV", "Parquet", "ORC"]
    file_schema: str
    files: tuple[_File, ...]

    @property
    def created_at_unix_ns(self) -> int:
        """When the report was begun."""
        return int(self.creation_timestamp) * 1_000_000


@dataclass(frozen=True, slots=True)
class _Row:
    key: str
    is_current: bool
    is_delete_marker: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """One report."""

    store: Store
    """The bucket that has the report, from its root: the keys of its files are those of the bucket."""

    manifest: InventoryManifest
    prefix: str = ""
    """The authority's prefix in the bucket that was listed."""

    @property
    def complete_through_unix_ns(self) -> int:
        """What was accepted before this time is in it."""
        return self.manifest.created_at_unix_ns - int(SAFE_SECONDS * 1e9)

    async def pages(self, report: ReconcileReport) -> AsyncIterator[Sequence[str]]:
        """Yield the keys of identity manifests, relative to the authority's prefix.

        A delete marker on one is a problem in the report: it hides an accepted batch. Raises `Unavailable`, and
        `Unreadable` if a file of the report is damaged.
        """
        for file in self.manifest.files:
            page: list[str] = []
            async for rows in self._rows(file):
                for row in rows:
                    if (key := self._relative(row.key)) is None or not row.is_current:
                        continue
                    if row.is_delete_marker:
                        text = f"{key} has a delete marker, so that its batch looks as if never accepted. Remove it."
                        report.found(ProblemKind.DELETED, key, text)
                        continue
                    page.append(key)
                    if len(page) == PAGE:
                        yield page
                        page = []
            if page:
                yield page

    def _relative(self, key: str) -> str | None:
        folder = f"{self.prefix}/" if self.prefix else ""
        if not key.startswith(folder) or keys.parse_accepted(key.removeprefix(folder)) is None:
            return None
        return key.removeprefix(folder)

    async def _rows(self, file: _File) -> AsyncIterator[Sequence[_Row]]:
        if self.manifest.file_format == "CSV":
            names = [name.strip().lower() for name in self.manifest.file_schema.split(",")]
            async for lines in _lines(self._parts(file), file.key):
                yield [_csv_row(fields, names, file.key) for fields in csv.reader(lines)]
            return
        with tempfile.TemporaryFile() as copy:
            async for part in self._parts(file):
                await asyncio.to_thread(copy.write, part)
            for rows in _parquet_rows(copy, file.key):
                yield rows

    async def _parts(self, file: _File) -> AsyncIterator[bytes]:
        """The bytes of a file, checked as far as the manifest tells their hash."""
        digest, start = md5(usedforsecurity=False), 0
        while start < file.size:
            part = await self.store.get(file.key, start=start, end=start + PART_BYTES)
            if part is None or not part.body:
                raise Unavailable(f"The file {file.key} of the inventory does not exist, or is not whole.")
            digest.update(part.body)
            start += len(part.body)
            yield part.body
        if file.checksum and digest.hexdigest() != file.checksum.lower():
            raise Unreadable(f"The file {file.key} of the inventory has another MD5 than its manifest says.")


def decode_manifest(body: bytes, key: str) -> InventoryManifest:
    """Decode the `manifest.json` of a report. Raises `Misconfigured` if it is none that can be used."""
    try:
        found = msgspec.json.decode(body, type=InventoryManifest)
        int(found.creation_timestamp)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Misconfigured(f"{key} is not the manifest.json of an S3 Inventory report ({error}).") from None
    if found.file_format == "ORC":
        raise Misconfigured(f"{key} is of a report in ORC. Configure the inventory to write CSV or Parquet.")
    if found.file_format == "CSV" and "key" not in found.file_schema.lower():
        raise Misconfigured(f"{key} is of a report without the keys of objects: {found.file_schema[:200]!r}.")
    return found


async def _lines(parts: AsyncIterator[bytes], key: str) -> AsyncIterator[list[str]]:
    """The lines of a gzip file, some at a time. Keys are URL-encoded, so that no field has a line break."""
    unpacked, rest = zlib.decompressobj(wbits=31), b""
    try:
        async for part in parts:
            packed = part
            while packed:
                rest += unpacked.decompress(packed, PART_BYTES)
                packed = unpacked.unconsumed_tail
                if unpacked.eof and unpacked.unused_data:  # gzip files may have several members
                    packed, unpacked = unpacked.unused_data, zlib.decompressobj(wbits=31)
                *whole, rest = rest.split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise Unreadable(f"The file {key} of the inventory has a line of more than {MAX_LINE_BYTES} bytes.")
                if whole:
                    yield [line.decode() for line in whole if line.strip()]
    except (zlib.error, UnicodeDecodeError) as error:
        raise Unreadable(f"The file {key} of the inventory cannot be read ({error}).") from None
    if not unpacked.eof:
        raise Unreadable(f"The file {key} of the inventory ends too early.")
    if rest.strip():
        yield [rest.decode()]


def _csv_row(fields: Sequence[str], names: Sequence[str], key: str) -> _Row:
    if len(fields) != len(names):
        raise Unreadable(f"A line of {key} has {len(fields)} fields; its manifest names {len(names)}.")
    found = dict(zip(names, fields, strict=True))
    return _Row(
        unquote_plus(found["key"]),
        found.get("islatest", "true").lower() != "false",
        found.get("isdeletemarker", "").lower() == "true",
    )


def _parquet_rows(file: IO[bytes], key: str) -> Iterator[Sequence[_Row]]:
    file.seek(0)
    try:
        with pq.ParquetFile(file) as parquet:
            wanted = ("key", "is_latest", "is_delete_marker")
            columns = [name for name in wanted if name in parquet.schema_arrow.names]
            if "key" not in columns:
                raise Unreadable(f"The file {key} of the inventory has no column key.")
            for batch in parquet.iter_batches(PAGE, columns=columns):
                rows = batch.to_pylist()
                yield [
                    _Row(_text(row["key"]), row.get("is_latest") is not False, row.get("is_delete_marker") is True)
                    for row in rows
                ]
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"The file {key} of the inventory cannot be read ({error}).") from None


def _text(key: str | bytes) -> str:
    """A key, which has no percent sign of its own if it is that of an identity manifest."""
    return unquote_plus(key if isinstance(key, str) else key.decode())
