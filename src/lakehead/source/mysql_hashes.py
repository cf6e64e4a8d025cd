"""Hashes of rows in the SQL of MySQL and MariaDB."""

from collections.abc import Sequence
from typing import Any

import pyarrow.types as kinds

from lakehead.source.hash_sql import SUMMED_DIGITS, HashSql
from lakehead.source.mysql import QUOTE_MARK
from lakehead.source.port import Column, quote_identifier


def _part(column: Column) -> str:
    kind: Any = column.arrow
    raw = quote_identifier(column.name, QUOTE_MARK)
    if kinds.is_string(kind):
        text = f"CONVERT({column.expression} USING utf8mb4)"
        return f"COALESCE(CONCAT(OCTET_LENGTH({text}), ':', {text}), '-')"
    if kinds.is_decimal(kind):
        text = f"CAST(CAST({raw} AS DECIMAL({kind.precision}, {kind.scale})) AS CHAR)"
    elif kinds.is_binary(kind):
        text = f"LOWER(HEX({raw}))"
    elif kinds.is_timestamp(kind):
        moment = f"DATE_FORMAT({raw}, '%Y-%m-%d %H:%i:%s.%f')"
        text = f"TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM {moment}))"
    else:
        text = f"CAST({column.expression} AS CHAR)"
    return f"COALESCE({text}, '-')"


def _row_text(columns: Sequence[Column]) -> str:
    parts = ", ',', ".join(map(_part, columns))
    # As bytes: keys that only a collation takes for equal are different keys.
    return f"CAST(CONVERT(CONCAT({parts}) USING utf8mb4) AS BINARY)"


MYSQL_HASHES = HashSql(
    row_text=_row_text,
    md5=lambda text: f"MD5({text})",
    number=lambda digest: f"CAST(CONV(SUBSTR({digest}, 1, {SUMMED_DIGITS}), 16, 10) AS SIGNED)",
    integer=lambda column: f"CAST({column.expression} AS SIGNED)",
)
