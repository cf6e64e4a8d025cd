"""One batch becomes accepted once: every answer of the store at every step of the flow."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from lakehead.accept.acceptance import Accepted, Conflict, Duplicate, Submission, Void
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import decode_frame, frame_sha256
from lakehead.wire.index_records import AcceptedByBlob, AcceptedByTime
from lakehead.wire.record_schemas import FrameKind
from tests.support.async_tests import async_test
from tests.unit.accept.support import (
    APPLIED,
    DOWN,
    GONE,
    IDENTITY,
    NOT_APPLIED,
    FixedClock,
    ScriptedStore,
    acceptor,
    manifest_of,
    submitted,
    void_of,
)
from tests.unit.wire.frames import frame

ACCEPTED_KEY = "accepted/v1/agent=6167656e742d61/boot=626f6f742d31/00000000000000000010-00000000000000000020.json"
BLOBS, BY_TIME, MANIFESTS = "raw-blobs", "raw-blobs-by-time", "accepted"


async def manifest_in(store: ScriptedStore) -> IdentityManifest:
    found = await store.get(ACCEPTED_KEY)
    assert found is not None
    return IdentityManifest.decode(found.body, ACCEPTED_KEY)


@async_test
async def test_a_new_batch_is_its_blob_its_entry_of_the_hour_and_then_its_manifest() -> None:
    store, submission = ScriptedStore(), submitted()

    answer = await acceptor(store).accept(submission)

    assert isinstance(answer, Accepted)
    assert sorted(key.split("/")[0] for key in store.created[:2]) == [BLOBS, BY_TIME]
    assert store.created[2:] == [ACCEPTED_KEY]
    blob = await store.get(answer.manifest.raw_blob_key)
    assert blob is not None
    assert blob.body == submission.body
    manifest = await manifest_in(store)
    assert manifest == answer.manifest
    assert (manifest.identity, manifest.frame_sha256, manifest.frame_bytes) == (IDENTITY, submission.sha256, 7)
    assert manifest.collector_id == "gateway-1"


@async_test
async def test_the_same_frame_again_is_a_duplicate_at_any_gateway_and_changes_nothing() -> None:
    store = ScriptedStore()
    await acceptor(store).accept(submitted())
    before = await store.get(ACCEPTED_KEY)

    for name in ("gateway-1", "gateway-2"):
        answer = await acceptor(store, name=name).accept(submitted())
        assert isinstance(answer, Duplicate)
        assert answer.manifest.collector_id == "gateway-1"

    assert await store.get(ACCEPTED_KEY) == before
    assert len(await store.keys("raw-blobs")) == 1


@async_test
async def test_answers_depend_neither_on_derived_indexes_nor_on_how_long_ago_it_was() -> None:
    store = ScriptedStore()
    answer = await acceptor(store).accept(submitted())
    assert isinstance(answer, Accepted)
    for entry in (AcceptedByTime.of(answer.manifest), AcceptedByBlob.of(answer.manifest)):
        await store.create(entry.key, entry.encode())
    for folder in (keys.RAW_BLOBS_BY_TIME, keys.ACCEPTED_BY_TIME, keys.ACCEPTED_BY_BLOB):
        for key in await store.keys(folder):
            await store.delete(key)
    years_later = replace(acceptor(store, name="gateway-2"), clock=FixedClock(seconds=30 * 365 * 86_400.0))

    assert isinstance(await years_later.accept(submitted()), Duplicate)
    assert isinstance(await years_later.accept(submitted(b"others")), Conflict)
    new = submitted(b"new", BatchIdentity("agent-a", "boot-1", 21, 30))
    assert isinstance(await years_later.accept(new), Accepted)


@async_test
async def test_another_frame_under_the_same_identity_is_a_conflict_with_the_accepted_one() -> None:
    store = ScriptedStore()
    await acceptor(store).accept(submitted())
    before = await store.get(ACCEPTED_KEY)

    answer = await acceptor(store).accept(submitted(b"others"))

    assert isinstance(answer, Conflict)
    assert answer.manifest.frame_sha256 == submitted().sha256
    assert answer.submission.sha256 == submitted(b"others").sha256
    assert await store.get(ACCEPTED_KEY) == before
    assert len(await store.keys("raw-blobs")) == 2, "what was submitted is kept"


@pytest.mark.parametrize("content", [b"records", b"others"])
@async_test
async def test_a_void_identity_accepts_nothing_whatever_the_bytes(content: bytes) -> None:
    store = ScriptedStore()
    await store.put(ACCEPTED_KEY, void_of(submitted()).encode())

    answer = await acceptor(store).accept(submitted(content))

    assert answer == Void(void_of(submitted()))


@pytest.mark.parametrize("prefix", [BLOBS, BY_TIME])
@pytest.mark.parametrize(("fault", "error"), [(DOWN, Unavailable), (NOT_APPLIED, OutcomeUnknown)])
@async_test
async def test_no_manifest_is_created_before_blob_and_entry_are_stored(
    prefix: str, fault: str, error: type[Exception]
) -> None:
    store = ScriptedStore()
    store.next(prefix, fault)

    with pytest.raises(error):
        await acceptor(store).accept(submitted())

    assert store.writes(MANIFESTS) == 0
    assert isinstance(await acceptor(store).accept(submitted()), Accepted), "trying again is safe"


@pytest.mark.parametrize(
    ("faults", "tries"), [([APPLIED], 1), ([NOT_APPLIED], 2), ([NOT_APPLIED, APPLIED], 2), ([NOT_APPLIED] * 2, 3)]
)
@async_test
async def test_our_own_manifest_after_a_lost_answer_is_a_first_acceptance(faults: list[str], tries: int) -> None:
    store = ScriptedStore()
    store.next(MANIFESTS, *faults)

    answer = await acceptor(store).accept(submitted())

    assert isinstance(answer, Accepted)
    assert store.writes(MANIFESTS) == tries
    assert answer.manifest == await manifest_in(store)


@pytest.mark.parametrize(
    ("there", "expected"), [(b"records", Duplicate), (b"others", Conflict)], ids=["same hash", "other hash"]
)
@pytest.mark.parametrize("fault", [None, NOT_APPLIED], ids=["exists", "in doubt"])
@async_test
async def test_somebody_elses_manifest_is_compared_by_its_hash(there: bytes, expected: type, fault: str | None) -> None:
    store = ScriptedStore()
    await store.put(ACCEPTED_KEY, manifest_of(submitted(there)).encode())
    if fault:
        store.next(MANIFESTS, fault)

    answer = await acceptor(store).accept(submitted())

    assert type(answer) is expected


@async_test
async def test_a_create_that_stays_in_doubt_is_not_answered_and_the_same_bytes_are_accepted_later() -> None:
    store = ScriptedStore()
    store.next(MANIFESTS, *[NOT_APPLIED] * 3)

    with pytest.raises(OutcomeUnknown):
        await acceptor(store).accept(submitted())

    assert isinstance(await acceptor(store).accept(submitted()), Accepted)


@async_test
async def test_a_create_in_doubt_whose_key_cannot_be_read_is_not_answered() -> None:
    store = ScriptedStore()
    store.next(MANIFESTS, APPLIED)
    store.is_down_for_reads = True

    with pytest.raises(Unavailable):
        await acceptor(store).accept(submitted())

    store.is_down_for_reads = False
    assert isinstance(await acceptor(store).accept(submitted()), Duplicate), "its side effects are the reconciler's"


@async_test
async def test_a_manifest_that_existed_and_is_gone_is_neither_accepted_nor_created_again() -> None:
    store = ScriptedStore()
    store.next(MANIFESTS, GONE)

    with pytest.raises(Unavailable, match="Nothing may delete it"):
        await acceptor(store).accept(submitted())

    assert await store.get(ACCEPTED_KEY) is None


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"schema": "lightmetrics.accepted_batch.v2"}', b'{"schema": "other.v1"}'],
    ids=["empty", "torn", "newer", "foreign"],
)
@async_test
async def test_what_cannot_be_read_at_the_key_is_neither_a_duplicate_nor_a_conflict(body: bytes) -> None:
    store = ScriptedStore()
    await store.put(ACCEPTED_KEY, body)

    with pytest.raises(Unavailable, match="cannot be told"):
        await acceptor(store).accept(submitted())


@async_test
async def test_of_32_gateways_that_race_one_accepts_and_the_manifest_never_changes() -> None:
    store = ScriptedStore()
    contents = [b"records", b"others"] * 16

    answers = await asyncio.gather(
        *(acceptor(store, name=f"g{n}").accept(submitted(c)) for n, c in enumerate(contents))
    )

    assert Counter(type(each) for each in answers) == {Accepted: 1, Duplicate: 15, Conflict: 16}


@async_test
async def test_a_gateway_whose_manifests_could_not_be_read_accepts_nothing() -> None:
    store, before_1970 = ScriptedStore(), FixedClock(seconds=-2_000_000_000)
    for wrong in (acceptor(store, name="x" * 2_000), replace(acceptor(store), clock=before_1970)):
        with pytest.raises(Misconfigured, match="Nothing was accepted"):
            await wrong.accept(submitted())
    assert not store.writes(MANIFESTS)
    assert isinstance(await acceptor(store).accept(submitted()), Accepted)


@pytest.mark.parametrize("folder", [BLOBS, BY_TIME])
@pytest.mark.parametrize("fault", [APPLIED, NOT_APPLIED])
@async_test
async def test_a_write_in_doubt_does_no_harm_if_the_blob_and_its_entry_are_there(folder: str, fault: str) -> None:
    """As at each retry of an upload whose answer was lost: both were stored by the first attempt."""
    store = ScriptedStore()
    await acceptor(store).accept(submitted())
    store.next(folder, fault)

    assert isinstance(await acceptor(store).accept(submitted()), Duplicate)


@async_test
async def test_an_upload_that_fails_has_ended_in_all_its_parts() -> None:
    store, begun, go_on, ended = ScriptedStore(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slowly() -> None:
        begun.set()
        await go_on.wait()
        ended.set()

    store.meanwhile["raw-blobs"] = [slowly]
    store.next("raw-blobs-by-time", DOWN)
    accepting = asyncio.create_task(acceptor(store).accept(submitted()))
    await begun.wait()
    await asyncio.wait([accepting], timeout=0)
    assert not accepting.done()
    go_on.set()
    with pytest.raises(Unavailable):
        await accepting
    assert ended.is_set()


def test_a_submission_has_the_hash_of_exactly_the_bytes_that_were_sent() -> None:
    body = frame()

    submission = Submission.of(body, decode_frame(body))

    assert (submission.body, submission.sha256) == (body, frame_sha256(body))
    assert (submission.identity, submission.kind) == (decode_frame(body).identity, FrameKind.SAMPLES)
