"""Whether what a tool wrote is what the source has: the number of rows, and the sums of two columns."""

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import StaticTable

from bench.extract_source import Sums


class Different(Exception):
    """A tool wrote other rows than the source has: what it measured means nothing."""


def check(who: str, found: Sums, wanted: Sums) -> None:
    """Raise `Different` unless both are the same."""
    if found != wanted:
        raise Different(f"{who} wrote {found}, and the source has {wanted}.")


def newest(warehouse: Path, table: str) -> StaticTable:
    """The Iceberg table whose folder has this name, as it is now, wherever it is below the warehouse."""
    found = [path for path in warehouse.rglob("*.metadata.json") if path.parent.parent.name == table]
    if not found:
        raise Different(f"There is no Iceberg table {table} below {warehouse}.")
    # Metadata files are numbered: the highest is the newest.
    return StaticTable.from_metadata(str(max(found, key=lambda path: (_number(path), path.stat().st_mtime_ns))))


def written(warehouse: Path, table: str) -> Sums:
    """What the Iceberg table whose folder has this name holds."""
    return sums(newest(warehouse, table).scan(selected_fields=("quantity", "price")).to_arrow_batch_reader())


def check_merged_in_arrow(warehouse: Path, table: str) -> None:
    """Raise `Different` if the table's newest snapshot was made by Spark's MERGE, to which merges fall back."""
    snapshot = newest(warehouse, table).current_snapshot()
    if snapshot is None or snapshot.summary is None or snapshot.summary["engine-name"] is not None:
        raise Different(f"The last merge into {table} was Spark's MERGE: what was measured is not Lakehead's own.")


def sums(batches: pa.RecordBatchReader) -> Sums:
    """Count and add up, one batch at a time."""
    rows, quantity, price = 0, 0, Decimal(0)
    for batch in batches:
        rows += batch.num_rows
        quantity += pc.sum(batch.column("quantity")).as_py() or 0
        # Wide enough for any number of rows; sums of a decimal keep its precision and would overflow.
        price += pc.sum(batch.column("price").cast(pa.decimal128(38, 2))).as_py() or Decimal(0)
    return Sums(rows, quantity, price)


def _number(metadata: Path) -> int:
    number = metadata.name.removeprefix("v").split("-")[0].split(".")[0]
    return int(number) if number.isdigit() else -1
