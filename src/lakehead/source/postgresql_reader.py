"""PostgreSQL's rows as Arrow, by ADBC: binary COPY, straight into record batches. It runs in tasks."""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from lakehead.source.port import ReadPart
from lakehead.source.postgresql_session import no_timeouts
from lakehead.source.sentences import told
from lakehead.source.settings import READER
from lakehead.source.values import exact

# As text, values depend on these. Types that are read as they are do not.
_SESSION = ("SET LOCAL TIME ZONE 'UTC'", "SET LOCAL datestyle = 'ISO'", "SET LOCAL intervalstyle = 'postgres'")


def read(part: ReadPart) -> Iterator[pa.RecordBatch]:
    """The part's rows, in batches; in the snapshot that the part names, if it does."""
    settings = part.settings
    with told(settings):
        from adbc_driver_postgresql import (  # type: ignore[import-untyped]  # noqa: PLC0415 - no types; only here
            StatementOptions,
            dbapi,
        )

        with (
            closing(
                dbapi.connect(settings.url(connect_timeout=str(settings.connect_timeout), application_name=READER))
            ) as connection,
            connection.cursor(
                adbc_stmt_kwargs={StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(settings.batch_bytes)}
            ) as cursor,
        ):
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if part.snapshot:
                cursor.execute(f"SET TRANSACTION SNAPSHOT '{_snapshot(part.snapshot)}'")
            for statement in _SESSION:
                cursor.execute(statement)
            cursor.execute(no_timeouts(local=True))
            cursor.execute(part.sql())
            with closing(cursor.fetch_record_batch()) as reader:
                for batch in reader:
                    yield exact(batch, part.columns, part.table)


def _snapshot(name: str) -> str:
    return "".join(character for character in name if character.isalnum() or character == "-")
