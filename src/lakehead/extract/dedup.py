"""The rule by which a table's rows are deduplicated, from its settings."""

from collections.abc import Sequence

from lakehead.extract.merging import DedupRule
from lakehead.extract.sink import keys_of
from lakehead.extract.table_settings import Rule, TableSettings
from lakehead.source.filters import parse_filter
from lakehead.source.port import ColumnNames
from lakehead.state.model import Watermark


def dedup_rule(table: TableSettings, raw_columns: Sequence[str], raw: Watermark | None) -> DedupRule:
    """The rule by which rows are deduplicated, with raw's own column names, because it must not need the source.

    Rows are ordered by the column that they were read by, even if the configuration has changed since.
    """
    columns = ColumnNames(table.name, tuple(raw_columns), "t")
    by = raw.read_by.column if raw and raw.read_by else table.incremental_column or ""
    return DedupRule(
        keys=keys_of(table, raw_columns),
        watermark=columns.find(by),
        tiebreaks=tuple(columns.find(name) for name in table.tiebreak_columns),
        null_keys=table.null_keys is Rule.INCLUDE,
        filters=tuple(parse_filter(each, columns, "spark", qualifier="t").sql for each in table.merge_filters),
    )
