"""SQLite's rows as Arrow, by ADBC. It runs in tasks."""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pyarrow.types as kinds

from lakehead.source.errors import NotExact
from lakehead.source.port import Column, ReadPart, quoted
from lakehead.source.sentences import told
from lakehead.source.settings import SourceSettings
from lakehead.source.sqlite import SQLite, address
from lakehead.source.sqlite_types import stored
from lakehead.source.values import exact

_ROWS = 16_384


def read(part: ReadPart) -> Iterator[pa.RecordBatch]:
    """The part's rows, in batches. Values of another kind than their column's are looked for first, in one view."""
    with told(part.settings):
        from adbc_driver_sqlite import StatementOptions, dbapi  # noqa: PLC0415 - a driver that only this needs

        with (
            closing(dbapi.connect(address(part.settings))) as connection,
            connection.cursor(adbc_stmt_kwargs={StatementOptions.BATCH_ROWS.value: str(_ROWS)}) as cursor,
        ):
            # The driver itself waits for nobody who writes.
            cursor.execute(f"PRAGMA busy_timeout = {part.settings.connect_timeout * 1000}")
            if checks := _checks(part):
                cursor.execute(checks)
                row = cursor.fetchone()
                _refuse_strangers(part, row if row is not None else ())
            cursor.execute(f"{_example(part)} UNION ALL {part.sql()}")
            with closing(cursor.fetch_record_batch()) as reader:
                for number, batch in enumerate(reader):
                    yield exact(batch.slice(1) if number == 0 else batch, part.columns, part.table)


def check(settings: SourceSettings, part: ReadPart) -> None:
    """Raise `NotExact` if a column has a value of another kind than its own: for readers that cannot see it."""
    source = SQLite(settings)
    try:
        if checks := _checks(part):
            _refuse_strangers(part, source.rows(checks)[0])
    finally:
        source.close()


def _checks(part: ReadPart) -> str:
    items = [
        f"min(CASE WHEN typeof({raw}) NOT IN ('null', {allowed}) THEN typeof({raw}) END)"
        for raw, allowed in (
            (quoted(column.name, "sqlite"), ", ".join(f"'{kind}'" for kind in stored(column)))
            for column in _checked(part)
        )
    ]
    where = f" WHERE {part.where}" if part.where else ""
    return f"SELECT {', '.join(items)} FROM {part.relation}{where}" if items else ""  # noqa: S608 - quoted and typed


def _checked(part: ReadPart) -> list[Column]:
    return [column for column in part.columns if stored(column)]


def _refuse_strangers(part: ReadPart, found: tuple[object, ...]) -> None:
    for column, stranger in zip(_checked(part), found, strict=True):
        if stranger is not None:
            raise NotExact(
                f"Table {part.table}: column {column.name!r} of type {column.declared} has a value that is stored as "
                f"{stranger}, which {column.arrow} cannot hold. Name the column in 'as_text', or mend the value."
            )


def _example(part: ReadPart) -> str:
    """A first row that shows the driver every column's type: it goes by the first rows, and NULLs say nothing."""
    items = []
    for number, column in enumerate(part.columns):
        kind = column.arrow
        if column.expression != quoted(column.name, "sqlite") or not (
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
