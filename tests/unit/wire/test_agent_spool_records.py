"""What an agent's spool keeps beside its batches is as it always was, and its names can be read back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.wire import agent_spool_records as files
from lakehead.wire.append_log import encode_head, encode_item
from lakehead.wire.errors import InvalidIdentity, NewerFormat, Unreadable
from lakehead.wire.request_id import RequestId
from lakehead.wire.seen_requests import HEAD, MAGIC, SeenBlock, SeenFile, encode_seen_block, read_seen_file
from lakehead.wire.stored_record import StoredRecord

GOLDEN = Path(__file__).parents[2] / "golden" / "agent"
RECORDS: dict[str, StoredRecord] = {
    "agent.v1.json": files.AgentSpoolRecord(
        spool_id="spool-1", agent_id="agent-a", created_at_unix_ns=1_760_000_000_000_000_000
    ),
    "agent-pinned.v1.json": files.AgentSpoolRecord(
        spool_id="spool-1", agent_id="agent-a", created_at_unix_ns=1_760_000_000_000_000_000, authority="authority-1"
    ),
    "parked.v1.json": files.ParkedNote(
        agent_id="agent-a",
        boot_id="boot-uuid",
        seq_start=10,
        seq_end=20,
        number=7,
        code="identity_conflict",
        text="Another frame was accepted.",
        frame_sha256="ab" * 32,
        parked_at_unix_ns=1_760_000_000_000_000_000,
    ),
}
ONE, TWO = RequestId(b"1" * 16, b"a" * 16), RequestId(b"2" * 16, b"b" * 16)
SEEN = HEAD + encode_seen_block(1_500, [ONE]) + encode_seen_block(2_500, []) + encode_seen_block(3_500, [TWO, ONE])
BLOCKS = [
    SeenBlock(1_500, b"1" * 16 + b"a" * 16),
    SeenBlock(2_500, b""),
    SeenBlock(3_500, b"2" * 16 + b"b" * 16 + b"1" * 16 + b"a" * 16),
]


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_is_as_it_always_was(name: str) -> None:
    record, stored = RECORDS[name], (GOLDEN / name).read_bytes()

    assert type(record).decode(stored, record.key) == record
    assert record.encode() == stored.rstrip(b"\n")


def test_a_record_of_an_impossible_agent_is_refused() -> None:
    body = RECORDS["agent.v1.json"].encode().replace(b"agent-a", b"")

    with pytest.raises(Unreadable):
        files.AgentSpoolRecord.decode(body, files.SPOOL)
    with pytest.raises(InvalidIdentity):
        files.AgentSpoolRecord(spool_id="s", agent_id="\n", created_at_unix_ns=0)


@given(st.integers(0, 10**20 - 1))
def test_the_number_of_a_file_is_read_back(number: int) -> None:
    for folder in (files.ENTRIES, files.PARKED, files.SEEN):
        assert files.number_of(files.numbered(folder, number)) == number
    assert files.number_of(files.damaged(number, "journal")) == number
    assert files.number_of(files.parked_note(number)) is None
    for other in ("", "entries/1", "entries/x", f"tmp/{number:020}", f"entries/{number:020}.tmp", files.SPOOL):
        assert files.number_of(other) is None


def test_requests_are_written_as_they_always_were() -> None:
    assert (GOLDEN / "requests.v1.seen").read_bytes() == SEEN
    assert read_seen_file(SEEN) == SeenFile(BLOCKS, is_damaged=False)


def test_a_torn_block_is_left_out_and_is_no_damage() -> None:
    before = len(HEAD + encode_seen_block(1_500, [ONE]) + encode_seen_block(2_500, []))

    for end in range(len(SEEN)):
        found = read_seen_file(SEEN[:end])
        assert not found.is_damaged
        assert found.blocks == BLOCKS[: len(found.blocks)]
        assert (len(found.blocks) == 2) == (end >= before)


def test_a_flipped_bit_costs_one_block_and_is_told() -> None:
    for at in range(len(HEAD), len(SEEN)):
        body = bytearray(SEEN)
        body[at] ^= 16
        found = read_seen_file(bytes(body))
        assert found.is_damaged
        assert len(found.blocks) == 2
        assert all(each in BLOCKS for each in found.blocks)


@given(st.binary(max_size=200))
def test_any_bytes_have_an_answer(body: bytes) -> None:
    for each in (body, HEAD + body, SEEN + body):
        try:
            found = read_seen_file(each)
        except Unreadable:
            continue
        assert all(len(block.requests) % 32 == 0 for block in found.blocks)


def test_a_newer_file_is_told_apart_from_a_damaged_one() -> None:
    with pytest.raises(NewerFormat):
        read_seen_file(encode_head(MAGIC, 2, b""))
    for content in (b"short", b"12345678" + b"half a request"):
        assert read_seen_file(HEAD + b"".join(encode_item(HEAD, content))) == SeenFile([], is_damaged=True)


@pytest.mark.parametrize("sizes", [(15, 16), (16, 17), (0, 0)])
def test_digests_of_another_length_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        RequestId(bytes(sizes[0]), bytes(sizes[1]))
