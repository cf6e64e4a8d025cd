"""What a landing looks like when it is stored: it comes back as it was, and nothing else is taken for one."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.documents import (
    PREFIX,
    Kept,
    decode_entry,
    decode_kept,
    encode_entry,
    encode_units,
    from_summary,
    kept_at,
    ledger_key,
    to_summary,
)
from lakehead.lake.landing import LandedPart, Landing, NewWatermark, Numbers, Snapshot, Unit, UnitRemainder
from lakehead.state.model import LAST_NUMBER, ReadBy
from lakehead.wire.errors import Unreadable

GOLDEN = Path(__file__).parents[2] / "golden" / "lake"
TABLE = "8a5f0f0c-5b8e-4f1c-9c1e-2f6b1d1f0a11"

numbers = st.integers(0, LAST_NUMBER + 1)
snapshot_ids = st.integers(1, 2**63 - 1)
edges = st.lists(numbers, unique=True, max_size=8).map(sorted)
spans = edges.map(lambda sorted_edges: tuple(list(pairwise(sorted_edges))[::2]))
numbered = st.builds(lambda stream, ends: Numbers(stream, min(ends), max(ends)), st.text(), st.tuples(numbers, numbers))
units = st.builds(Unit, st.text(), st.integers(0, 2**31), st.none() | numbered)
parts = st.builds(LandedPart, numbers, numbers, numbers, st.text())
in_parts = st.builds(lambda unit, part: UnitRemainder(replace(unit, numbers=None), part=part), units, parts)
remainders = st.lists(st.builds(UnitRemainder, units, st.none() | spans) | in_parts, max_size=6).map(tuple)
zones = st.sampled_from([UTC, timezone(timedelta(hours=-3, minutes=-30))])
moments = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=zones)  # noqa: DTZ001 - bounds have no zone
watermarks = st.one_of(
    st.integers(), st.decimals(allow_nan=False, allow_infinity=False), moments, st.datetimes(), st.dates(), st.text()
)
landings = st.builds(
    Landing,
    st.text(),
    remainders,
    before=st.none() | snapshot_ids,
    new_watermark=st.builds(
        NewWatermark,
        st.none() | watermarks,
        st.none() | numbers,
        st.none() | st.dates(),
        st.none() | st.builds(ReadBy, st.text(), st.none() | st.text()),
    ),
    counts=st.dictionaries(st.text(), numbers, max_size=3),
)
snapshots = st.builds(Snapshot, snapshot_ids, st.none() | snapshot_ids, st.integers(0, 2**63 - 1), landings)

LANDING = Landing(
    "c0ffee" * 10,
    (
        UnitRemainder(Unit("2026-11-16/part-0001.parquet")),
        UnitRemainder(Unit('a "quoted" ünit', 2)),
        UnitRemainder(Unit("shard-7", 0, Numbers("agent/boot", 100, 200)), ((100, 120), (150, 200))),
        UnitRemainder(Unit("shard-8", 0, Numbers("agent/boot", 200, 260))),
        UnitRemainder(Unit("shard-9", 0, Numbers("agent/boot", 120, 150)), ()),
    ),
    before=4_611_686_018_427_387_904,
    new_watermark=NewWatermark(datetime(2026, 11, 16, 1, 2, 3, 456789, tzinfo=UTC), 7, date(2026, 11, 15)),
    counts={"units": 5, "rows": 1_000, "files": 2, "bytes": 123_456},
)
SNAPSHOT = Snapshot(6_917_529_027_641_081_856, 5_764_607_523_034_234_880, 42, LANDING)
READ_BY = replace(
    LANDING, new_watermark=replace(LANDING.new_watermark, read_by=ReadBy("updated_at", "note <> 'a \"b\"'"))
)

PART = replace(
    LANDING,
    remainders=(
        UnitRemainder(Unit("s3://in/large.json"), part=LandedPart(2**30, 2**31, 7_000_000, "9b2cf535f27731c9-205")),
        UnitRemainder(Unit("s3://in/small.json")),
    ),
)


def told(summary: dict[str, str]) -> tuple[Landing, Kept | None]:
    said = from_summary(summary, "snapshot 1")
    assert said is not None
    return said


def changed(**properties: str | None) -> dict[str, str]:
    """The summary of a landing, with some of its properties changed or left out."""
    summary = to_summary(LANDING, encode_units(LANDING.remainders))
    for name, value in properties.items():
        key = PREFIX + name.replace("_", "-")
        summary.pop(key, None)
        if value is not None:
            summary[key] = value
    return summary


@given(snapshots)
def test_a_landing_comes_back_from_the_ledger_as_it_was(snapshot: Snapshot) -> None:
    assert snapshot.landing is not None
    key = ledger_key(TABLE, snapshot.id, snapshot.sequence)

    back = decode_entry(TABLE, key, encode_entry(TABLE, snapshot, snapshot.landing))

    assert back == snapshot
    assert [remainder.unit.numbers for remainder in back.landing.remainders] == [  # type: ignore[union-attr] # equal to one that has it
        remainder.unit.numbers for remainder in snapshot.landing.remainders
    ], "numbers are no part of a unit's equality"


@given(landings)
def test_a_landing_comes_back_from_a_summary_as_it_was(landing: Landing) -> None:
    summary = to_summary(landing, encode_units(landing.remainders))

    assert told({"operation": "append", **summary}) == (landing, None)


@given(landings)
def test_a_long_unit_list_comes_back_from_its_progress_object(landing: Landing) -> None:
    body = encode_units(landing.remainders)
    kept = kept_at(TABLE, body)

    assert told(to_summary(landing, kept)) == (replace(landing, remainders=()), kept)
    assert decode_kept(kept, body) == landing.remainders


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_the_ledgers_keys_are_in_the_order_of_the_landings(one: int, other: int) -> None:
    assert (ledger_key(TABLE, 1, one) < ledger_key(TABLE, 1, other)) == (one < other)


def test_a_snapshot_of_somebody_else_tells_no_landing() -> None:
    assert from_summary({"operation": "append", "spark.app.id": "local-1"}, "snapshot 1") is None
    assert from_summary({PREFIX + "sweep": "1"}, "snapshot 1") is None


@given(st.data())
def test_no_part_of_a_ledger_entry_is_taken_for_a_whole(data: st.DataObject) -> None:
    body = encode_entry(TABLE, SNAPSHOT, LANDING)
    length = data.draw(st.integers(0, len(body) - 1))

    with pytest.raises(Unreadable):
        decode_entry(TABLE, ledger_key(TABLE, SNAPSHOT.id, SNAPSHOT.sequence), body[:length])


@given(st.binary(), st.text())
def test_whatever_is_no_landing_is_unreadable_and_nothing_worse(body: bytes, text: str) -> None:
    with pytest.raises(Unreadable):
        decode_entry(TABLE, "landed", body)
    for name in ("version", "units", "counts", "watermark", "slice", "before", "load_date"):
        try:
            from_summary(changed(**{name: text}), "snapshot 1")
        except Unreadable as error:
            assert "snapshot 1" in str(error)  # noqa: PT017 - some texts are a number, and that is fine


@given(st.data())
def test_a_progress_object_with_one_byte_changed_is_refused(data: st.DataObject) -> None:
    body = bytearray(encode_units(LANDING.remainders))
    kept = kept_at(TABLE, bytes(body))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))

    with pytest.raises(Unreadable, match=f"{kept.sha256}.json is not what its snapshot says"):
        decode_kept(kept, bytes(body))


def test_a_progress_object_whose_hash_is_right_must_still_be_a_unit_list() -> None:
    body = b'{"id": "a"}'

    with pytest.raises(Unreadable, match="Expected `array`"):
        decode_kept(Kept("progress/v1/x.json", sha256(body).hexdigest()), body)


@pytest.mark.parametrize(
    ("summary", "reason"),
    [
        (changed(version=None), "another version"),
        (changed(version="3"), r"format '3'\). Update"),
        (changed(units=None), "KeyError.'progress'"),
        (changed(units=None, progress="progress/v1/x.json"), "progress-sha256"),
        (changed(units='[{"generation": 1}]'), "required field `id`"),
        (changed(units='[{"id": 5}]'), "Expected `str`"),
        (changed(units='[{"id": "a", "spans": [[1]]}]'), "length 2"),
        (changed(before="ten"), "ten"),
        (changed(slice="1.5"), "1.5"),
        (changed(load_date="yesterday"), "yesterday"),
        (changed(counts='{"rows": "many"}'), "Expected `int`"),
        (changed(watermark='{"kind": "integer"}'), "required field `value`"),
        (changed(watermark='{"kind": "integer", "value": "x"}'), "invalid literal"),
        (changed(watermark='{"kind": "decimal", "value": "x"}'), "InvalidOperation"),
        (changed(watermark='{"kind": "decimal", "value": "NaN"}'), "cannot be NaN"),
        (changed(watermark='{"kind": "text", "value": "unquoted"}'), "JSONDecodeError"),
        (changed(watermark=msgspec.json.encode({"kind": "text", "value": "[" * 100_000}).decode()), "recursion"),
        (changed(watermark='{"kind": "interval", "value": "P1D"}'), "unknown kind 'interval'"),
    ],
)
def test_a_summary_that_was_meddled_with_is_unreadable(summary: dict[str, str], reason: str) -> None:
    with pytest.raises(Unreadable, match=reason) as refused:
        from_summary(summary, "snapshot 1")
    assert "snapshot 1" in str(refused.value)


def with_fields(**fields: object) -> bytes:
    entry = msgspec.json.decode(encode_entry(TABLE, SNAPSHOT, LANDING))
    return msgspec.json.encode(entry | fields)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (with_fields(version=3), r"another version of Lakehead \(format '3'\)"),
        (with_fields(table="other"), "about another table or snapshot"),
        (with_fields(snapshot=1), "about another table or snapshot"),
        (with_fields(sequence=1), "about another table or snapshot"),
        (with_fields(units="a"), "Expected `array`"),
        (with_fields(token=None), "Expected `str`"),
        (with_fields(counts={"rows": None}), "Expected `int`"),
        (with_fields(load_date="2026-13-01"), "Invalid RFC3339"),
        (with_fields(watermark={"kind": "timestamp", "value": "noon"}), "watermark of"),
        (with_fields(watermark={"kind": "decimal", "value": "sNaN"}), "watermark of"),
        (with_fields(watermark={"kind": "interval", "value": "P1D"}), "unknown kind"),
        (b"", "truncated"),
        (b"\xff", "malformed"),
    ],
)
def test_a_ledger_object_that_was_meddled_with_is_unreadable(body: bytes, reason: str) -> None:
    key = ledger_key(TABLE, SNAPSHOT.id, SNAPSHOT.sequence)

    with pytest.raises(Unreadable, match=reason) as refused:
        decode_entry(TABLE, key, body)
    assert key in str(refused.value)


def _entry() -> bytes:
    return encode_entry(TABLE, SNAPSHOT, LANDING)


def _progress() -> bytes:
    return encode_units(LANDING.remainders)


def _summary() -> bytes:
    return msgspec.json.format(msgspec.json.encode(to_summary(LANDING, _progress()), order="sorted"))


def _summary_of_many() -> bytes:
    return msgspec.json.format(msgspec.json.encode(to_summary(LANDING, kept_at(TABLE, _progress())), order="sorted"))


def _entry_read_by() -> bytes:
    return encode_entry(TABLE, SNAPSHOT, READ_BY)


def _entry_part() -> bytes:
    return encode_entry(TABLE, SNAPSHOT, PART)


def _summary_read_by() -> bytes:
    return msgspec.json.format(msgspec.json.encode(to_summary(READ_BY, _progress()), order="sorted"))


FORMATS = {
    "ledger-entry-read-by.v1.json": _entry_read_by,
    "ledger-entry-part.v2.json": _entry_part,
    "summary-read-by.v1.json": _summary_read_by,
    "ledger-entry.v1.json": _entry,
    "progress-object.v1.json": _progress,
    "summary.v1.json": _summary,
    "summary-of-many-units.v1.json": _summary_of_many,
}


@pytest.mark.parametrize(("name", "written"), FORMATS.items(), ids=FORMATS)
def test_what_is_stored_is_written_as_it_always_was(name: str, written: Callable[[], bytes]) -> None:
    """What is stored outlives every version of ours: a change here is a new format, with a new version beside it."""
    assert written() + b"\n" == (GOLDEN / name).read_bytes()


def test_what_was_stored_once_is_still_read() -> None:
    key = "landed/v1/table=8a5f0f0c-5b8e-4f1c-9c1e-2f6b1d1f0a11/00000000000000000042-6917529027641081856.json"
    assert key == ledger_key(TABLE, SNAPSHOT.id, SNAPSHOT.sequence)
    assert decode_entry(TABLE, key, (GOLDEN / "ledger-entry.v1.json").read_bytes()) == SNAPSHOT

    summary = msgspec.json.decode((GOLDEN / "summary.v1.json").read_bytes(), type=dict[str, str])
    assert told(summary) == (LANDING, None)
    summary = msgspec.json.decode((GOLDEN / "summary-read-by.v1.json").read_bytes(), type=dict[str, str])
    assert told(summary) == (READ_BY, None)
    entry = (GOLDEN / "ledger-entry-read-by.v1.json").read_bytes()
    assert decode_entry(TABLE, key, entry) == replace(SNAPSHOT, landing=READ_BY)
    entry = (GOLDEN / "ledger-entry-part.v2.json").read_bytes()
    assert decode_entry(TABLE, key, entry) == replace(SNAPSHOT, landing=PART)

    summary = msgspec.json.decode((GOLDEN / "summary-of-many-units.v1.json").read_bytes(), type=dict[str, str])
    landing, kept = told(summary)
    assert kept is not None
    body = (GOLDEN / "progress-object.v1.json").read_bytes().rstrip(b"\n")
    assert replace(landing, remainders=decode_kept(kept, body)) == LANDING


@pytest.mark.parametrize(
    "watermark",
    [5, -(10**30), Decimal("1E+5"), Decimal("-0.00"), date(1, 1, 1), datetime(1969, 12, 31, 23), "\x00'\"{ü}"],  # noqa: DTZ001 - without a zone on purpose
)
def test_a_watermark_keeps_its_kind(watermark: int | Decimal | date | str) -> None:
    landing = replace(LANDING, new_watermark=NewWatermark(watermark))

    back = told(to_summary(landing, b"[]"))[0].new_watermark.watermark

    assert (back, type(back), str(back)) == (watermark, type(watermark), str(watermark))
