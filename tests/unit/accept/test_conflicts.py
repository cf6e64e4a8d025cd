"""Operators see exactly what is in quarantine: conflicts and overlaps, filtered, page by page, damaged ones too."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from lakehead.accept.acceptance import Conflict
from lakehead.accept.conflicts import AT_ONCE, MOST_BYTES, Conflicts, ListedConflict, NoSuchConflict
from lakehead.errors import Misconfigured, Unavailable
from lakehead.ids import RandomIds
from lakehead.storage.port import ListedObject, Object
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import ConflictResolution, OverlapManifest, OverlappedBatch, QuarantineManifest
from lakehead.wire.errors import InvalidIdentity, InvalidKeyPart, Unreadable
from tests.support.async_tests import async_test
from tests.unit.accept.support import FixedClock, ScriptedStore, manifest_of, submitted

ACCEPTED = b"accepted"


class CountingStore(ScriptedStore):
    """Knows how many reads were under way at once, and which folders were listed."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once = self.most = 0
        self.listed: list[str] = []

    def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        self.listed.append(folder)
        return super().list(folder, start_after=start_after)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)  # lets the others begin
        try:
            return await super().get(key, start=start, end=end)
        finally:
            self.at_once -= 1


def conflicts(store: ScriptedStore) -> Conflicts:
    return Conflicts(store=store, clock=FixedClock(), ids=RandomIds(), collector_id="gateway-1")


def identity(agent: str, start: int = 10) -> BatchIdentity:
    return BatchIdentity(agent, "boot-1", start, start + 9)


async def conflict(store: ScriptedStore, who: BatchIdentity, content: bytes = b"other") -> str:
    """Record a conflict. Returns the submitted hash."""
    accepted, other = submitted(ACCEPTED, who), submitted(content, who)
    await store.put(manifest_of(accepted).key, manifest_of(accepted).encode())
    await conflicts(store).record(Conflict(manifest_of(accepted), other))
    return other.sha256


async def overlap(store: ScriptedStore, who: BatchIdentity) -> OverlapManifest:
    wider = BatchIdentity(who.agent_id, who.boot_id, who.seq_start, who.seq_end + 5)
    other = manifest_of(submitted(b"early", wider))
    manifest = OverlapManifest.of(
        who,
        submitted(b"late", who).sha256,
        [
            OverlappedBatch(
                accepted_manifest_key=other.key,
                raw_blob_key=other.raw_blob_key,
                frame_sha256=other.frame_sha256,
                ranges=((who.seq_start, who.seq_end),),
            )
        ],
        table="table-uuid",
        observed_at_unix_ns=7,
        observed_by="landing-1",
    )
    await store.put(manifest.key, manifest.encode())
    return manifest


async def all_pages(store: ScriptedStore, *, limit: int, agent_id: str | None = None) -> list[list[ListedConflict]]:
    pages, after = [], ""
    while True:
        page = await conflicts(store).list(agent_id=agent_id, after=after, limit=limit)
        pages.append(list(page.conflicts))
        if page.next_after is None:
            return pages
        after = page.next_after


@async_test
async def test_a_listed_conflict_says_all_that_an_operator_needs() -> None:
    store = ScriptedStore()
    submitted_hash = await conflict(store, identity("agent-a"))

    [listed] = (await conflicts(store).list()).conflicts

    assert (listed.kind, listed.identity, listed.submitted_sha256) == (
        "identity_conflict",
        identity("agent-a"),
        submitted_hash,
    )
    assert isinstance(listed.manifest, QuarantineManifest)
    assert listed.manifest.accepted_frame_sha256 == submitted(ACCEPTED).sha256
    assert listed.manifest.observed_at_unix_ns == FixedClock().now_ns()
    assert (listed.resolution, listed.problem) == (None, "")
    assert listed == await conflicts(store).show(identity("agent-a"), submitted_hash)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
