"""What the messages of a queue of accepted batches announce."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from lakehead.consume.accepted_batches import AT_ONCE, AcceptedLookup, AcceptedReader
from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.iceberg_landings import _to_read as to_read
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.objects import NotUnderstood
from lakehead.consume.queue import Message
from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.lake.landing import Numbers, remainders_of
from lakehead.storage.port import Object
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch import KeyValueEntry, encode_json
from lakehead.wire.batch_identity import MAX_SEQUENCE, BatchIdentity
from lakehead.wire.errors import NewerFormat
from lakehead.wire.landing_entries import LandingEntry
from lakehead.wire.record_schemas import FrameKind
from tests.support.async_tests import async_test
from tests.unit.accept.support import ScriptedStore
from tests.unit.wire.frames import frame, with_number

URL = "s3://bucket/prefix"
BATCH = "ingest/0.batch"
TABLES = {FrameKind.SAMPLES: "m.samples", FrameKind.LOGS: "m.logs"}


def identity(start: int, end: int, agent: str = "agent", boot: str = "boot") -> BatchIdentity:
    return BatchIdentity(agent, boot, start, end)


def an_entry(of: BatchIdentity, kind: str = "samples", sha256: str = "ab" * 32, size: int = 100) -> KeyValueEntry:
    value = LandingEntry(kind=kind, frame_sha256=sha256, frame_bytes=size)
    return KeyValueEntry(keys.accepted(of).encode(), value.encode())


@dataclass
class Failing(ScriptedStore):
    error: LakeheadError

    def __post_init__(self) -> None:
        super().__init__()

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        del key, start, end
        raise self.error


async def read(
    store: ScriptedStore,
    *,
    location: str = BATCH,
    deliveries: int = 1,
    tables: dict[FrameKind, str] = TABLES,
    counts: ConsumeCounts | None = None,
) -> Sequence[Work]:
    lookup = AcceptedLookup(store=store, max_tries=3)
    message = Message(id="m", body=location.encode(), deliveries=deliveries)
    await lookup.look_up([message])
    reader = AcceptedReader(tables=tables, store_url=URL, known=lookup.known)
    return reader(message, counts or ConsumeCounts())


async def a_store(*entries: KeyValueEntry) -> ScriptedStore:
    store = ScriptedStore()
    await store.put(BATCH, encode_json(entries))
    return store


@async_test
async def test_each_entry_is_a_unit_of_the_table_that_takes_its_kind() -> None:
    of = identity(10, 20, agent="a/b", boot="é")
    works = await read(await a_store(an_entry(of, size=7), an_entry(identity(0, 0), "logs", "cd" * 32)))

    assert [work.key for work in works] == [
        UnitKey("m.samples", f"{URL}/{keys.accepted(of)}"),
        UnitKey("m.logs", f"{URL}/{keys.accepted(identity(0, 0))}"),
    ]
    assert works[0].object is not None
    assert works[0].object.uri == f"{URL}/{keys.raw_blob('ab' * 32)}"
    assert works[0].size == 7
    assert works[0].frame is not None
    assert (works[0].frame.identity, works[0].frame.kind, works[0].frame.sha256) == (of, FrameKind.SAMPLES, "ab" * 32)


@async_test
async def test_a_unit_has_the_numbers_of_its_records_in_the_stream_of_its_boot() -> None:
    entries = [an_entry(identity(10, 20)), an_entry(identity(10, 25)), an_entry(identity(0, MAX_SEQUENCE, boot="2"))]
    read_units = [to_read(work).unit for work in await read(await a_store(*entries))]

    streams = ["agent=6167656e74/boot=626f6f74", "agent=6167656e74/boot=32"]
    assert [unit.numbers for unit in read_units] == [
        Numbers(streams[0], 10, 21),
        Numbers(streams[0], 10, 26),
        Numbers(streams[1], 0, MAX_SEQUENCE + 1),
    ]
    assert [each.spans for each in remainders_of(read_units, {})] == [None, ((21, 26),), None]


@async_test
async def test_agents_and_boots_whose_names_are_alike_are_streams_of_their_own() -> None:
    entries = [an_entry(identity(0, 1, "a/b", "c")), an_entry(identity(0, 1, "a", "b/c"))]
    one, other = [to_read(work).unit.numbers for work in await read(await a_store(*entries))]

    assert one is not None
    assert other is not None
    assert one.stream != other.stream


@async_test
async def test_an_entry_that_is_there_twice_is_one_unit() -> None:
    works = await read(await a_store(an_entry(identity(0, 1)), an_entry(identity(0, 1))))

    assert len(works) == 1


@async_test
async def test_a_batch_that_is_queued_again_under_a_name_of_its_own_is_read() -> None:
    again = f"{BATCH}#01234567-89ab-4def-8123-456789abcdef"

    assert len(await read(await a_store(an_entry(identity(0, 1))), location=again)) == 1


@async_test
async def test_a_kind_that_no_table_takes_is_counted_and_announces_nothing() -> None:
    counts = ConsumeCounts()
    store = await a_store(an_entry(identity(0, 1), "logs"))

    assert await read(store, tables={FrameKind.SAMPLES: "m.samples"}, counts=counts) == []
    assert counts.filtered == 1


@async_test
async def test_a_kind_that_the_entry_does_not_tell_is_taken_from_the_frame() -> None:
    store = await a_store(an_entry(identity(0, 1), ""))
    await store.put(keys.raw_blob("ab" * 32), frame(FrameKind.LOGS))

    [work] = await read(store)
    assert work.key.table == "m.logs"
    assert work.frame is not None
    assert work.frame.kind is FrameKind.LOGS


@async_test
async def test_a_frame_of_unknown_kind_that_cannot_be_read_is_left_to_who_reads_it() -> None:
    store = await a_store(an_entry(identity(0, 1), ""))
    assert [work.key.table for work in await read(store)] == ["m.samples"]

    await store.put(keys.raw_blob("ab" * 32), b"nonsense" * 100)
    assert [work.key.table for work in await read(store)] == ["m.samples"]


@async_test
async def test_a_batch_that_does_not_exist_comes_again_and_is_then_not_understood() -> None:
    """Another consumer may have landed and removed it a moment ago: then its message does not come again."""
    with pytest.raises(Unavailable, match=r"ingest/0\.batch"):
        await read(ScriptedStore(), deliveries=2)
    with pytest.raises(NotUnderstood, match=r"ingest/0\.batch .* does not exist"):
        await read(ScriptedStore(), deliveries=3)


@async_test
async def test_a_store_that_does_not_answer_or_refuses_lets_the_message_come_again() -> None:
    for error in (Unavailable("503"), Misconfigured("403")):
        with pytest.raises(Unavailable, match=str(error)):
            await read(Failing(error), deliveries=9)


@async_test
async def test_what_is_no_batch_of_accepted_keys_is_not_understood() -> None:
    other = KeyValueEntry(b"accepted/v1/../x.json", LandingEntry(frame_sha256="ab" * 32, frame_bytes=1).encode())
    for body in (
        b"",
        b"nonsense",
        encode_json([other]),
        encode_json([KeyValueEntry(an_entry(identity(0, 1)).key, b"")]),
    ):
        store = ScriptedStore()
        await store.put(BATCH, body)
        with pytest.raises(NotUnderstood, match=r"ingest/0\.batch"):
            await read(store)
    for location in ("", "../x", "a//b"):
        with pytest.raises(NotUnderstood, match="location"):
            await read(ScriptedStore(), location=location)


@async_test
async def test_what_only_a_newer_lakehead_understands_stops_the_pipeline() -> None:
    newer = KeyValueEntry(an_entry(identity(0, 1)).key, b'{"version": 2, "hash": "other"}')
    kind = an_entry(identity(0, 1), "traces")
    for store in (await a_store(newer), await a_store(kind), ScriptedStore()):
        if await store.head(BATCH) is None:
            await store.put(BATCH, b"LKB2 and what nobody knows yet")
        with pytest.raises(NewerFormat, match=r"ingest/0\.batch"):
            await read(store)

    store = await a_store(an_entry(identity(0, 1), ""))
    await store.put(keys.raw_blob("ab" * 32), with_number(frame(), 8, 2, 9))
    with pytest.raises(NewerFormat):
        await read(store)


@async_test
async def test_one_bad_message_costs_no_other_and_what_was_looked_up_before_is_forgotten() -> None:
    store = await a_store(an_entry(identity(0, 1)))
    lookup = AcceptedLookup(store=store, max_tries=3)
    reader = AcceptedReader(tables=TABLES, store_url=URL, known=lookup.known)
    good, bad = (Message(id=key, body=key.encode()) for key in (BATCH, "ingest/none.batch"))

    await lookup.look_up([bad, good])
    assert len(reader(good, ConsumeCounts())) == 1
    with pytest.raises(Unavailable):
        reader(bad, ConsumeCounts())

    await lookup.look_up([bad])
    with pytest.raises(Unavailable, match="not looked up"):
        reader(good, ConsumeCounts())


@async_test
async def test_a_store_that_does_not_answer_is_asked_for_few_batches_and_again_for_the_next_messages() -> None:
    class Down(ScriptedStore):
        asked = 0

        async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
            self.asked += 1
            await asyncio.sleep(0)
            return await super().get(key, start=start, end=end)

    store = Down()
    await store.put(BATCH, encode_json([an_entry(identity(0, 1))]))
    lookup = AcceptedLookup(store=store, max_tries=3)
    messages = [Message(id=str(number), body=f"ingest/{number}.batch".encode()) for number in range(500)]

    store.is_down_for_reads = True
    await lookup.look_up(messages)
    assert store.asked == AT_ONCE
    assert len(lookup.known) == 500
    assert all(isinstance(each, Unavailable) for each in lookup.known.values())

    store.is_down_for_reads = False
    await lookup.look_up(messages[:1])
    assert not isinstance(lookup.known[messages[0].body], LakeheadError)
