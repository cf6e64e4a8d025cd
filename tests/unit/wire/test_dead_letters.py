"""Dead letters come back as they were, and what is something else is refused."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.wire.dead_letters import (
    NO_TABLE,
    ClosedLetter,
    DeadLetterObject,
    letter_id,
    letter_key,
    message_unit,
)
from lakehead.wire.errors import NewerFormat, Unreadable

GOLDEN = Path(__file__).parents[2] / "golden" / "consume"
NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"
LETTER = DeadLetterObject(
    table=TABLE,
    unit="s3://bucket/a.json",
    reason="line 3, column 7: a date was expected",
    tries=5,
    first_at=NOON,
    last_at=NOON + timedelta(hours=1),
    burials=2,
    queue="https://sqs.eu-central-1.amazonaws.com/1/files",
    message_id="5fea7756-0ea4-451a-a703-a558b933e274",
    uri="s3://bucket/a.json",
).with_body(b'{"Records":[]}')
DROPPED = DeadLetterObject(
    table=NO_TABLE,
    unit=message_unit(b"\xff\x00"),
    reason="not a notification",
    tries=1,
    first_at=NOON,
    last_at=NOON,
    replayed_at=NOON + timedelta(minutes=1),
    closed=ClosedLetter("dropped", NOON + timedelta(minutes=2)),
).with_body(b"\xff\x00")


@pytest.mark.parametrize(("name", "letter"), [("dead-letter", LETTER), ("dead-letter-dropped", DROPPED)])
def test_a_letter_is_stored_as_it_always_was(name: str, letter: DeadLetterObject) -> None:
    stored = (GOLDEN / f"{name}.v1.json").read_bytes()

    assert letter.encode() == stored
    assert DeadLetterObject.decode(stored, letter.key) == letter


@given(st.binary())
def test_any_body_comes_back(body: bytes) -> None:
    letter = LETTER.with_body(body)

    assert DeadLetterObject.decode(letter.encode(), letter.key).body == body


def test_a_letter_without_a_message_has_no_body() -> None:
    assert msgspec.structs.replace(LETTER, text=None).body is None


def test_each_unit_and_generation_has_its_own_key_and_the_same_message_one() -> None:
    assert letter_key(TABLE, "a") == f"dead-letters/v1/table={TABLE}/{letter_id('a')}.json"
    assert len({letter_id("a"), letter_id("b"), letter_id("a", 1), letter_id("a", 2)}) == 4
    assert message_unit(b"a") == message_unit(b"a") != message_unit(b"b")


def test_a_letter_of_a_newer_format_is_told_from_a_damaged_one() -> None:
    newer = LETTER.encode().replace(b'"version":1', b'"version":2').replace(b'"unit"', b'"something"')

    with pytest.raises(NewerFormat, match="has the format 2"):
        DeadLetterObject.decode(newer, LETTER.key)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 10_000,
        LETTER.encode().replace(b'"version":1,', b""),
        LETTER.encode().replace(b'"version":1', b'"version":0'),
        LETTER.encode().replace(b"a.json", b"b.json"),
        LETTER.encode().replace(TABLE.encode(), b"other"),
        LETTER.encode().replace(b"123456Z", b"123456"),
        LETTER.encode().replace(b'"base64":null', b'"base64":"%"'),
    ],
)
def test_what_is_no_letter_is_unreadable_and_named(body: bytes) -> None:
    with pytest.raises(Unreadable, match=r"dead-letters/v1.*(by hand|newer)"):
        DeadLetterObject.decode(body, LETTER.key)


def test_times_come_back_in_any_zone() -> None:
    there = LETTER.encode().replace(b"12:00:00.123456Z", b"14:00:00.123456+02:00")

    assert DeadLetterObject.decode(there, LETTER.key).first_at == NOON.astimezone(timezone(timedelta(hours=2)))