@async_test
async def test_pages_hold_the_whole_quarantine_once_conflicts_and_overlaps_by_key(limit: int) -> None:
    store = ScriptedStore(page_size=3)
    wanted = []
    for agent in ("agent-a", "agent-b"):
        for start in (10, 20, 30):
            await conflict(store, identity(agent, start))
            wanted.append((agent, start, "identity_conflict"))
    for agent in ("agent-a", "agent-c"):
        await overlap(store, identity(agent))
        wanted.append((agent, 10, "overlap"))
    await store.put("quarantine/v1/identity-conflict/notes.txt", b"not ours")

    pages = await all_pages(store, limit=limit)

    found = [(each.identity.agent_id, each.identity.seq_start, each.kind) for page in pages for each in page]
    assert found == wanted
    assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1)
    assert pages[-1]


@async_test
async def test_conflicts_are_filtered_by_agent_and_kind() -> None:
    store = ScriptedStore()
    for agent in ("a", "ab", "b"):  # the hex of the first is the beginning of the second's
        for start in (10, 20):
            await conflict(store, identity(agent, start))
        await overlap(store, identity(agent))

    pages = await all_pages(store, agent_id="a", limit=2)
    assert [(each.identity.agent_id, each.kind) for page in pages for each in page] == [
        ("a", "identity_conflict"),
        ("a", "identity_conflict"),
        ("a", "overlap"),
    ]
    only = await conflicts(store).list(kind="overlap")
    assert [each.identity.agent_id for each in only.conflicts] == ["a", "ab", "b"]
    assert all(isinstance(each.manifest, OverlapManifest) for each in only.conflicts)
    assert (await conflicts(store).list(agent_id="nobody")).conflicts == ()


@async_test
async def test_a_key_of_another_agent_is_a_place_to_go_on_from() -> None:
    store = ScriptedStore()
    for agent in ("a", "b", "c"):
        await conflict(store, identity(agent))
    [_, middle, _] = (await conflicts(store).list()).conflicts

    for agent, count in (("a", 0), ("b", 0), ("c", 1)):
        page = await conflicts(store).list(agent_id=agent, after=middle.key)
        assert len(page.conflicts) == count


@async_test
async def test_a_page_of_overlaps_does_not_list_all_conflicts_again() -> None:
    store = CountingStore()
    await conflict(store, identity("a"))
    last = await overlap(store, identity("a"))

    assert (await conflicts(store).list(after=last.key)).conflicts == ()

    assert store.listed == ["quarantine/v1/overlap"]


@pytest.mark.parametrize("after", ["x", "accepted/v1", "../..", "\ud800"])
@async_test
async def test_a_listing_goes_on_only_from_a_conflict(after: str) -> None:
    with pytest.raises(Misconfigured, match="next_after"):
        await conflicts(ScriptedStore()).list(after=after)


@async_test
async def test_what_no_agent_or_page_can_be_is_refused() -> None:
    with pytest.raises(InvalidIdentity):
        await conflicts(ScriptedStore()).list(agent_id="")
    with pytest.raises(Misconfigured):
        await conflicts(ScriptedStore()).list(limit=0)
    with pytest.raises(InvalidKeyPart):
        await conflicts(ScriptedStore()).show(identity("a"), "../x")


@pytest.mark.parametrize("body", [b"", b"{", b'{"schema":"lightmetrics.identity_conflict.v2"}'])
@async_test
async def test_a_conflict_that_cannot_be_read_is_shown_as_such_beside_the_others(body: bytes) -> None:
    store = ScriptedStore()
    damaged, good = await conflict(store, identity("a")), await conflict(store, identity("b"))
    key = (await conflicts(store).show(identity("a"), damaged)).key
    await store.put(key, body)

    first, second = (await conflicts(store).list()).conflicts

    assert (first.key, first.identity, first.submitted_sha256) == (key, identity("a"), damaged)
    assert first.manifest is None
    assert key in first.problem
    assert (second.submitted_sha256, second.problem) == (good, "")
    assert await conflicts(store).show(identity("a"), damaged) == first


