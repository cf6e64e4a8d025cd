"""How rows are hashed in a source's own SQL, so that equal values have equal hashes in every database and in Spark.

A row becomes one text: the canonical texts of its values, separated by commas. NULL is `-`; a text is preceded by its
number of bytes in UTF-8 and a colon. Integers and decimals are digits, decimals with all places of their scale;
booleans are 1 and 0; bytes are lower-case hexadecimal; dates and timestamps are ISO texts, timestamps in UTC with a
space and without trailing zeros of the second. The text's MD5 is the row's hash. Floats have no text that all
databases agree on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as kinds

if TYPE_CHECKING:
    from lakehead.source.port import Column

SUMMED_DIGITS = 10
"""Hexadecimal digits of a hash that are summed: 8,000,000 such numbers fit into 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashSql:
    """The SQL of one dialect that makes texts and hashes of rows."""

    row_text: "Callable[[Sequence[Column]], str]"
    """Returns the expression of the canonical text of some columns."""

    md5: Callable[[str], str]
    """Returns the expression of a text's MD5 over its UTF-8 bytes, in lower-case hexadecimal."""

    number: Callable[[str], str]
    """Returns the expression of the first `SUMMED_DIGITS` digits of a hash as an integer."""

    integer: "Callable[[Column], str]"
    """Returns the expression of an integer column as an integer of 64 bits."""

    total: Callable[[str], str] = "sum({})".format
    """Returns the exact sum of a column, given by its quoted name."""


def why_not_hashed(kind: pa.DataType | None) -> str | None:
    """Return why values of a type are not hashed; None if they are."""
    if kind is None or kinds.is_floating(kind):
        return "floats have no exact text that all databases agree on" if kind is not None else "it cannot be read"
    return None
