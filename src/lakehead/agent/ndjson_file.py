"""Records in a file of JSON lines: checked as a whole, and then read again batch by batch."""

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import BinaryIO

import msgspec
import pyarrow as pa

from lakehead.agent.errors import BadRecord
from lakehead.agent.plain_records import PlainRecord, record_batch
from lakehead.errors import Misconfigured
from lakehead.wire.record_schemas import FrameKind

MAX_LINE_BYTES = 16 << 20
"""The longest line. A record of this size would not fit into a frame that gateways take."""


class BadLine(Misconfigured):
    """Fix the line: it is not a record of its kind. Nothing of its batch was sent."""

    def __init__(self, name: str, line: int, reason: str) -> None:
        super().__init__(f"{name}, line {line:,}: {reason}")
        self.line = line
        """Its number, from 1."""


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """What a file had when each of its lines was found to be a record."""

    records: int
    after_batches: tuple[bytes, ...]
    """The hash of its bytes up to the end of each batch, of the last to the last record."""

    @property
    def content_id(self) -> str:
        """The same for the same bytes, in however many batches; 32 hex digits. Empty lines at the end do not count."""
        return self.after_batches[-1].hex()[:32] if self.after_batches else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NdjsonFile:
    """A file with one record of a kind in each line, as a JSON object. Empty lines are left out."""

    file: BinaryIO
    name: str
    """What messages call it."""

    kind: FrameKind
    batch_records: int
    """How many records a batch has. The last may have less."""

    def check(self) -> CheckedFile:
        """Read the whole file. Raises `BadLine` for the first line that is no record."""
        records, after_batches = 0, []
        for batch, digest in self._read():
            records += batch.num_rows
            after_batches.append(digest)
        return CheckedFile(records, tuple(after_batches))

    def batches(self, checked: CheckedFile) -> Iterator[pa.RecordBatch]:
        """Yield the records again. Raises `Misconfigured` before it yields anything else than what was checked."""
        number = 0
        for number, (batch, digest) in enumerate(self._read(), 1):
            if checked.after_batches[number - 1 : number] != (digest,):
                raise self._changed()
            yield batch
        if number != len(checked.after_batches):
            raise self._changed()

    def _changed(self) -> Misconfigured:
        return Misconfigured(f"{self.name} was changed while it was sent. Send a file that nobody writes to any more.")

    def _read(self) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """Yield each batch, and the hash of the file up to its end."""
        if not self.file.seekable():
            raise Misconfigured(f"{self.name} cannot be read twice, as a pipe cannot. Write it to a file first.")
        self.file.seek(0)
        hashed = sha256()
        records: list[PlainRecord] = []
        lines: list[int] = []
        digest = b""
        for number, line in enumerate(iter(self._line, b""), 1):
            if len(line) > MAX_LINE_BYTES:
                raise BadLine(self.name, number, f"It has more than {MAX_LINE_BYTES:,} bytes.")
            hashed.update(line)
            if not line.strip():
                continue
            records.append(self._decoded(number, line))
            lines.append(number)
            digest = hashed.digest()
            if len(records) == self.batch_records:
                yield self._batch(records, lines), digest
                records, lines = [], []
        if records:
            yield self._batch(records, lines), digest

    def _line(self) -> bytes:
        """The next line, or the beginning of one that is too long; empty at the end."""
        try:
            return self.file.readline(MAX_LINE_BYTES + 1)
        except OSError as error:
            raise Misconfigured(f"{self.name} cannot be read ({error.strerror}).") from None

    def _decoded(self, number: int, line: bytes) -> PlainRecord:
        if line.startswith(BOM_UTF8):
            raise BadLine(self.name, number, "It begins with a byte order mark. Save the file as UTF-8 without one.")
        try:
            record = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadLine(self.name, number, f"{error}.") from None
        if not isinstance(record, dict):
            raise BadLine(self.name, number, "It is not a JSON object.")
        return record

    def _batch(self, records: list[PlainRecord], lines: list[int]) -> pa.RecordBatch:
        try:
            return record_batch(self.kind, records)
        except BadRecord as error:
            raise BadLine(self.name, lines[error.index], error.reason) from None
