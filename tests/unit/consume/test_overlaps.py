"""What landings drop is compared with what landed, whoever brought it: equal, different, or not to be known."""

from collections.abc import Mapping
from random import Random

import msgspec
import pyarrow as pa
import pytest

from lakehead.accept.conflicts import Conflicts
from lakehead.accept.overlaps import Overlaps
from lakehead.clock import SystemClock
from lakehead.consume import overlaps as compared
from lakehead.consume.decode.frames import AcceptedFrame
from lakehead.consume.messages import uri_in_store
from lakehead.consume.overlaps import DroppedRecords, OverlapCheck
from lakehead.consume.ports import OverlapReport
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import RandomIds
from lakehead.storage.port import Object
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import OverlapManifest
from lakehead.wire.errors import NewerFormat
from lakehead.wire.frame import encode_frame, frame_sha256, peek_frame
from lakehead.wire.record_schemas import LOGS_V1, SAMPLES_V1, FrameKind
from lakehead.wire.spans import Spans
from tests.support.async_tests import async_test
from tests.unit.accept.support import APPLIED, DOWN, NO_PAUSES, NOT_APPLIED, ScriptedStore

URL = "s3://bucket/prefix"
TABLE = "table-uuid"
OVERLAP, BY_BLOB = "quarantine/v1/overlap", "quarantine-by-blob/v1"


class Store(ScriptedStore):
    """Notes what is read."""

    def __init__(self) -> None:
        super().__init__(page_size=3)
        self.read: list[str] = []

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        self.read.append(key)
        return await super().get(key, start=start, end=end)


def samples(start: int, end: int, *, own: range = range(0), name: str = "own") -> bytes:
    """A frame; its records are its own for some numbers, and everybody's for the others."""
    rows = [
        {"time": n, "metric": name if n in own else "all", "labels": [], "type": "gauge", "value": 1.0}
        for n in range(start, end + 1)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=SAMPLES_V1)
    return encode_frame(BatchIdentity("agent", "boot", start, end), FrameKind.SAMPLES, batch)


def logs(start: int, end: int) -> bytes:
    none: list[object] = []
    row = {"time": 1, "attributes": none, "resource_attributes": none, "scope_attributes": none}
    batch = pa.RecordBatch.from_pylist([row] * (end - start + 1), schema=LOGS_V1)
    return encode_frame(BatchIdentity("agent", "boot", start, end), FrameKind.LOGS, batch)


async def accepted(store: Store, body: bytes) -> IdentityManifest:
    manifest = IdentityManifest.of(peek_frame(body), frame_sha256(body), accepted_at_unix_ns=1, collector_id="gateway")
    await store.put(manifest.raw_blob_key, body)
    await store.put(manifest.key, manifest.encode())
    return manifest


def unit(manifest: IdentityManifest) -> str:
    return uri_in_store(URL, manifest.key)


def dropped(manifest: IdentityManifest, *spans: tuple[int, int]) -> DroppedRecords:
    frame = AcceptedFrame(identity=manifest.identity, kind=FrameKind.SAMPLES, sha256=manifest.frame_sha256)
    return DroppedRecords(unit=unit(manifest), frame=frame, spans=spans)


async def check(store: Store, *of: DroppedRecords, landed: Mapping[str, Spans] | None = None) -> OverlapReport:
    """Compare; `landed` says who landed what, and None that nobody may ask."""

    async def owners(stream: str, wanted: Spans) -> Mapping[str, Spans]:
        assert stream == "agent=6167656e74/boot=626f6f74"
        assert landed is not None, f"who landed {wanted} was asked"
        return landed

    return await checking(store).check(of, table=TABLE, owners=owners)


def checking(store: Store) -> OverlapCheck:
    overlaps = Overlaps(
        store=store,
        clock=SystemClock(),
        ids=RandomIds(),
        random=Random(1),
        observed_by="pipeline",
        most_records=1_000,
        backoff=NO_PAUSES,
    )
    return OverlapCheck(overlaps=overlaps, store_url=URL)


async def quarantined(store: Store) -> list[OverlapManifest]:
    conflicts = Conflicts(store=store, clock=SystemClock(), ids=RandomIds(), collector_id="c")
    manifests = [each.manifest for each in (await conflicts.list()).conflicts]
    assert all(isinstance(each, OverlapManifest) for each in manifests)
    references = [key for key in store._objects if key.startswith(BY_BLOB)]
    found = [each for each in manifests if isinstance(each, OverlapManifest)]
    assert sorted(references) == sorted(keys.quarantine_by_blob(each.frame_sha256, each.identity) for each in found)
    return found


