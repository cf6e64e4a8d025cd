"""Accepted batches with common sequence numbers are found by their keys, whoever made them and whenever they land."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.accept.accepted_overlaps import AcceptedOverlap, AcceptedOverlaps
from lakehead.errors import Misconfigured, Unavailable
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from tests.support.async_tests import async_test, run_bounded
from tests.unit.accept.support import ScriptedStore, acceptor, submitted, void_of


def batch(start: int, end: int, boot: str = "boot", agent: str = "agent") -> BatchIdentity:
    return BatchIdentity(agent, boot, start, end)


async def accept(store: ScriptedStore, *identities: BatchIdentity) -> None:
    for each in identities:
        await acceptor(store).accept(submitted(str(each).encode(), each))


async def void(store: ScriptedStore, *identities: BatchIdentity) -> None:
    for each in identities:
        record = void_of(submitted(b"never", each))
        await store.create(record.key, record.encode())


async def listed(overlaps: AcceptedOverlaps, agent: str | None = None, limit: int = 100) -> list[AcceptedOverlap]:
    """All of them, over all pages."""
    found, after, pages = list[AcceptedOverlap](), "", 0
    while True:
        page = await overlaps.list(agent_id=agent, after=after, limit=limit)
        found += page.overlaps
        if page.next_after is None:
            return found
        assert page.next_after != after
        after, pages = page.next_after, pages + 1
        assert pages < 10_000


def pairs(found: list[AcceptedOverlap]) -> list[tuple[BatchIdentity, BatchIdentity]]:
    return [(each.first.identity, each.second.identity) for each in found]


@async_test
async def test_both_batches_are_named_with_what_they_have_in_common() -> None:
    store = ScriptedStore()
    await accept(store, batch(0, 9), batch(10, 20), batch(10, 25), batch(26, 30), batch(12, 14, boot="other"))

    [found] = await listed(AcceptedOverlaps(store=store))

    assert pairs([found]) == [(batch(10, 20), batch(10, 25))]
    assert found.common == (10, 20)
    assert found.first.frame_sha256 == submitted(str(batch(10, 20)).encode()).sha256
    assert not found.first.is_quarantined
    assert not found.second.is_quarantined


@async_test
async def test_a_batch_whose_records_differ_is_shown_as_in_quarantine() -> None:
    store = ScriptedStore()
    await accept(store, batch(10, 20), batch(10, 25))
    await store.create(keys.overlap(batch(10, 25), submitted(str(batch(10, 25)).encode()).sha256), b"its record")

    [found] = await listed(AcceptedOverlaps(store=store))

    assert (found.first.is_quarantined, found.second.is_quarantined) == (False, True)


@async_test
async def test_voids_are_no_batches_and_hide_none() -> None:
    store = ScriptedStore()
    await void(store, batch(0, 100), batch(22, 23), batch(90, 110))
    await accept(store, batch(20, 30), batch(25, 35), batch(100, 105))

    assert pairs(await listed(AcceptedOverlaps(store=store))) == [(batch(20, 30), batch(25, 35))]


@async_test
async def test_a_manifest_that_cannot_be_read_is_one_of_an_overlap_all_the_same() -> None:
    store = ScriptedStore()
    await store.create(keys.accepted(batch(10, 20)), b"{}")
    await accept(store, batch(15, 25))

    [found] = await listed(AcceptedOverlaps(store=store))

    assert (found.first.identity, found.first.frame_sha256) == (batch(10, 20), "")


@async_test
async def test_overlaps_of_one_agent_are_listed_without_those_of_others() -> None:
    store = ScriptedStore()
    both = [batch(10, 20, agent=agent) for agent in ("a", "ab")] + [batch(15, 25, agent=agent) for agent in ("a", "ab")]
    await accept(store, *both)

    assert pairs(await listed(AcceptedOverlaps(store=store), "a")) == [(both[0], both[2])]
    page = await AcceptedOverlaps(store=store).list(agent_id="ab", limit=1)
    assert (len(page.overlaps), page.next_after) == (1, None)


@async_test
async def test_a_page_ends_where_it_has_cost_enough_and_the_next_goes_on() -> None:
    store = ScriptedStore(page_size=3)
    await accept(store, batch(0, 1000), *(batch(number * 10, number * 10 + 4) for number in range(1, 30)))
    overlaps = AcceptedOverlaps(store=store, most_keys=4)

    first = await overlaps.list()

    assert len(first.overlaps) == 3
    assert len(await listed(overlaps)) == 29
    assert len(await listed(AcceptedOverlaps(store=store, most_reads=1))) == 29
    assert len(await listed(AcceptedOverlaps(store=store), limit=1)) == 29


@async_test
async def test_keys_that_are_no_identities_neither_stop_a_listing_nor_make_a_page_endless() -> None:
    store = ScriptedStore(page_size=3)
    folder = keys.accepted_folder("agent", "boot")
    await accept(store, batch(0, 20), batch(10, 25))
    for number in range(9):
        await store.create(f"{keys.ACCEPTED}/{number}.tmp", b"")
        await store.create(f"{folder}/{5:020}-{number}~{number}.tmp", b"")
    overlaps = AcceptedOverlaps(store=store, most_keys=4)

    first = await overlaps.list()

    assert (first.overlaps, first.next_after is None) == ((), False), "nine keys, and a page looks at four"
    assert pairs(await listed(overlaps)) == [(batch(0, 20), batch(10, 25))]
    assert pairs(await listed(overlaps, "agent")) == [(batch(0, 20), batch(10, 25))]


@pytest.mark.parametrize(
    "after", ["nonsense", "nonsense~", "~", "accepted/v1/x.json~1-2", keys.accepted(batch(1, 2)), "accepted/v1/~\ud800"]
)
@async_test
async def test_a_page_after_something_else_is_refused(after: str) -> None:
    with pytest.raises(Misconfigured):
        await AcceptedOverlaps(store=ScriptedStore()).list(after=after)


@async_test
async def test_a_page_after_a_batch_of_another_agent_is_refused() -> None:
    with pytest.raises(Misconfigured):
        await AcceptedOverlaps(store=ScriptedStore()).list(agent_id="b", after=f"{keys.accepted(batch(1, 2))}~")


@async_test
async def test_a_store_that_does_not_answer_is_told() -> None:
    store = ScriptedStore()
    await accept(store, batch(10, 20), batch(10, 25))
    store.is_down_for_reads = True

    with pytest.raises(Unavailable):
        await AcceptedOverlaps(store=store).list()


@given(
    ranges=st.sets(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12),
    void_ranges=st.sets(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=4),
    most_keys=st.integers(1, 5),
    limit=st.integers(1, 3),
)
def test_every_batch_that_overlaps_another_is_named_and_no_other(
    ranges: set[tuple[int, int]], void_ranges: set[tuple[int, int]], most_keys: int, limit: int
) -> None:
    identities = [batch(start, start + more) for start, more in ranges - void_ranges]

    async def named() -> None:
        store = ScriptedStore(page_size=2)
        await accept(store, *identities)
        await void(store, *(batch(start, start + more) for start, more in void_ranges))
        found = pairs(await listed(AcceptedOverlaps(store=store, most_keys=most_keys), limit=limit))
        assert len(set(found)) == len(found)
        assert all(one.overlaps(other) and one != other for one, other in found)
        assert {each for pair in found for each in pair} == {
            one for one in identities if any(one.overlaps(other) for other in identities if other != one)
        }

    run_bounded(named())
