"""The one function that tasks read parts with. It loads quickly: each driver only where it is needed."""

from collections.abc import Iterator

import pyarrow as pa

from lakehead.errors import Misconfigured
from lakehead.source.port import ReadPart


def read(part: ReadPart) -> Iterator[pa.RecordBatch]:
    """The part's rows in batches of bounded size, every value exactly as the source has it.

    Raises `NotExact` for a value that cannot be carried, and one sentence for a source that does not answer.
    """
    match part.settings.kind:
        case "postgresql":
            from lakehead.source import postgresql_reader  # noqa: PLC0415 - see above

            return postgresql_reader.read(part)
        case "mysql":
            from lakehead.source import mysql_reader  # noqa: PLC0415 - see above

            return mysql_reader.read(part)
        case "sqlite":
            from lakehead.source import sqlite_reader  # noqa: PLC0415 - see above

            return sqlite_reader.read(part)
        case "jdbc":
            raise Misconfigured(f"{part.settings} has no Arrow driver that is known here. Read it by JDBC.")
