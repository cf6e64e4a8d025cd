"""What a landing looks like in a snapshot's summary, in a progress object and in the ledger. Pure: values and bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from typing import TypeVar

import msgspec

from lakehead.errors import Misconfigured
from lakehead.lake.landing import Landing, Numbers, Reached, Share, Snapshot, Unit
from lakehead.state.model import ReadBy, Value
from lakehead.state.values import from_text, to_text
from lakehead.wire.errors import Unreadable

VERSION = 1
PREFIX = "lakehead."
LONGEST_UNITS = 512
"""Bytes of a unit list that still stand in a snapshot's summary: every reader of the table loads all summaries."""


class _Share(msgspec.Struct, omit_defaults=True, frozen=True):
    id: str
    generation: int = 0
    stream: str | None = None
    start: int = 0
    end: int = 0
    spans: list[tuple[int, int]] | None = None


class _Watermark(msgspec.Struct, frozen=True):
    kind: str
    value: str


class _ReadBy(msgspec.Struct, omit_defaults=True, frozen=True):
    column: str
    filter: str | None = None


class _Entry(msgspec.Struct, omit_defaults=True, frozen=True):
    """One landing in the ledger."""

    version: int
    table: str
    snapshot: int
    sequence: int
    token: str
    units: list[_Share]
    parent: int | None = None
    before: int | None = None
    watermark: _Watermark | None = None
    slice: int | None = None
    load_date: date | None = None
    counts: dict[str, int] = {}
    read_by: _ReadBy | None = None


T = TypeVar("T")

_NO_VALUE = (ValueError, ArithmeticError, RecursionError, Misconfigured)
"""What is raised for a text that is no watermark's."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a long unit list is kept, and the hash of its bytes."""

    key: str
    sha256: str


def encode_units(shares: tuple[Share, ...]) -> bytes:
    """The units of a landing, as they stand in a summary or in a progress object."""
    return msgspec.json.encode([_share(share) for share in shares])


def kept_at(table: str, body: bytes) -> Kept:
    """Where a long unit list goes: its name is its hash, so it never changes and may be stored twice."""
    digest = sha256(body).hexdigest()
    return Kept(f"progress/v1/table={table}/{digest}.json", digest)


def decode_kept(kept: Kept, body: bytes) -> tuple[Share, ...]:
    """The units of a progress object. Raises `Unreadable` if a byte of it has changed."""
    if sha256(body).hexdigest() != kept.sha256:
        raise Unreadable(f"The progress object {kept.key} is not what its snapshot says: its hash is another.")
    return _units(body, kept.key)


def to_summary(landing: Landing, units: bytes | Kept) -> dict[str, str]:
    """The landing as properties of a snapshot."""
    reached = landing.reached
    properties = {
        "version": str(VERSION),
        "token": landing.token,
        "before": None if landing.before is None else str(landing.before),
        "watermark": None if reached.watermark is None else _json(_watermark(reached)),
        "slice": None if reached.slice is None else str(reached.slice),
        "load-date": None if reached.load_date is None else reached.load_date.isoformat(),
        "counts": _json(dict(landing.counts)),
        "read-by": None if reached.read_by is None else _json(_read_by(reached.read_by)),
    }
    match units:
        case Kept():
            properties |= {"progress": units.key, "progress-sha256": units.sha256}
        case body:
            properties["units"] = body.decode()
    return {PREFIX + key: value for key, value in properties.items() if value is not None}


def from_summary(summary: Mapping[str, str], where: str) -> tuple[Landing, Kept | None] | None:
    """What a snapshot's properties say: nothing, a landing, or a landing whose units are kept elsewhere."""
    said = {key.removeprefix(PREFIX): value for key, value in summary.items() if key.startswith(PREFIX)}
    if "token" not in said:
        return None
    _check_version(said.get("version", ""), where)
    try:
        watermark = _decode(said["watermark"].encode(), _Watermark, where) if "watermark" in said else None
        landing = Landing(
            token=said["token"],
            shares=_units(said["units"].encode(), where) if "units" in said else (),
            before=int(said["before"]) if "before" in said else None,
            reached=Reached(
                watermark=_value(watermark) if watermark else None,
                slice=int(said["slice"]) if "slice" in said else None,
                load_date=date.fromisoformat(said["load-date"]) if "load-date" in said else None,
                read_by=_of_read_by(_decode(said["read-by"].encode(), _ReadBy, where)) if "read-by" in said else None,
            ),
            counts=_decode(said.get("counts", "{}").encode(), dict[str, int], where),
        )
        return landing, None if "units" in said else Kept(said["progress"], said["progress-sha256"])
    except (KeyError, *_NO_VALUE) as error:
        raise Unreadable(f"What {where} says of its landing cannot be read: {error!r}.") from None