@async_test
async def test_equal_records_are_dropped_and_nobody_asks_who_landed_them() -> None:
    store = Store()
    await accepted(store, samples(10, 20))
    long = await accepted(store, samples(10, 25, own=range(21, 26)))

    assert await check(store, dropped(long, (10, 21))) == OverlapReport(equal=11)
    assert await quarantined(store) == []


@async_test
async def test_different_records_are_in_quarantine_with_both_hashes_keys_and_their_numbers() -> None:
    store = Store()
    short = await accepted(store, samples(10, 20))
    long = await accepted(store, samples(10, 25, own=range(15, 18)))
    first = await check(store, dropped(long, (10, 21)), landed={unit(short): ((15, 18),)})

    assert first == OverlapReport(equal=8, records=3, batches=1)
    [found] = await quarantined(store)
    assert (found.identity, found.frame_sha256, found.raw_blob_key) == (
        long.identity,
        long.frame_sha256,
        long.raw_blob_key,
    )
    [other] = found.others
    assert (other.accepted_manifest_key, other.frame_sha256, other.raw_blob_key, other.not_compared) == (
        short.key,
        short.frame_sha256,
        short.raw_blob_key,
        "",
    )
    assert found.ranges == other.ranges == ((15, 17),)
    assert found.table == TABLE

    assert await check(store, dropped(long, (10, 21)), landed={unit(short): ((15, 18),)}) == first
    assert await quarantined(store) == [found], "the first sighting stays"


@async_test
async def test_only_the_batch_that_landed_counts_and_not_another_that_differs() -> None:
    """The second equals the first, which landed; the third has other records, and has not landed yet."""
    store = Store()
    first = await accepted(store, samples(1, 10))
    second = await accepted(store, samples(5, 15))
    third = await accepted(store, samples(1, 30, own=range(1, 31)))

    assert (await check(store, dropped(second, (5, 11)), landed={unit(first): ((5, 11),)})).batches == 0
    assert await quarantined(store) == []
    assert (await check(store, dropped(second, (5, 11)), landed={unit(third): ((5, 11),)})).records == 6
    [found] = await quarantined(store)
    assert [each.accepted_manifest_key for each in found.others] == [third.key]


@async_test
async def test_a_batch_that_comes_again_is_not_compared_with_those_that_lost_to_it() -> None:
    store = Store()
    winner = await accepted(store, samples(10, 20))
    await accepted(store, samples(10, 25, own=range(10, 26)))

    assert await check(store, dropped(winner, (10, 21)), landed={unit(winner): ((10, 21),)}) == OverlapReport(equal=11)
    alone = await accepted(store, samples(100, 110))
    store.read.clear()
    assert await check(store, dropped(alone, (100, 111))) == OverlapReport(equal=11)
    assert store.read == [], "nothing has a common number with it"
    assert await quarantined(store) == []


@async_test
async def test_more_that_others_took_before_it_landed_is_added_to_what_was_seen_first() -> None:
    store = Store()
    first, batch = await accepted(store, samples(1, 10)), await accepted(store, samples(5, 20, own=range(5, 21)))
    await check(store, dropped(batch, (5, 11)), landed={unit(first): ((5, 11),)})
    [before] = await quarantined(store)
    later = await accepted(store, samples(15, 30))
    await check(store, dropped(batch, (5, 11), (15, 21)), landed={unit(first): ((5, 11),), unit(later): ((15, 21),)})

    [found] = await quarantined(store)
    assert found.ranges == ((5, 10), (15, 20))
    assert [each.accepted_manifest_key for each in found.others] == [first.key, later.key]
    assert found.observed_at_unix_ns == before.observed_at_unix_ns


@async_test
async def test_a_frame_or_manifest_that_cannot_be_read_is_not_equal() -> None:
    store = Store()
    batch = await accepted(store, samples(5, 60))
    gone, spoilt, damaged = [await accepted(store, samples(n, n + 9)) for n in (10, 30, 50)]
    await store.delete(gone.raw_blob_key)
    await store.put(spoilt.raw_blob_key, samples(30, 40))
    await store.put(damaged.key, b"{}")
    landed = {unit(gone): ((10, 20),), unit(spoilt): ((30, 40),), unit(damaged): ((50, 60),)}

    report = await check(store, dropped(batch, (10, 20), (30, 40), (50, 60)), landed=landed)

    assert report == OverlapReport(records=30, batches=1)
    [found] = await quarantined(store)
    reasons = {each.accepted_manifest_key: (each.frame_sha256, each.not_compared) for each in found.others}
    assert reasons[gone.key] == (gone.frame_sha256, f"The frame {gone.raw_blob_key} does not exist.")
    assert "It is not the frame that was accepted" in reasons[spoilt.key][1]
    assert reasons[damaged.key][0] == ""
    assert "is not a record" in reasons[damaged.key][1]


