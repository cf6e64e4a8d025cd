"""What a watermark was read by. Read by another column, or with another filter, its value means other rows."""

from hashlib import sha256

from lakehead.errors import Misconfigured
from lakehead.extract.facts import Increments
from lakehead.extract.sink import LOADED_IN_FULL
from lakehead.source.filters import parse_filter
from lakehead.state.model import ReadBy, Watermark
from lakehead.state.values import to_text

LONGEST = 200
"""Characters of a filter that are kept as they are: every reader of an Iceberg table loads all summaries."""

_HASH = "sha256:"


def read_by(increments: Increments, written: str | None) -> ReadBy:
    """What a table is read by now. The filter is as the configuration writes it, or its hash where it is long."""
    return ReadBy(increments.column.name, None if written is None else _kept(written))


def check_read_by(table: str, reached: Watermark | None, increments: Increments, written: str | None) -> None:
    """Raise `Misconfigured` if a watermark was read by another column or filter, or is the number of a full load.

    One that does not say by what, as older versions wrote it, is taken as read by the present ones.
    """
    before = reached.read_by if reached else None
    if reached is None or before is None:
        return
    if before == LOADED_IN_FULL:
        raise Misconfigured(
            f"The table {table} has been loaded in full, so it has no watermark to read on from. Load it anew with "
            "--reload, or set its mode back to full."
        )
    now = read_by(increments, written)
    if before.column == now.column and _same_filter(before.filter, now.filter, increments):
        return
    raise Misconfigured(
        f"The table {table} has been read by {_said(before)} up to {to_text(reached.value)[1]}, and its configuration "
        f"now says {_said(now)}: from there on that would pass rows by. Load it anew with --reload, or set "
        "incremental_column and source_filter back to what they were."
    )


def _same_filter(before: str | None, now: str | None, increments: Increments) -> bool:
    if before == now:
        return True
    if before is None or now is None or before.startswith(_HASH):
        return False
    try:
        meant = parse_filter(before, increments.info, increments.source.settings.kind)
    except Misconfigured:  # it names what is no longer there
        return False
    return meant == increments.filter


def _kept(written: str) -> str:
    return written if len(written) <= LONGEST else f"{_HASH}{sha256(written.encode()).hexdigest()}"


def _said(by: ReadBy) -> str:
    return f"{by.column!r}" + (" without a filter" if by.filter is None else f" with the filter {by.filter!r}")
