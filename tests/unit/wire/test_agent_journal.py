"""A journal comes back as it was written, and whatever became of its bytes, each is told as kept, torn or damaged."""

import tracemalloc
from pathlib import Path
from random import Random

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.wire.agent_journal import (
    EncodedRecords,
    JournalContent,
    JournalHead,
    JournalItem,
    encode_journal_item,
    encode_records,
    joined_records,
    read_journal,
)
from lakehead.wire.append_log import ITEM_HEAD_BYTES, MARKER, encode_head, encode_item
from lakehead.wire.batch_identity import MAX_SEQUENCE, BatchIdentity
from lakehead.wire.errors import BadFrame, NewerFormat, Unreadable
from lakehead.wire.frame import decode_frame, encode_frame
from lakehead.wire.record_schemas import FrameKind, as_newest
from tests.support.effort import effort
from tests.unit.wire.frames import NUMBERS, SAMPLES, logs, same, samples
from tests.unit.wire.journals import (
    HEAD,
    ITEMS,
    LOG_HEAD,
    LOG_ITEMS,
    item,
    journal,
    pieces_of,
    request,
    told,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "agent"
JOURNALS = {"samples.v1.journal": (HEAD, ITEMS), "logs.v1.journal": (LOG_HEAD, LOG_ITEMS)}


STEP = effort(41, soak=1)
"""Of each byte that is tried so many are left out: `test_append_log` tries all, on items that are read faster."""


def read(body: bytes) -> JournalContent:
    found = read_journal(body)
    assert found is not None
    return found


@pytest.mark.parametrize("name", JOURNALS)
def test_a_journal_is_read_as_it_always_was(name: str) -> None:
    head, items = JOURNALS[name]
    stored = (GOLDEN / name).read_bytes()

    found = read(stored)

    assert found.head == head
    assert told(found.items) == told(items)
    assert (found.log.damaged, found.log.torn_at) == ([], None)


@pytest.mark.parametrize("name", JOURNALS)
def test_a_journal_is_written_as_it_always_was(name: str) -> None:
    head, items = JOURNALS[name]

    assert journal(items, head) == (GOLDEN / name).read_bytes()


ids = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=30)


@given(
    ids,
    ids,
    st.integers(0, MAX_SEQUENCE - 100),
    st.lists(st.tuples(st.integers(1, len(SAMPLES)), st.none() | st.integers(0, 2**64)), max_size=6),
)
def test_what_was_written_is_read(agent: str, boot: str, start: int, parts: list[tuple[int, int | None]]) -> None:
    head = JournalHead(FrameKind.SAMPLES, agent, boot, start)
    items: list[JournalItem] = []
    for count, number in parts:
        first = items[-1].end_seq if items else start
        items.append(item(first, samples(SAMPLES[:count]), None if number is None else request(number)))

    found = read(journal(items, head))

    assert found.head == head
    assert told(found.items) == told(items)
    assert found.runs() == ([list(found.items)] if items else [])


def test_the_size_of_an_item_is_known_before_it_is_encoded() -> None:
    for each in (*ITEMS, *LOG_ITEMS):
        assert len(b"".join(encode_journal_item(HEAD.encode(), each))) == each.encoded.size


@pytest.mark.parametrize(
    "parts", [[NUMBERS[:2], NUMBERS[2:3], NUMBERS], [NUMBERS[:2], SAMPLES[3:5], NUMBERS[2:3]]], ids=["numbers", "both"]
)
def test_records_of_several_requests_are_framed_as_one_batch(parts: list[list[dict[str, object]]]) -> None:
    rows = [row for part in parts for row in part]
    encoded = [encode_records(FrameKind.SAMPLES, samples(part)) for part in parts]

    frame = encode_frame(
        BatchIdentity("agent-a", "boot-uuid", 10, 9 + len(rows)),
        FrameKind.SAMPLES,
        joined_records(FrameKind.SAMPLES, encoded),
    )

    assert repr(decode_frame(frame).records.to_pylist()) == repr(samples(rows).to_pylist())


def test_numbers_alone_are_kept_in_the_short_form() -> None:
    short = encode_records(FrameKind.SAMPLES, samples(NUMBERS))

    assert short.schema_version == 1
    assert len(short.message) < len(encode_records(FrameKind.SAMPLES, samples()).message)
    assert same(as_newest(FrameKind.SAMPLES, joined_records(FrameKind.SAMPLES, [short])), samples(NUMBERS))


def test_metadata_of_a_schema_is_not_kept() -> None:
    marked = samples(NUMBERS).replace_schema_metadata({"a": "b"})

    assert encode_records(FrameKind.SAMPLES, marked).message.equals(
        encode_records(FrameKind.SAMPLES, samples(NUMBERS)).message
    )


def test_records_of_another_kind_are_refused() -> None:
    with pytest.raises(BadFrame):
        encode_records(FrameKind.SAMPLES, logs())


# --- torn