@async_test
async def test_a_batch_whose_own_frame_is_gone_is_not_equal_unless_it_landed_itself() -> None:
    store = Store()
    batch, other = await accepted(store, samples(10, 20)), await accepted(store, samples(10, 25))
    await store.delete(batch.raw_blob_key)

    assert (await check(store, dropped(batch, (10, 21)), landed={unit(batch): ((10, 21),)})).batches == 0
    assert (await check(store, dropped(batch, (10, 21)), landed={unit(other): ((10, 21),)})).records == 11


@async_test
async def test_who_landed_may_be_unknown_or_of_another_store_and_then_nothing_is_called_equal() -> None:
    store = Store()
    batch, other = await accepted(store, samples(10, 29)), await accepted(store, samples(10, 15, own=range(10, 12)))

    await check(store, dropped(batch, (10, 26)), landed={"s3://elsewhere/accepted/v1/x.json": ((16, 20),)})

    [found] = await quarantined(store)
    assert found.ranges == ((10, 11), (16, 25))
    assert {each.accepted_manifest_key: (each.ranges, each.not_compared) for each in found.others} == {
        "s3://elsewhere/accepted/v1/x.json": (((16, 19),), "It is not among the accepted batches of this store."),
        other.key: (((10, 11),), "Which of the two has landed is not known."),
        "unknown": (((20, 25),), "Which batch has landed is not known."),
    }


@async_test
async def test_batches_of_another_kind_and_void_identities_do_not_overlap() -> None:
    """Their records land in another table, or not at all."""
    store = Store()
    told, untold = logs(5, 25), logs(6, 26)
    manifest = await accepted(store, told)
    await store.put(manifest.key, msgspec.structs.replace(manifest, kind="logs").encode())
    await accepted(store, untold)
    void = IdentityVoid(
        agent_id="agent",
        boot_id="boot",
        seq_start=7,
        seq_end=27,
        frame_sha256="a" * 64,
        voided_at_unix_ns=1,
        voided_by="gc",
    )
    await store.put(void.key, void.encode())
    batch = await accepted(store, samples(10, 20))

    assert await check(store, dropped(batch, (10, 21))) == OverlapReport(equal=11)


@pytest.mark.parametrize("prefix", [OVERLAP, BY_BLOB])
@pytest.mark.parametrize("fault", [NOT_APPLIED, APPLIED, DOWN])
@async_test
async def test_what_may_not_be_durable_is_an_error_and_the_next_try_completes_it(prefix: str, fault: str) -> None:
    store = Store()
    short, batch = await accepted(store, samples(10, 20)), await accepted(store, samples(10, 25, own=range(10, 26)))
    landed = {unit(short): ((10, 21),)}
    store.next(prefix, *[fault] * 3)
    try:
        await check(store, dropped(batch, (10, 21)), landed=landed)
    except (Unavailable, OutcomeUnknown):
        store.script.clear()
        await check(store, dropped(batch, (10, 21)), landed=landed)
    else:
        assert (prefix, fault) == (OVERLAP, APPLIED), "only what was found to be stored is no error"

    assert len(await quarantined(store)) == 1


@async_test
async def test_a_record_in_quarantine_that_is_damaged_or_newer_stops_the_pipeline() -> None:
    store = Store()
    short, batch = await accepted(store, samples(10, 20)), await accepted(store, samples(10, 25, own=range(10, 26)))
    for body, error in ((b"{}", Misconfigured), (b'{"schema":"lightmetrics.overlap.v2"}', NewerFormat)):
        await store.put(keys.overlap(batch.identity, batch.frame_sha256), body)
        with pytest.raises(error):
            await check(store, dropped(batch, (10, 21)), landed={unit(short): ((10, 21),)})


@async_test
async def test_a_long_boot_is_listed_only_near_the_numbers_and_a_large_batch_before_them_is_found() -> None:
    store = Store()
    for start in range(0, 10_000, 500):
        await accepted(store, samples(start, start))
    wide = await accepted(store, samples(6_101, 7_100, own=range(6_101, 7_101)))
    batch = await accepted(store, samples(7_095, 7_105))
    store.read.clear()

    report = await check(store, dropped(batch, (7_095, 7_101)), landed={unit(wide): ((7_095, 7_101),)})

    assert report == OverlapReport(records=6, batches=1)
    manifests = [key for key in store.read if key.startswith(keys.ACCEPTED)]
    assert manifests == [wide.key]


@async_test
async def test_a_manifest_that_names_the_frame_of_another_batch_is_not_compared_with_it() -> None:
    store = Store()
    batch = await accepted(store, samples(10, 25))
    wrong = msgspec.structs.replace(batch, seq_start=12, seq_end=30)
    await accepted(store, samples(10, 20))
    await store.put(wrong.key, wrong.encode())

    await check(store, dropped(batch, (12, 26)), landed={unit(wrong): ((12, 26),)})

    [found] = await quarantined(store)
    [other] = found.others
    assert found.ranges == ((12, 25),)
    assert "of another batch" in other.not_compared


