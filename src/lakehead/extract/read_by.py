"""The column and filter a watermark was read by. With others, the same value would mean other rows."""

from hashlib import sha256

from lakehead.errors import Misconfigured
from lakehead.extract.incremental_source import IncrementalSource
from lakehead.extract.sink import LOADED_IN_FULL
from lakehead.source.filters import parse_filter
from lakehead.state.model import ReadBy, Watermark
from lakehead.state.values import to_text

LONGEST = 200
"""Longer filters are stored as a hash, because every reader of an Iceberg table loads all summaries."""

_HASH = "sha256:"


def read_by(increments: IncrementalSource, written: str | None) -> ReadBy:
    """What a table is read by now: the column, and the filter as configured, or its hash if it is long."""
    return ReadBy(increments.column.name, None if written is None else _kept(written))


def check_read_by(table: str, reached: Watermark | None, increments: IncrementalSource, written: str | None) -> None:
    """Raise `Misconfigured` if a watermark was read by another column or filter, or is the number of a full load.

    A watermark without that record, written by an older version, is assumed to match.
    """
    before = reached.read_by if reached else None
    if reached is None or before is None:
        return
    if before == LOADED_IN_FULL:
        raise Misconfigured(
            f"The table {table} was loaded in full, so it has no watermark to continue from. Reload it with --reload, "
            "or set its mode back to full."
        )
    now = read_by(increments, written)
    if before.column == now.column and _same_filter(before.filter, now.filter, increments):
        return
    raise Misconfigured(
        f"The table {table} was read by {_described(before)} up to {to_text(reached.value)[1]}, but its configuration "
        f"now says {_described(now)}: continuing from there would miss rows. Reload it with --reload, or restore the "
        "previous incremental_column and source_filter."
    )


def _same_filter(before: str | None, now: str | None, increments: IncrementalSource) -> bool:
    if before == now:
        return True
    if before is None or now is None or before.startswith(_HASH):
        return False
    try:
        meant = parse_filter(before, increments.info.column_names, increments.source.sql_dialect)
    except Misconfigured:  # it names what is no longer there
        return False
    return meant == increments.filter


def _kept(written: str) -> str:
    return written if len(written) <= LONGEST else f"{_HASH}{sha256(written.encode()).hexdigest()}"


def _described(by: ReadBy) -> str:
    return f"{by.column!r}" + (" without a filter" if by.filter is None else f" with the filter {by.filter!r}")
