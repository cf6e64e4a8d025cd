"""Whatever became of a file that grows at its end, its reader says of each byte whether it is as it was written."""

from itertools import pairwise
from random import Random

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.wire.append_log import ITEM_HEAD_BYTES, MARKER, AppendLog, encode_head, encode_item, read_log
from lakehead.wire.errors import NewerFormat, Unreadable
from tests.support.effort import effort

MAGIC = b"\x89LMTEST\n"
HEAD = encode_head(MAGIC, 1, b"fields")
CONTENTS = [b"first", b"", b"the third one", MARKER, b"x" * 40]


def item(content: bytes, head: bytes = HEAD) -> bytes:
    return b"".join(encode_item(head, content))


PIECES = [HEAD, *map(item, CONTENTS)]
WHOLE = b"".join(PIECES)
STARTS = [sum(map(len, PIECES[: each + 1])) for each in range(len(PIECES))]
"""Where each item begins, and where the last one ends."""


def read(body: bytes) -> AppendLog:
    found = read_log(body, MAGIC, 1)
    assert found is not None
    return found


def contents(log: AppendLog) -> list[bytes]:
    return [bytes(each.content) for each in log.items]


@given(st.binary(max_size=300), st.lists(st.lists(st.binary(max_size=50), max_size=3), max_size=6))
def test_what_was_written_is_read(fields: bytes, items: list[list[bytes]]) -> None:
    head = encode_head(MAGIC, 1, fields)

    found = read(head + b"".join(b"".join(encode_item(head, *pieces)) for pieces in items))

    assert found.fields == fields
    assert contents(found) == [b"".join(pieces) for pieces in items]
    assert (found.damaged, found.torn_at) == ([], None)


def test_checksums_are_castagnolis_and_that_of_an_item_continues_the_files() -> None:
    first = PIECES[1]

    assert int.from_bytes(HEAD[-4:], "little") == google_crc32c.value(HEAD[:-4])
    assert int.from_bytes(first[12:16], "little") == google_crc32c.value(CONTENTS[0])
    assert int.from_bytes(first[16:20], "little") == google_crc32c.value(HEAD[:-4] + first[:16])


@pytest.mark.parametrize("place", range(len(CONTENTS)))
def test_an_item_that_the_file_ends_within_is_torn_and_never_damage(place: int) -> None:
    for end in range(STARTS[place] + 1, STARTS[place + 1]):
        found = read(WHOLE[:end])
        assert contents(found) == CONTENTS[:place]
        assert (found.damaged, found.torn_at) == ([], STARTS[place])


def test_a_file_that_ends_within_its_head_never_had_an_item() -> None:
    assert all(read_log(HEAD[:end], MAGIC, 1) is None for end in range(len(HEAD)))
    assert contents(read(HEAD)) == []


@pytest.mark.parametrize("place", range(len(CONTENTS)))
def test_a_flipped_bit_costs_the_item_that_it_is_in_and_no_other(place: int) -> None:
    for bit in range(8 * STARTS[place], 8 * STARTS[place + 1]):
        body = bytearray(WHOLE)
        body[bit // 8] ^= 1 << bit % 8
        found = read(bytes(body))
        assert contents(found) == [*CONTENTS[:place], *CONTENTS[place + 1 :]]
        assert (found.damaged, found.torn_at) == ([(STARTS[place], STARTS[place + 1])], None)
        assert found.is_damaged_before_its_end == (place < len(CONTENTS) - 1)


@pytest.mark.parametrize("size", [1, 2, len(PIECES)], ids=lambda size: f"{size - 1} items")
def test_a_flipped_bit_in_the_head_is_damage_and_neither_an_empty_file_nor_a_newer_one(size: int) -> None:
    for bit in range(8 * len(HEAD)):
        body = bytearray(b"".join(PIECES[:size]))
        body[bit // 8] ^= 1 << bit % 8
        if size == 1 and 80 <= bit < 96 and int.from_bytes(body[10:12], "little") > 6:
            assert read_log(bytes(body), MAGIC, 1) is None  # longer than the file, in which no item is
            continue
        with pytest.raises(Unreadable) as caught:
            read_log(bytes(body), MAGIC, 1)
        assert not isinstance(caught.value, NewerFormat)


def test_another_version_is_told_after_the_checksum() -> None:
    for version in (0, 2):
        with pytest.raises(NewerFormat):
            read_log(encode_head(MAGIC, version, b""), MAGIC, 1)
    assert read_log(encode_head(MAGIC, 2, b""), MAGIC, 2) is not None


def test_two_damaged_items_side_by_side_are_one_damaged_part() -> None:
    body = bytearray(WHOLE)
    body[STARTS[1]] ^= 1
    body[STARTS[2] + ITEM_HEAD_BYTES] ^= 1

    found = read(bytes(body))

    assert found.damaged == [(STARTS[1], STARTS[3])]
    assert contents(found) == [CONTENTS[0], *CONTENTS[3:]]


def test_an_item_of_another_file_is_none_of_this_one() -> None:
    found = read(WHOLE + item(b"foreign", encode_head(MAGIC, 1, b"other fields")))

    assert contents(found) == CONTENTS
    assert found.damaged == [(len(WHOLE), found.size)]


@given(st.binary(max_size=300), st.integers(0, len(WHOLE)))
def test_any_bytes_have_an_answer(body: bytes, start: int) -> None:
    for each in (body, HEAD + body, WHOLE[:start] + body, HEAD + MARKER * 3 + body):
        try:
            found = read_log(each, MAGIC, 1)
        except Unreadable:
            continue
        if found is not None:
            expect_every_byte_once(found)


def test_any_damage_has_an_answer_that_invents_nothing() -> None:
    random = Random(1)
    for _ in range(effort(2_000, soak=200_000)):
        body = bytearray(WHOLE)
        for _ in range(random.choice([1, 1, 2, 5])):
            at, size = random.randrange(len(HEAD), len(body) + 1), random.choice([0, 1, 4, 20, 60])
            body[at : at + size] = random.choice([random.randbytes(size), bytes(size), b"", WHOLE[at - 20 : at]])
        if random.random() < 0.3:
            del body[random.randrange(len(HEAD), len(body) + 1) :]
        found = read(bytes(body))
        expect_every_byte_once(found)
        assert set(contents(found)) <= set(CONTENTS)


def expect_every_byte_once(found: AppendLog) -> None:
    parts = [(each.start, each.end) for each in found.items] + [*found.damaged]
    parts += [] if found.torn_at is None else [(found.torn_at, found.size)]
    at = found.size if not parts else min(parts)[0]
    for start, end in sorted(parts):
        assert at == start < end
        at = end
    assert at == found.size
    assert all(one[1] < other[0] for one, other in pairwise(found.damaged))