@async_test
async def test_a_large_frame_is_read_once_however_many_others_it_is_compared_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compared, "KEPT_BYTES", 0)
    store = Store()
    others = [await accepted(store, samples(n, n + 9)) for n in range(10, 60, 10)]
    batch = await accepted(store, samples(10, 70))
    store.read.clear()

    assert await check(store, dropped(batch, (10, 60))) == OverlapReport(equal=50)
    assert [store.read.count(each.raw_blob_key) for each in (*others, batch)] == [1] * 6


@async_test
async def test_the_ledger_is_asked_once_for_all_batches_of_a_boot() -> None:
    store, asked = Store(), list[Spans]()
    batches = [await accepted(store, samples(n, n + 9, own=range(n, n + 2))) for n in (10, 30, 50)]
    wide = await accepted(store, samples(0, 99))

    async def owners(_stream: str, wanted: Spans) -> Mapping[str, Spans]:
        asked.append(wanted)
        return {unit(wide): wanted}

    drops = [dropped(each, (each.seq_start, each.seq_end + 1)) for each in batches]
    report = await checking(store).check(drops, table=TABLE, owners=owners)

    assert asked == [((10, 12), (30, 32), (50, 52))]
    assert report == OverlapReport(equal=24, records=6, batches=3)
    assert sorted(each.ranges for each in await quarantined(store)) == [((10, 11),), ((30, 31),), ((50, 51),)]


@async_test
async def test_only_so_many_batches_of_an_agent_are_compared_and_the_rest_is_in_quarantine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else an agent could let all others wait for days. What it landed itself is not in quarantine for that."""
    monkeypatch.setattr(compared, "MOST_COMPARED", 2)
    store = Store()
    others = [await accepted(store, samples(n, n + 9)) for n in range(10, 60, 10)]
    batch = await accepted(store, samples(10, 70))
    landed = {unit(each): ((each.seq_start, each.seq_end + 1),) for each in others}
    store.read.clear()

    assert await check(store, dropped(batch, (10, 60)), landed=landed) == OverlapReport(equal=20, records=30, batches=1)
    assert [store.read.count(each.raw_blob_key) for each in others] == [1, 1, 0, 0, 0]
    [found] = await quarantined(store)
    assert found.ranges == ((30, 59),)
    assert {each.accepted_manifest_key: each.not_compared for each in found.others} == {
        unit(each): compared.TOO_MANY for each in others[2:]
    }
    report = await check(store, dropped(others[2], (30, 40)), landed={unit(others[2]): ((30, 40),)})
    assert report == OverlapReport(equal=10)


@async_test
async def test_of_a_long_boot_only_batches_with_common_numbers_are_kept_in_memory() -> None:
    store = Store()
    for start in range(0, 500, 10):
        await accepted(store, samples(start, start + 9))
    found = await checking(store).overlaps.accepted_in("agent", "boot", ((5, 11), (480, 490)))

    assert [each.seq_start for each in found] == [0, 10, 480]


@async_test
async def test_a_frame_or_manifest_of_a_newer_format_is_not_damaged_and_stops_the_pipeline_until_it_is_updated() -> (
    None
):
    """To put the batch in quarantine would say for ever that it could not be compared."""
    store = Store()
    other, batch = await accepted(store, samples(10, 20)), await accepted(store, samples(10, 25))
    body = samples(10, 20)
    body = body[:8] + (2).to_bytes(2, "little") + body[10:]
    newer = frame_sha256(body)
    await store.put(keys.raw_blob(newer), body)
    named = msgspec.structs.replace(other, frame_sha256=newer, raw_blob_key=keys.raw_blob(newer)).encode()
    for manifest in (named, b'{"schema":"lightmetrics.accepted_batch.v2"}'):
        await store.put(other.key, manifest)
        with pytest.raises(NewerFormat):
            await check(store, dropped(batch, (10, 21)), landed={unit(other): ((10, 21),)})
    assert await quarantined(store) == []


@async_test
async def test_a_long_listing_ends_with_the_pipeline() -> None:
    store = Store()
    batches = [await accepted(store, samples(start, start + 9)) for start in range(0, 500, 10)]

    def end() -> None:
        raise Unavailable("The pipeline ends.")

    async def owners(_stream: str, _wanted: Spans) -> Mapping[str, Spans]:
        return {}

    tested = checking(store)
    tested.go_on = end
    with pytest.raises(Unavailable, match="ends"):
        await tested.check([dropped(batches[-1], (490, 500))], table=TABLE, owners=owners)
