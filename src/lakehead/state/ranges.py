"""The record numbers that have landed, per stream of a table, merged into as few spans as possible. Never deleted.

They change only in a transaction that locks the table's pointer, so what it reads cannot change before it writes.
"""

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, delete, select, tuple_

from lakehead.state.database import insert_or_replace
from lakehead.state.keys import checked_key, chunks, stream_key
from lakehead.state.model import Numbered, Spans
from lakehead.state.schema import ranges
from lakehead.wire.spans import merged


def read_ranges(connection: Connection, table: str, streams: Iterable[str]) -> dict[str, Spans]:
    """The stored spans of each of the streams; none for a stream without landed records."""
    keys = {stream: stream_key(stream) for stream in streams}
    found = _stored(connection, table, dict.fromkeys(keys.values()))
    return {stream: tuple(sorted(found.get(key, {}).items())) for stream, key in keys.items()}


def add_ranges(connection: Connection, table: str, landed: Iterable[Numbered]) -> None:
    """Merge the numbers into the stored ones, in few statements for any number of spans and streams."""
    by_stream: dict[str, list[tuple[int, int]]] = {}
    for numbered in landed:
        by_stream.setdefault(numbered.stream, []).extend(numbered.spans)
    news = {stream_key(stream): (stream, merged(spans)) for stream, spans in by_stream.items()}
    # The same order in every transaction: fewer deadlocks between tables whose keys are neighbours.
    for some in chunks(sorted((key, stream, spans) for key, (stream, spans) in news.items() if spans)):
        hull = (min(spans[0][0] for _, _, spans in some), max(spans[-1][1] for _, _, spans in some))
        before = _stored(connection, table, [key for key, _, _ in some], touching=hull)
        swallowed: list[tuple[str, int]] = []
        rows = []
        for key, stream, spans in some:
            old = before.get(key, {})
            after = dict(merged([*old.items(), *spans]))
            swallowed += [(key, start) for start in old if start not in after]
            rows += [
                {"table_uuid": table, "stream_key": key, "span_start": start, "span_end": end, "stream": stream}
                for start, end in after.items()
                if old.get(start) != end
            ]
        _remove(connection, table, swallowed)
        for piece in chunks(rows):
            insert_or_replace(connection, ranges, piece)


def _stored(
    connection: Connection, table: str, keys: Iterable[str], touching: tuple[int, int] | None = None
) -> Mapping[str, Mapping[int, int]]:
    """For each stream, the ends of its spans by their starts; with `touching`, only spans that touch these bounds."""
    found: dict[str, dict[int, int]] = {}
    for some in chunks(keys):
        query = select(ranges.c.stream_key, ranges.c.span_start, ranges.c.span_end).where(
            ranges.c.table_uuid == checked_key("table", table), ranges.c.stream_key.in_(some)
        )
        if touching:
            query = query.where(ranges.c.span_start <= touching[1], ranges.c.span_end >= touching[0])
        for row in connection.execute(query):
            found.setdefault(row.stream_key, {})[row.span_start] = row.span_end
    return found


def _remove(connection: Connection, table: str, spans: Iterable[tuple[str, int]]) -> None:
    for some in chunks(spans):
        connection.execute(
            delete(ranges).where(
                ranges.c.table_uuid == table,
                # For the index: not every server uses it for pairs.
                ranges.c.stream_key.in_(dict.fromkeys(key for key, _ in some)),
                tuple_(ranges.c.stream_key, ranges.c.span_start).in_(some),
            )
        )