@pytest.mark.parametrize("items", [ITEMS, ITEMS[:1]], ids=["after others", "the first"])
def test_an_item_that_the_file_ends_within_is_torn_and_never_damage(items: list[JournalItem]) -> None:
    *whole, last = pieces_of(items)
    before = b"".join(whole)

    for cut in range(1, len(last), STEP):
        found = read(before + last[:cut])
        assert told(found.items) == told(items[:-1]), cut
        assert (found.log.damaged, found.log.torn_at) == ([], len(before)), cut

    assert read(before).log.torn_at is None
    assert told(read(before + last).items) == told(items)


def test_a_file_that_ends_within_its_head_never_held_anything() -> None:
    head = HEAD.encode()

    for cut in range(len(head)):
        assert read_journal(head[:cut]) is None, cut
    assert read(head).items == []


# --- damaged


@pytest.mark.parametrize("place", range(len(ITEMS)))
def test_a_flipped_bit_costs_the_item_that_it_is_in_and_no_other(place: int) -> None:
    pieces = pieces_of(ITEMS)
    start = sum(map(len, pieces[: place + 1]))
    end = start + len(pieces[place + 1])
    random = Random(place)

    for at in range(start, end, STEP):
        body = bytearray(b"".join(pieces))
        body[at] ^= 1 << random.randrange(8)
        found = read(bytes(body))
        assert told(found.items) == told([*ITEMS[:place], *ITEMS[place + 1 :]]), at
        assert (found.log.damaged, found.log.torn_at) == ([(start, end)], None), at
        assert found.log.is_damaged_before_its_end == (place < len(ITEMS) - 1)
        gap = ITEMS[place]
        assert [(run[0].first_seq, run[-1].end_seq) for run in found.runs()] == [
            each for each in ((10, gap.first_seq), (gap.end_seq, 18)) if each[0] < each[1]
        ]


