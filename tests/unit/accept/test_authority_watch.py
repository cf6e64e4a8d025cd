"""A gateway that runs on while its authority changes accepts nothing more."""

import pytest

from lakehead.accept.authority import Authority
from lakehead.accept.authority_watch import AuthorityWatch
from lakehead.errors import Unavailable
from lakehead.wire import acceptance_keys as keys
from tests.support.async_tests import async_test
from tests.unit.accept.support import FixedClock, ScriptedStore
from tests.unit.accept.test_authority import authority


async def watched(store: ScriptedStore) -> tuple[Authority, AuthorityWatch, FixedClock]:
    at, clock = authority(store), FixedClock()
    record = (await at.init("s3_manifest")).record
    watch = AuthorityWatch(at, record, clock)
    await watch.refresh()
    watch.check()
    return at, watch, clock


@async_test
async def test_another_mode_is_noticed_and_stays_noticed_when_it_is_changed_back() -> None:
    at, watch, _ = await watched(ScriptedStore())
    await at.set_mode("local_spool", by="me")
    await watch.refresh()
    with pytest.raises(Unavailable, match="accept by local_spool"):
        watch.check()
    await at.set_mode("s3_manifest", by="me")
    await watch.refresh()
    with pytest.raises(Unavailable, match=r"in epoch 3.*Start it again"):
        watch.check()


@async_test
async def test_an_authority_that_is_gone_or_was_set_up_anew_is_noticed() -> None:
    store = ScriptedStore()
    at, watch, _ = await watched(store)
    await store.delete(keys.AUTHORITY)
    await watch.refresh()
    with pytest.raises(Unavailable, match="There is no acceptance authority"):
        watch.check()
    await at.init("s3_manifest")
    await watch.refresh()
    with pytest.raises(Unavailable, match="was started for"):
        watch.check()


@async_test
async def test_an_authority_that_cannot_be_read_for_5_minutes_is_not_relied_on() -> None:
    store = ScriptedStore()
    _, watch, clock = await watched(store)
    store.is_down_for_reads = True
    with pytest.raises(Unavailable):
        await watch.refresh()
    clock.seconds += 299
    watch.check()
    clock.seconds += 2
    with pytest.raises(Unavailable, match="301 s old"):
        watch.check()


@pytest.mark.parametrize("what", ["given up", "a copy of the disk elsewhere"])
@async_test
async def test_a_spool_that_garbage_collection_no_longer_asks_accepts_nothing(what: str) -> None:
    at, clock = authority(ScriptedStore()), FixedClock()
    record = (await at.init("local_spool")).record
    watch = AuthorityWatch(at, record, clock)
    watch.expect_spool("s1", "http://a")
    await at.open_spool("s1", collector_id="g1", address="http://a")
    await watch.refresh()
    watch.check()

    if what == "given up":
        await at.give_up_spool("s1", by="me")
    else:
        await at.open_spool("s1", collector_id="g1", address="http://b")
    await watch.refresh()

    with pytest.raises(Unavailable, match="no longer lists the spool s1"):
        watch.check()
