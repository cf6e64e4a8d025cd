"""How `lakehead queue` shows what it has found: columns for people, JSON for machines."""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import typer

from lakehead.buffer.inspection import Partition
from lakehead.wire.queue_manifests import ConsumerManifest, ProducerManifest

GAP = "  "


def say_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, each column as wide as its widest cell and numbers to the right; nothing where it has no rows."""
    shown = [[printable(cell) for cell in row] for row in rows]
    if not shown:
        return
    widths = [max(map(len, column)) for column in zip(heads, *shown, strict=True)]
    numeric = [all(_is_number(cell) for cell in column) for column in zip(*shown, strict=True)]
    for row in (heads, *shown):
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        typer.echo(GAP.join(cells).rstrip())


def printable(text: str) -> str:
    """The text, or how Python would write it where a terminal could take a part of it for a command."""
    return text if text.isprintable() else ascii(text)


def duration(seconds: float) -> str:
    """A span of time in its two largest units; what lies in the future is negative."""
    sign, left = ("-" if seconds < 0 else ""), int(abs(seconds))
    units = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, size)
        units += [f"{count}{unit}"] if count else []
    return sign + (" ".join(units[:2]) or "0s")


def moment(at_ms: int) -> str:
    """A moment, in UTC."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return str(at_ms)  # a note can say anything


def stored(manifest: ProducerManifest | ConsumerManifest | None) -> object:
    """A manifest as it is stored; None where it could not be read."""
    return None if manifest is None else json.loads(manifest.encode())


def say_json(what: object) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(what, indent=2))


def headline(partition: Partition, now_ms: int) -> str:
    """What is known of a partition as a whole."""
    producer, consumer = partition.producer, partition.consumer
    told = [f"partition {partition.number}", partition.pair.producer]
    if producer is not None:
        told += [f"version {producer.version}", f"gc {producer.gc}", f"{len(producer.producers)} producers"]
        told += ["sealed"] if producer.sealed else []
    if consumer is not None:
        told += [f"epoch {consumer.epoch}"]
        if consumer.owner is not None:
            heard = duration((now_ms - consumer.heartbeat) / 1000)
            told += [f"owned by {consumer.owner}, last heard of {heard} ago"]
    return printable(", ".join(told))


def locations(partition: Partition, now_ms: int) -> Iterator[tuple[str, ...]]:
    """Every location of a partition: in the order of the queue, then what is not in it any more."""
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