def test_a_flipped_bit_in_the_head_of_the_file_is_damage_and_not_an_empty_file_or_a_newer_one() -> None:
    for items in (ITEMS, ITEMS[:1]):
        pieces = pieces_of(items)
        for at in range(8 * len(pieces[0])):
            body = bytearray(b"".join(pieces))
            body[at // 8] ^= 1 << at % 8
            with pytest.raises(Unreadable) as caught:
                read_journal(bytes(body))
            assert not isinstance(caught.value, NewerFormat), at


def test_bytes_that_vanished_or_came_cost_only_the_items_around_them() -> None:
    pieces = pieces_of(ITEMS)
    start, end = len(pieces[0]) + len(pieces[1]), len(pieces[0]) + len(pieces[1]) + len(pieces[2])
    body = b"".join(pieces)

    for changed in (body[: start + 5] + body[start + 9 :], body[: end - 3] + b"12345678" + body[end - 3 :]):
        found = read(changed)
        assert told(found.items) == told([ITEMS[0], *ITEMS[2:]])
        assert len(found.log.damaged) == 1

    hole = body[:start] + bytes(end - start) + body[end:]
    assert told(read(hole).items) == told([ITEMS[0], *ITEMS[2:]])
    assert read(hole).log.damaged == [(start, end)]


def test_zeros_at_the_end_are_told() -> None:
    body = journal(ITEMS)

    found = read(body + bytes(100))

    assert told(found.items) == told(ITEMS)
    assert found.log.damaged == [(len(body), len(body) + 100)]
    assert not found.log.is_damaged_before_its_end


def test_damage_before_a_torn_item_is_not_at_the_end() -> None:
    pieces = pieces_of(ITEMS)
    body = bytearray(b"".join(pieces)[:-1])
    body[-len(pieces[-1])] ^= 1

    found = read(bytes(body))

    assert found.log.is_damaged_before_its_end
    assert found.log.torn_at is not None


def test_items_of_another_file_are_not_taken_for_this_ones() -> None:
    other = JournalHead(FrameKind.SAMPLES, "agent-a", "boot-of-yesterday", 10)
    foreign = pieces_of([item(18, samples(NUMBERS[:1]), request(9))], other)[1]

    found = read(journal(ITEMS) + foreign)

    assert told(found.items) == told(ITEMS)
    assert len(found.log.damaged) == 1


def test_what_looks_like_an_item_inside_of_a_damaged_one_is_no_item() -> None:
    forged = b"".join(encode_item(encode_head(b"whatever", 1, b""), b"forged"))
    line = samples([{**NUMBERS[0], "metric": "a", "value": 1.0}])
    encoded = encode_records(FrameKind.SAMPLES, line)
    carrier = EncodedRecords(encoded.count, 1, pa.py_buffer(encoded.message.to_pybytes() + MARKER + forged))
    pieces = pieces_of([ITEMS[0], JournalItem(12, carrier, None), item(13, samples(NUMBERS[:1]))])
    body = bytearray(b"".join(pieces))
    body[len(pieces[0]) + len(pieces[1]) + 9] ^= 1

    found = read(bytes(body))

    assert [each.first_seq for each in found.items] == [10, 13]


@pytest.mark.parametrize("first_seq", [9, 10, 11, MAX_SEQUENCE], ids=["before", "twice", "within", "beyond the last"])
def test_numbers_that_do_not_ascend_are_damage(first_seq: int) -> None:
    found = read(journal([ITEMS[0], item(first_seq, samples(NUMBERS[:2])), *ITEMS[1:]]))

    assert told(found.items) == told(ITEMS)
    assert found.log.is_damaged_before_its_end


def test_an_item_without_valid_records_is_damage() -> None:
    bad = samples([{**NUMBERS[0], "labels": [("b", "1"), ("a", "2")]}])
    unsorted, short = encode_records(FrameKind.SAMPLES, bad), EncodedRecords(2, 1, pa.py_buffer(b"no records"))
    more = EncodedRecords(3, 1, ITEMS[0].encoded.message)

    for each in (unsorted, short, more):
        found = read(journal([ITEMS[0], JournalItem(12, each, None)]))
        assert told(found.items) == told(ITEMS[:1])
        assert len(found.log.damaged) == 1


def test_a_newer_form_is_told_apart_from_damage() -> None:
    head = HEAD.encode()
    fields = head[12:-4]
    items = pieces_of(ITEMS)[1:]

    for newer in (encode_head(head[:8], 2, fields), encode_head(head[:8], 1, b"\x03\x00" + fields[2:])):
        with pytest.raises(NewerFormat):
            read_journal(b"".join([newer, *items]))
    content = bytearray(items[0][ITEM_HEAD_BYTES:])
    for at, number in ((12, 9), (14, 4)):  # the version of the schema, and the flags
        changed = bytes(content[:at]) + bytes([number]) + bytes(content[at + 1 :])
        with pytest.raises(NewerFormat):
            read_journal(head + b"".join(encode_item(head, changed)))


def test_a_head_that_contradicts_itself_is_unreadable() -> None:
    head = HEAD.encode()
    magic, fields = head[:8], head[12:-4]

    for bad in (fields[:3], fields[:-1], fields + b"x", fields[:-1] + b"\xff", fields[:-1] + b"\x00"):
        with pytest.raises(Unreadable):
            read_journal(encode_head(magic, 1, bad))
    with pytest.raises(Unreadable):
        read_journal(encode_head(magic, 1, fields[:2] + bytes([255] * 8) + fields[10:]))
    with pytest.raises(Unreadable):
        read_journal(encode_head(b"\x89LMBATCH", 1, fields))


# --- anything


@given(st.binary(max_size=400))
def test_any_bytes_have_an_answer(body: bytes) -> None:
    head = HEAD.encode()
    for each in (body, head + body, journal(ITEMS[:1]) + body, head[: len(body) % len(head)] + body):
        try:
            found = read_journal(each)
        except Unreadable:
            continue
        if found is not None:
            expect_every_byte_once(found, each)


def test_any_damage_has_an_answer_that_invents_nothing() -> None:
    random = Random(1)
    whole, known = journal(ITEMS), told(ITEMS)
    for _ in range(effort(200, soak=100_000)):
        body = bytearray(whole)
        for _ in range(random.choice([1, 1, 2, 5])):
            at, size = random.randrange(len(HEAD.encode()), len(body)), random.choice([0, 1, 4, 40, 400])
            body[at : at + size] = random.choice([random.randbytes(size), bytes(size), b"", whole[at - 40 : at]])
        if random.random() < 0.3:
            del body[random.randrange(len(HEAD.encode()), len(body)) :]
        found = read(bytes(body))
        expect_every_byte_once(found, bytes(body))
        assert all(each in known for each in told(found.items))


def expect_every_byte_once(found: JournalContent, body: bytes) -> None:
    log = found.log
    parts = [(each.start, each.end) for each in log.items] + [*log.damaged]
    parts += [] if log.torn_at is None else [(log.torn_at, len(body))]
    at = len(found.head.encode())
    for start, end in sorted(parts):
        assert at == start < end
        at = end
    assert at == len(body) == log.size
    assert all(one[1] < other[0] for one, other in zip(log.damaged, log.damaged[1:], strict=False))
    for one, other in zip(found.items, found.items[1:], strict=False):
        assert one.end_seq <= other.first_seq


@pytest.mark.slow
def test_reading_needs_memory_in_proportion_to_the_file() -> None:
    head = HEAD.encode()
    whole = head + b"".join(encode_journal_item(head, item(10, samples(NUMBERS * 10_000))))
    bodies = [whole, whole[:-1] + b"x", head + MARKER * (1 << 17), whole[: len(head) + 8] + MARKER * (1 << 17)]
    for body in bodies:
        tracemalloc.start()
        before = pa.total_allocated_bytes()
        read_journal(body)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak + pa.total_allocated_bytes() - before < 4 * len(body)


def test_the_checksum_is_castagnolis() -> None:
    head = HEAD.encode()

    assert int.from_bytes(head[-4:], "little") == google_crc32c.value(head[:-4])
    first = b"".join(encode_item(head, b"ab", b"c"))
    assert int.from_bytes(first[12:16], "little") == google_crc32c.value(b"abc")
    assert int.from_bytes(first[16:20], "little") == google_crc32c.value(head[:-4] + first[:16])
