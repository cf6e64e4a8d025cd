"""What a table must grow to hold its source's columns: a mirror's key stays an identifier."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from lakehead.extract.evolving import growth

KEY = NestedField(1, "id", IntegerType(), required=True)
NAME = NestedField(2, "name", StringType(), required=False)


@pytest.fixture
def mirror(tmp_path: Path) -> Table:
    catalog = SqlCatalog("lake", uri="sqlite:///:memory:", warehouse=str(tmp_path))
    catalog.create_namespace("mirror")
    return catalog.create_table("mirror.t", Schema(KEY, NAME, identifier_field_ids=[1]))


def raw_schema(key: NestedField) -> Schema:
    """Raw takes rows without a key too, so its key may be NULL."""
    return Schema(key.model_copy(update={"required": False}), NAME)


def test_a_required_key_of_a_mirror_is_no_reason_to_change_it(mirror: Table) -> None:
    assert growth(mirror, raw_schema(KEY), mirror) == ()


def test_a_mirrors_key_is_widened_and_stays_its_identifier(mirror: Table) -> None:
    wider = NestedField(1, "id", LongType(), required=False)

    with mirror.update_schema() as update:
        fields = growth(mirror, raw_schema(wider), mirror)
        update.union_by_name(pa.schema(list(schema_to_pyarrow(Schema(*fields), include_field_ids=False))))

    assert mirror.schema().find_field("id") == NestedField(1, "id", LongType(), required=True)
    assert mirror.schema().identifier_field_ids == [1]
