"""A file of a table's metadata is read whole or not at all: what a damaged one lacks must not look unneeded."""

from decimal import Decimal
from pathlib import Path

import pytest
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, IntegerType, ListType, NestedField, StringType, StructType

from lakehead.maintain.avro_fields import read_fields
from lakehead.wire.errors import Unreadable

FILE = Schema(
    NestedField(1, "number", IntegerType(), required=True),
    NestedField(2, "more", ListType(3, StringType(), element_required=True), required=False),
    NestedField(5, "partition", DecimalType(20, 3), required=False),
    NestedField(4, "name", StringType(), required=True),
)
NAMES = StructType(NestedField(4, "name", StringType(), required=True))
BLOCKS, SYNC = 3, 16


@pytest.fixture(params=["deflate", "null", "zstandard"])
def avro(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file of three blocks."""
    path = tmp_path / "file.avro"
    io, metadata = PyArrowFileIO(), {"avro.codec": request.param}
    with AvroOutputFile[Record](io.new_output(str(path)), FILE, "records", metadata=metadata) as output:
        for block in range(BLOCKS):
            output.write_block(
                [Record(block, ["x" * 40], Decimal(number - 10), f"{block}-{number}") for number in range(20)]
            )
    return path


def names(path: Path, length: int = 0) -> list[str]:
    return [record[0] for record in read_fields(PyArrowFileIO(), str(path), NAMES, length)]


def test_the_fields_that_were_asked_for_are_read_and_others_are_skipped(avro: Path) -> None:
    expected = [f"{block}-{number}" for block in range(BLOCKS) for number in range(20)]

    assert names(avro, avro.stat().st_size) == expected


@pytest.mark.slow
def test_a_file_that_was_cut_off_is_damaged_wherever_it_ends(avro: Path) -> None:
    whole = avro.read_bytes()
    sync = whole[-SYNC:]
    ends_of_blocks = {at + SYNC for at in range(len(whole)) if whole.startswith(sync, at)}
    assert len(ends_of_blocks) == BLOCKS + 1, "the header ends as a block does"
    for end in range(len(whole)):
        avro.write_bytes(whole[:end])
        with pytest.raises(Unreadable, match=r"file\.avro"):
            # A file that ends with a block looks whole; that it is too short is known from its recorded length.
            names(avro, len(whole) if end in ends_of_blocks else 0)


def test_a_file_whose_end_was_never_written_to_the_disk_is_damaged(avro: Path) -> None:
    """As after a power failure: it has its length, and zeros where its data had not been written."""
    whole = avro.read_bytes()
    for end in range(0, len(whole) - 1, 7):
        avro.write_bytes(whole[:end].ljust(len(whole), b"\0"))
        with pytest.raises(Unreadable, match="No file was removed"):
            names(avro, len(whole))
