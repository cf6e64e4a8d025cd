"""Encodes and decodes landings for snapshot summaries, progress objects and the ledger. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from typing import TypeVar

import msgspec

from lakehead.errors import Misconfigured
from lakehead.lake.landing import LandedPart, Landing, NewWatermark, Numbers, Snapshot, Unit, UnitRemainder
from lakehead.state.model import ReadBy, Value
from lakehead.state.values import from_text, to_text
from lakehead.wire.errors import Unreadable

VERSION = 1
VERSION_OF_PARTS = 2
"""The format of a landing that has parts of units, so that a Lakehead that does not know them stops."""
PREFIX = "lakehead."
LONGEST_UNITS = 512
"""Longer unit lists, in bytes, are stored outside the summary: every reader of the table loads all summaries."""


class _Part(msgspec.Struct, frozen=True):
    of: str
    start: int
    end: int
    rows: int
    etag: str


class _Share(msgspec.Struct, omit_defaults=True, frozen=True):
    id: str
    generation: int = 0
    stream: str | None = None
    start: int = 0
    end: int = 0
    spans: list[tuple[int, int]] | None = None
    part: _Part | None = None


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
"""The errors of decoding a text that is not a watermark."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The object key of a long unit list, and the hash of its bytes."""

    key: str
    sha256: str


def encode_units(remainders: tuple[UnitRemainder, ...]) -> bytes:
    """The units of a landing, as stored in a summary or in a progress object."""
    return msgspec.json.encode([_share(remainder) for remainder in remainders])


def kept_at(table: str, body: bytes) -> Kept:
    """Where to store a long unit list. Its name is its hash, so it never changes and storing it twice is harmless."""
    digest = sha256(body).hexdigest()
    return Kept(f"progress/v1/table={table}/{digest}.json", digest)


def decode_kept(kept: Kept, body: bytes) -> tuple[UnitRemainder, ...]:
    """The units of a progress object. Raises `Unreadable` if a byte of it has changed."""
    if sha256(body).hexdigest() != kept.sha256:
        raise Unreadable(f"The progress object {kept.key} is not what its snapshot says: its hash is another.")
    return _units(body, kept.key)


def to_summary(landing: Landing, units: bytes | Kept) -> dict[str, str]:
    """The landing as the summary properties of a snapshot."""
    new_watermark = landing.new_watermark
    properties = {
        "version": str(_version(landing)),
        "token": landing.token,
        "before": None if landing.before is None else str(landing.before),
        "watermark": None if new_watermark.watermark is None else _json(_watermark(new_watermark)),
        "slice": None if new_watermark.slice is None else str(new_watermark.slice),
        "load-date": None if new_watermark.load_date is None else new_watermark.load_date.isoformat(),
        "counts": _json(dict(landing.counts)),
        "read-by": None if new_watermark.read_by is None else _json(_read_by(new_watermark.read_by)),
    }
    match units:
        case Kept():
            properties |= {"progress": units.key, "progress-sha256": units.sha256}
        case body:
            properties["units"] = body.decode()
    return {PREFIX + key: value for key, value in properties.items() if value is not None}


