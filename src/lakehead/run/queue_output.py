"""Output of `lakehead queue`: tables for people, JSON for programs."""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import typer

from lakehead.buffer.inspection import PartitionStatus
from lakehead.run.text_table import table_lines
from lakehead.wire.queue_manifests import ConsumerManifest, ProducerManifest


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with numbers aligned to the right; nothing if it has no rows."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if not cells:
        return
    columns = zip(headers, zip(*cells, strict=True), strict=True)
    numbers = [header for header, column in columns if all(map(_is_number, column))]
    for line in table_lines(headers, cells, right=numbers):
        typer.echo(line)


def printable(text: str) -> str:
    """Return the text, escaped if it has characters that could control a terminal."""
    return text if text.isprintable() else ascii(text)


def duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as `2h 5m`; negative for the future."""
    sign, left = ("-" if seconds < 0 else ""), int(abs(seconds))
    units = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, size)
        units += [f"{count}{unit}"] if count else []
    return sign + (" ".join(units[:2]) or "0s")


def utc_time(at_ms: int) -> str:
    """Return a time in UTC, given in milliseconds since the Unix epoch."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return str(at_ms)  # a note may contain any number


def as_stored(manifest: ProducerManifest | ConsumerManifest | None) -> object:
    """Return the JSON of a manifest as it is stored; None if it could not be read."""
    return None if manifest is None else json.loads(manifest.encode())


def print_json(document: object) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(document, indent=2))


def partition_summary(partition: PartitionStatus, now_ms: int) -> str:
    """Return one line about a partition as a whole."""
    producer, consumer = partition.producer, partition.consumer
    parts = [f"partition {partition.number}", partition.keys.producer]
    if producer is not None:
        parts += [f"version {producer.version}", f"gc {producer.gc}", f"{len(producer.producers)} producers"]
        parts += ["sealed"] if producer.sealed else []
    if consumer is not None:
        parts += [f"epoch {consumer.epoch}"]
        if consumer.owner is not None:
            heartbeat = duration((now_ms - consumer.heartbeat) / 1000)
            parts += [f"owned by {consumer.owner}, last heartbeat {heartbeat} ago"]
    return printable(", ".join(parts))


def location_rows(partition: PartitionStatus, now_ms: int) -> Iterator[tuple[str, ...]]:
    """Yield a row for every location of a partition: in the order of the queue, then those no longer in it."""
    done = set(partition.done)
    owners = partition.consumer.owners if partition.consumer else {}
    for location in dict.fromkeys((*partition.pending, *partition.claimed, *partition.done)):
        if location in partition.claimed:
            refreshed = duration((now_ms - partition.claimed[location]) / 1000)
            yield location, "claimed", owners.get(location, "unknown"), f"{refreshed} ago"
        else:
            yield location, "done" if location in done else "pending", "", ""


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").isdecimal()
