"""Reads parts of any source through Spark's JDBC reader: on demand, and for databases without an Arrow driver.

Values that Spark's types would round, shift or lose are fetched as text and pass the same check as those of the Arrow
readers, so rows and types are the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from lakehead.errors import Misconfigured
from lakehead.source.dialects import DIALECTS
from lakehead.source.exact_values import exact_batch
from lakehead.source.port import Column, ReadPart, schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FETCH_ROWS = 10_000
"""Rows per round trip to the server. With 0, PostgreSQL's driver would load the whole result into memory."""


def frame(session: "SparkSession", parts: Sequence[ReadPart], *, fetch_rows: int = FETCH_ROWS) -> "DataFrame":
    """Return the rows of the parts as a data frame with one partition per part, every value exactly as in the source.

    A part is read when the frame is evaluated, so its snapshot must last until then. The driver's jar must be on the
    class path.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - only sessions need Spark

    if not parts:
        raise Misconfigured("There is nothing to read: no parts were given.")
    columns, table = parts[0].columns, parts[0].table
    for part in parts:
        DIALECTS.named(part.settings.dialect).jdbc.check(part)

    def convert(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield exact_batch(batch, columns, table)

    raw = reduce(lambda one, other: one.unionAll(other), (_raw(session, part, fetch_rows) for part in parts))
    return raw.mapInArrow(convert, from_arrow_schema(schema_of(columns), prefer_timestamp_ntz=True))


def _raw(session: "SparkSession", part: ReadPart, fetch_rows: int) -> "DataFrame":
    settings = part.settings
    jdbc = DIALECTS.named(settings.dialect).jdbc
    options = {
        "url": jdbc.url(settings),
        "query": part.sql(jdbc=True),
        "fetchsize": str(fetch_rows),
        "preferTimestampNTZ": "true",
        "user": settings.user,
        "password": settings.password,
        "driver": settings.driver or jdbc.driver,
        "sessionInitStatement": jdbc.session_statement(part),
        "customSchema": _all_text(part.columns) if jdbc.all_text else None,
    }
    # Secrets are not in the URL, which messages of a driver or of Spark may repeat.
    given = {
        **jdbc.properties(settings),
        **dict(settings.secret_options),
        **{name: value for name, value in options.items() if value is not None},
    }
    return session.read.format("jdbc").options(**given).load()


def _all_text(columns: Sequence[Column]) -> str:
    return ", ".join(f"c{number} STRING" for number in range(len(columns)))
