"""What decoders take and return."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from lakehead.errors import LakeheadError

if TYPE_CHECKING:
    import pyarrow as pa

URI, ROW, LANDED_AT, RESCUED = "_uri", "_row", "_landed_at", "_rescued"
"""The columns that every table of a pipeline has besides those of its objects."""

OWN_COLUMNS = frozenset({URI, ROW, LANDED_AT, RESCUED})

BAD_ROW, BAD_ROW_BASE64 = "_bad_row", "_bad_row_base64"
"""The keys in `_rescued` of a row that cannot be parsed and is kept whole: as text, or in base64 if not UTF-8."""

BATCH_BYTES = 8 * 2**20
"""About how much of an object becomes one record batch."""

BATCH_CELLS = 2 * 2**20
"""Most values of a batch, nulls included, so that short rows do not make a huge batch of a wide table."""


class ObjectRefused(LakeheadError):
    """An object cannot be read as what it should be. The message says where: line and column, or byte."""


class FormatName(StrEnum):
    """What objects hold."""

    NDJSON = "ndjson"
    CSV = "csv"
    PARQUET = "parquet"
    KEY_VALUE = "key_value"
    """Batches of an `Ingestor`."""

    FRAMES = "frames"
    """Frames (`.lmbatch`) that gateways have accepted."""


class SchemaMode(StrEnum):
    """What happens to values that the table has no column for, or that do not fit their column."""

    ADD_COLUMNS = "add_columns"
    """New columns are added to the table; what does not fit an existing column goes to `_rescued`."""

    RESCUE = "rescue"
    """Both go to `_rescued`."""

    FAIL = "fail"
    """The object is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFormat:
    """How the objects of a pipeline are read. Pickled for tasks."""

    name: FormatName
    mode: SchemaMode = SchemaMode.ADD_COLUMNS
    rescue_bad_rows: bool = False
    """Whether a row that cannot be parsed goes whole to `_rescued`, as text, instead of refusing its object."""

    value_json: bool = False
    """For key-value batches: whether values are JSON objects that become columns, instead of one binary column."""

    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    """For CSV: whether the first row has the names of the columns; else they are the table's, in order."""

    null_text: str = ""
    """For CSV: what stands for NULL, unless it is quoted."""

    max_row_bytes: int = 64 * 2**20
    """A longer line or record is refused."""


@dataclass(slots=True)
class ReadReport:
    """What reading one object, or a part of it, found. Filled while its rows are read."""

    rows: int = 0
    rescued: int = 0
    """Rows that have something in `_rescued`."""

    new_columns: dict[str, "pa.DataType"] = field(default_factory=dict)
    """With `ADD_COLUMNS`: columns that the table lacks, with a type that holds every value that was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPart:
    """A part of an object that one task reads: bytes of plain NDJSON, row groups of Parquet.

    Bytes: it begins after the first newline at or after `start` (at 0: with the object), and ends with the line that
    contains `end`. So the parts of an object have each line once, wherever they are cut.
    """

    start: int
    end: int
    rows: int | None = None
    """How many records it has, where that is known without reading it."""

    next_byte: int | None = None
    """Of row groups: the byte of the object at which the part after it begins, or where the object ends."""

    @property
    def stop(self) -> int:
        """The byte from which on the object is split again to get the parts after this one."""
        return self.end if self.next_byte is None else self.next_byte


def only_part(size: int, start: int) -> list[ObjectPart]:
    """Return the one part of an object that cannot be split. Raises `ObjectRefused` if it is not read from 0 on."""
    if start:
        raise ObjectRefused(
            f"Its first {start:,} bytes have landed, and in this format the rest cannot be read without them. "
            "Set the format that the table had then."
        )
    return [ObjectPart(start=0, end=size)]


def most_rows(columns: "pa.Schema") -> int:
    """Return how many rows a batch of a table may have, so that its size is bounded."""
    return max(1, BATCH_CELLS // (len(columns) + 2))
