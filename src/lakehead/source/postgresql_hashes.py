"""Hashes of rows in PostgreSQL's SQL."""

from collections.abc import Sequence
from typing import Any

import pyarrow.types as kinds

from lakehead.source.hash_sql import SUMMED_DIGITS, HashSql
from lakehead.source.port import Column, quote_identifier


def _part(column: Column) -> str:
    kind: Any = column.arrow
    raw = quote_identifier(column.name)
    if kinds.is_string(kind):
        # concat keeps the blanks at the end of a char(n), which a cast to text removes.
        text = f"concat({column.expression})"
        length = f"octet_length(convert_to({text}, 'UTF8'))"
        return f"CASE WHEN {raw} IS NULL THEN '-' ELSE concat({length}, ':', {text}) END"
    if kinds.is_decimal(kind):
        text = f"({raw}::numeric({kind.precision}, {kind.scale}))::text"
    elif kinds.is_boolean(kind):
        text = f"({raw}::boolean)::int4::text"
    elif kinds.is_binary(kind):
        text = f"encode({raw}::bytea, 'hex')"
    elif kinds.is_timestamp(kind) and kind.tz is not None:
        text = f"({raw}::timestamptz AT TIME ZONE 'UTC')::text"
    else:
        text = f"({column.expression})::text"
    return f"coalesce({text}, '-')"


def _row_text(columns: Sequence[Column]) -> str:
    # By its bytes: columns of several collations have none in common, and some take different keys for equal.
    return f"""(({" || ',' || ".join(map(_part, columns))}) COLLATE "C")"""


POSTGRESQL_HASHES = HashSql(
    row_text=_row_text,
    md5=lambda text: f"md5(convert_to({text}, 'UTF8'))",
    number=lambda digest: f"('x' || substr({digest}, 1, {SUMMED_DIGITS}))::bit({4 * SUMMED_DIGITS})::int8",
    integer=lambda column: f"({column.expression})::int8",
)