@async_test
async def test_a_resolution_is_shown_and_one_that_cannot_be_read_is_no_resolution() -> None:
    store = ScriptedStore()
    submitted_hash = await conflict(store, identity("a"))
    who = identity("a")
    decision = ConflictResolution(
        agent_id="a",
        boot_id=who.boot_id,
        seq_start=who.seq_start,
        seq_end=who.seq_end,
        submitted_frame_sha256=submitted_hash,
        accepted_frame_sha256=submitted(ACCEPTED).sha256,
        resolution="accept_existing",
        resolved_at_unix_ns=1,
        resolved_by="ann",
        version=1,
    )
    await store.put(decision.key, decision.encode())

    assert await conflicts(store).resolution(who, submitted_hash) == decision
    assert await conflicts(store).resolution(who, "0" * 64) is None
    assert [each.resolution for each in (await conflicts(store).list()).conflicts] == [decision]

    elsewhere = msgspec.structs.replace(decision, submitted_frame_sha256="0" * 64)
    await store.put(decision.key, elsewhere.encode())
    with pytest.raises(Unreadable):
        await conflicts(store).resolution(who, submitted_hash)
    [listed] = (await conflicts(store).list()).conflicts
    assert listed.resolution is None
    assert decision.key in listed.problem


@async_test
async def test_a_hash_that_was_never_submitted_is_no_conflict() -> None:
    store = ScriptedStore()
    await conflict(store, identity("a"))

    with pytest.raises(NoSuchConflict, match="lakehead conflicts list"):
        await conflicts(store).show(identity("a"), submitted(ACCEPTED).sha256)


@async_test
async def test_an_overlap_can_be_shown_by_its_hash() -> None:
    store = ScriptedStore()
    manifest = await overlap(store, identity("a"))

    shown = await conflicts(store).show(identity("a"), manifest.frame_sha256)

    assert (shown.kind, shown.manifest) == ("overlap", manifest)


@async_test
async def test_an_outage_is_not_an_empty_list() -> None:
    store = ScriptedStore()
    await conflict(store, identity("a"))
    store.is_down_for_reads = True

    with pytest.raises(Unavailable):
        await conflicts(store).list()


@async_test
async def test_a_page_reads_some_at_once_and_never_many() -> None:
    store = CountingStore()
    for start in range(0, 1000, 10):
        await conflict(store, identity("a", start))

    page = await conflicts(store).list(limit=90)

    assert (len(page.conflicts), store.most) == (90, AT_ONCE)


@pytest.mark.slow
@async_test
async def test_a_page_has_a_bounded_size_however_large_the_records_of_overlaps_are() -> None:
    store = ScriptedStore()
    hash_, first = submitted().sha256, 10**18
    others = [
        OverlappedBatch(
            accepted_manifest_key=keys.accepted(BatchIdentity("a", "boot", first - number - 1, first + 9_999)),
            ranges=tuple((first + 100 + 2 * each, first + 100 + 2 * each) for each in range(200)),
        )
        for number in range(100)
    ]
    for start in range(30):
        found = OverlapManifest.of(
            BatchIdentity("a", "boot", first + start, first + 9_999),
            hash_,
            others,
            table="t",
            observed_at_unix_ns=1,
            observed_by="p",
        )
        await store.create(found.key, found.encode())

    pages, after = list[int](), ""
    while True:
        page = await conflicts(store).list(after=after, limit=1_000)
        size = sum(len(each.manifest.encode()) for each in page.conflicts if each.manifest)
        assert size <= MOST_BYTES
        pages.append(len(page.conflicts))
        if page.next_after is None:
            break
        after = page.next_after

    assert sum(pages) == 30
    assert 1 < len(pages) < 30
