"""Reads parts of PostgreSQL as Arrow by ADBC, which uses binary COPY, in Spark tasks."""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from lakehead.source.driver_errors import translate_errors
from lakehead.source.exact_values import exact_batch
from lakehead.source.port import ReadPart
from lakehead.source.postgresql import TEXT_SETTINGS, no_timeouts
from lakehead.source.source_settings import APPLICATION_NAME

# The driver takes the bytes of a text for UTF-8, whatever the encoding of the session is.
_SESSION = ("SET LOCAL client_encoding = 'UTF8'", *TEXT_SETTINGS)


def read(part: ReadPart) -> Iterator[pa.RecordBatch]:
    """Read a part in batches, in its snapshot if it has one."""
    settings = part.settings
    with translate_errors(settings):
        from adbc_driver_postgresql import (  # type: ignore[import-untyped]  # noqa: PLC0415 - no types; only here
            StatementOptions,
            dbapi,
        )

        with (
            closing(
                dbapi.connect(
                    settings.url(connect_timeout=str(settings.connect_timeout), application_name=APPLICATION_NAME)
                )
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
                    yield exact_batch(batch, part.columns, part.table)


def _snapshot(name: str) -> str:
    return "".join(character for character in name if character.isalnum() or character == "-")