def ledger_folder(table: str) -> str:
    """Where a table's ledger lies."""
    return f"landed/v1/table={table}"


def ledger_key(table: str, snapshot: int, sequence: int) -> str:
    """Where a landing stands in the ledger: its keys are in the order of the landings."""
    return f"{ledger_folder(table)}/{sequence:020}-{snapshot}.json"


def ledger_place(key: str) -> tuple[int, int]:
    """The snapshot and the sequence number that a ledger key is about. Raises `Unreadable` if it is not one."""
    sequence, _, snapshot = key.rpartition("/")[2].removesuffix(".json").partition("-")
    if not (sequence.isdecimal() and snapshot.isdecimal() and key.endswith(".json")):
        raise Unreadable(f"The object {key} lies in the ledger and is none of its landings. Move it elsewhere.")
    return int(snapshot), int(sequence)


def encode_entry(table: str, snapshot: Snapshot, landing: Landing) -> bytes:
    """A landing as the ledger keeps it."""
    reached = landing.reached
    return msgspec.json.encode(
        _Entry(
            version=VERSION,
            table=table,
            snapshot=snapshot.id,
            parent=snapshot.parent,
            sequence=snapshot.sequence,
            token=landing.token,
            units=[_share(share) for share in landing.shares],
            before=landing.before,
            watermark=None if reached.watermark is None else _watermark(reached),
            slice=reached.slice,
            load_date=reached.load_date,
            counts=dict(landing.counts),
            read_by=None if reached.read_by is None else _read_by(reached.read_by),
        )
    )


def decode_entry(table: str, key: str, body: bytes) -> Snapshot:
    """A landing of the ledger. Raises `Unreadable` if it is not one, or not this table's."""
    entry = _decode(body, _Entry, key)
    _check_version(str(entry.version), key)
    if entry.table != table or ledger_key(table, entry.snapshot, entry.sequence) != key:
        raise Unreadable(f"The ledger object {key} is about another table or snapshot.")
    try:
        watermark = _value(entry.watermark) if entry.watermark else None
    except _NO_VALUE as error:
        raise Unreadable(f"The watermark of {key} cannot be read: {error}.") from None
    landing = Landing(
        token=entry.token,
        shares=tuple(_of(share) for share in entry.units),
        before=entry.before,
        reached=Reached(
            watermark, entry.slice, entry.load_date, None if entry.read_by is None else _of_read_by(entry.read_by)
        ),
        counts=entry.counts,
    )
    return Snapshot(entry.snapshot, entry.parent, entry.sequence, landing)


def _share(share: Share) -> _Share:
    unit, numbers = share.unit, share.unit.numbers
    spans = None if share.spans is None else list(share.spans)
    if numbers is None:
        return _Share(unit.id, unit.generation, spans=spans)
    return _Share(unit.id, unit.generation, numbers.stream, numbers.start, numbers.end, spans)


def _of(share: _Share) -> Share:
    numbers = None if share.stream is None else Numbers(share.stream, share.start, share.end)
    return Share(Unit(share.id, share.generation, numbers), None if share.spans is None else tuple(share.spans))


def _units(body: bytes, where: str) -> tuple[Share, ...]:
    return tuple(_of(share) for share in _decode(body, list[_Share], where))


def _watermark(reached: Reached) -> _Watermark:
    assert reached.watermark is not None  # noqa: S101 - for the type checker; both callers have looked
    return _Watermark(*to_text(reached.watermark))


def _read_by(by: ReadBy) -> _ReadBy:
    return _ReadBy(by.column, by.filter)


def _of_read_by(by: _ReadBy) -> ReadBy:
    return ReadBy(by.column, by.filter)


def _value(watermark: _Watermark) -> Value:
    value = from_text(watermark.kind, watermark.value)
    to_text(value)  # which refuses what no landing can have said
    return value


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _decode(body: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise Unreadable(f"What {where} says of its landing cannot be read: {error}.") from None


def _check_version(version: str, where: str) -> None:
    if version != str(VERSION):
        raise Unreadable(f"{where} was written by another version of Lakehead (format {version!r}). Update this one.")