def from_summary(summary: Mapping[str, str], where: str) -> tuple[Landing, Kept | None] | None:
    """The landing in a snapshot's summary, and where its units are if they are not in it; None if it has none."""
    said = {key.removeprefix(PREFIX): value for key, value in summary.items() if key.startswith(PREFIX)}
    if "token" not in said:
        return None
    _check_version(said.get("version", ""), where)
    try:
        watermark = _decode(said["watermark"].encode(), _Watermark, where) if "watermark" in said else None
        landing = Landing(
            token=said["token"],
            remainders=_units(said["units"].encode(), where) if "units" in said else (),
            before=int(said["before"]) if "before" in said else None,
            new_watermark=NewWatermark(
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
    """The folder of a table's ledger."""
    return f"landed/v1/table={table}"


def ledger_key(table: str, snapshot: int, sequence: int) -> str:
    """The key of a landing in the ledger. Keys sort in the order of the landings."""
    return f"{ledger_folder(table)}/{sequence:020}-{snapshot}.json"


def ledger_start(table: str, sequence: int) -> str:
    """A key before those of all landings with this sequence number or a later one, and after all others."""
    return f"{ledger_folder(table)}/{sequence:020}"


def ledger_place(key: str) -> tuple[int, int]:
    """The snapshot and the sequence number that a ledger key is about. Raises `Unreadable` if it is not one."""
    sequence, _, snapshot = key.rpartition("/")[2].removesuffix(".json").partition("-")
    if not (sequence.isdecimal() and snapshot.isdecimal() and key.endswith(".json")):
        raise Unreadable(f"The object {key} is in the ledger's folder, but is not a landing. Move it elsewhere.")
    return int(snapshot), int(sequence)


def encode_entry(table: str, snapshot: Snapshot, landing: Landing) -> bytes:
    """A landing as a ledger object."""
    new_watermark = landing.new_watermark
    return msgspec.json.encode(
        _Entry(
            version=_version(landing),
            table=table,
            snapshot=snapshot.id,
            parent=snapshot.parent,
            sequence=snapshot.sequence,
            token=landing.token,
            units=[_share(remainder) for remainder in landing.remainders],
            before=landing.before,
            watermark=None if new_watermark.watermark is None else _watermark(new_watermark),
            slice=new_watermark.slice,
            load_date=new_watermark.load_date,
            counts=dict(landing.counts),
            read_by=None if new_watermark.read_by is None else _read_by(new_watermark.read_by),
        )
    )


def decode_entry(table: str, key: str, body: bytes) -> Snapshot:
    """The landing in a ledger object. Raises `Unreadable` if it is not one, or not this table's."""
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
        remainders=tuple(_of(remainder) for remainder in entry.units),
        before=entry.before,
        new_watermark=NewWatermark(
            watermark, entry.slice, entry.load_date, None if entry.read_by is None else _of_read_by(entry.read_by)
        ),
        counts=entry.counts,
    )
    return Snapshot(entry.snapshot, entry.parent, entry.sequence, landing)


def _share(remainder: UnitRemainder) -> _Share:
    unit, numbers = remainder.unit, remainder.unit.numbers
    spans = None if remainder.spans is None else list(remainder.spans)
    if (part := remainder.part) is not None:
        of = _Part(unit.id, part.start, part.end, part.rows, part.etag)
        return _Share(remainder.recorded.id, unit.generation, part=of)
    if numbers is None:
        return _Share(unit.id, unit.generation, spans=spans)
    return _Share(unit.id, unit.generation, numbers.stream, numbers.start, numbers.end, spans)


def _of(remainder: _Share) -> UnitRemainder:
    if (part := remainder.part) is not None:
        return UnitRemainder(
            Unit(part.of, remainder.generation), part=LandedPart(part.start, part.end, part.rows, part.etag)
        )
    numbers = None if remainder.stream is None else Numbers(remainder.stream, remainder.start, remainder.end)
    return UnitRemainder(
        Unit(remainder.id, remainder.generation, numbers), None if remainder.spans is None else tuple(remainder.spans)
    )


def _units(body: bytes, where: str) -> tuple[UnitRemainder, ...]:
    return tuple(_of(remainder) for remainder in _decode(body, list[_Share], where))


def _watermark(new_watermark: NewWatermark) -> _Watermark:
    assert new_watermark.watermark is not None  # noqa: S101 - for the type checker; both callers have looked
    return _Watermark(*to_text(new_watermark.watermark))


def _read_by(by: ReadBy) -> _ReadBy:
    return _ReadBy(by.column, by.filter)


def _of_read_by(by: _ReadBy) -> ReadBy:
    return ReadBy(by.column, by.filter)


def _value(watermark: _Watermark) -> Value:
    value = from_text(watermark.kind, watermark.value)
    to_text(value)  # raises for a value that no landing can have written
    return value


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _decode(body: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise Unreadable(f"What {where} says of its landing cannot be read: {error}.") from None


def _version(landing: Landing) -> int:
    return VERSION if all(each.part is None for each in landing.remainders) else VERSION_OF_PARTS


def _check_version(version: str, where: str) -> None:
    if version not in (str(VERSION), str(VERSION_OF_PARTS)):
        raise Unreadable(f"{where} was written by another version of Lakehead (format {version!r}). Update this one.")
