"""Reads parts of SQLite as Arrow by ADBC, in Spark tasks."""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pyarrow.types as kinds

from lakehead.source.driver_errors import translate_errors
from lakehead.source.errors import NotExact
from lakehead.source.exact_values import exact_batch
from lakehead.source.port import Column, ReadPart, quote_identifier
from lakehead.source.sqlite_source import SQLiteSource, file_uri
from lakehead.source.sqlite_types import stored_types

_BATCH_ROWS = 16_384


def read(part: ReadPart) -> Iterator[pa.RecordBatch]:
    """Read a part in batches. Raises `NotExact` first if a value has another type than its column."""
    with translate_errors(part.settings):
        from adbc_driver_sqlite import StatementOptions, dbapi  # noqa: PLC0415 - a driver that only this needs

        with (
            closing(dbapi.connect(file_uri(part.settings))) as connection,
            connection.cursor(adbc_stmt_kwargs={StatementOptions.BATCH_ROWS.value: str(_BATCH_ROWS)}) as cursor,
        ):
            # By default the driver does not wait for writers.
            cursor.execute(f"PRAGMA busy_timeout = {part.settings.connect_timeout * 1000}")
            if checks := _checks(part):
                cursor.execute(checks)
                row = cursor.fetchone()
                _refuse_other_types(part, row if row is not None else ())
            cursor.execute(f"{_example(part)} UNION ALL {part.sql()}")
            with closing(cursor.fetch_record_batch()) as reader:
                for number, batch in enumerate(reader):
                    yield exact_batch(batch.slice(1) if number == 0 else batch, part.columns, part.table)


def check(part: ReadPart) -> None:
    """Raise `NotExact` if a value has another type than its column, for readers that do not check it themselves."""
    source = SQLiteSource(part.settings)
    try:
        if checks := _checks(part):
            _refuse_other_types(part, source.rows(checks)[0])
    finally:
        source.close()


def _checks(part: ReadPart) -> str:
    items = [
        f"min(CASE WHEN typeof({raw}) NOT IN ('null', {allowed}) THEN typeof({raw}) END)"
        for raw, allowed in (
            (quote_identifier(column.name), ", ".join(f"'{kind}'" for kind in stored_types(column)))
            for column in _checked(part)
        )
    ]
    where = f" WHERE {part.where}" if part.where else ""
    return f"SELECT {', '.join(items)} FROM {part.relation}{where}" if items else ""  # noqa: S608 - quoted and typed


def _checked(part: ReadPart) -> list[Column]:
    return [column for column in part.columns if stored_types(column)]


def _refuse_other_types(part: ReadPart, found: tuple[object, ...]) -> None:
    for column, found_type in zip(_checked(part), found, strict=True):
        if found_type is not None:
            raise NotExact(
                f"Table {part.table}: column {column.name!r} of type {column.declared} has a value that is stored as "
                f"{found_type}, which {column.arrow} cannot hold. Add the column to 'as_text', or fix the value."
            )


def _example(part: ReadPart) -> str:
    """Return a SELECT of one example row, from which the driver takes the types: real rows may start with NULLs."""
    items = []
    for number, column in enumerate(part.columns):
        kind = column.arrow
        if column.expression != quote_identifier(column.name) or not (
            kinds.is_primitive(kind) or kinds.is_binary(kind)
        ):
            example = "''"
        elif kinds.is_binary(kind):
            example = "X'00'"
        elif kinds.is_floating(kind):
            example = "0.5"
        else:
            example = "''" if kinds.is_temporal(kind) else "0"
        items.append(f"{example} AS c{number}")
    return f"SELECT {', '.join(items)}"
