"""Whether a table can hold the columns that come."""

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, DecimalType, IcebergType, IntegerType, LongType, NestedField, StringType

from lakehead.errors import Misconfigured
from lakehead.extract.iceberg_tables import check_same_columns


def of(kind: IcebergType) -> Schema:
    return Schema(NestedField(1, "v", kind, required=False))


@pytest.mark.parametrize(
    ("comes", "there"), [(IntegerType(), LongType()), (DecimalType(10, 2), DecimalType(12, 2))], ids=str
)
def test_a_column_that_is_wider_fits(comes: IcebergType, there: IcebergType) -> None:
    check_same_columns("mirror.t", of(comes), of(there))

    with pytest.raises(Misconfigured, match=r"column 'v' is .* in the raw table and .* here"):
        check_same_columns("mirror.t", of(there), of(comes))


@pytest.mark.parametrize(("comes", "there"), [(StringType(), BinaryType()), (BinaryType(), StringType())], ids=str)
def test_text_does_not_fit_a_column_of_bytes_nor_bytes_one_of_text(comes: IcebergType, there: IcebergType) -> None:
    with pytest.raises(Misconfigured, match=f"column 'v' is {comes} in the raw table and {there} here"):
        check_same_columns("mirror.t", of(comes), of(there))
