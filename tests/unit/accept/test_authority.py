"""The authority record: set up once, asked at every start, changed only when nothing can be lost."""

import asyncio
from random import Random

import pytest

from lakehead.accept.authority import AnotherAuthority, Authority, NoAuthority, SpoolsOpen
from lakehead.errors import Misconfigured, Unavailable
from lakehead.ids import RandomIds
from lakehead.wire.authority_records import AcceptanceMode
from lakehead.wire.errors import InvalidRecord, Unreadable
from tests.support.async_tests import async_test
from tests.unit.accept.support import APPLIED, DOWN, NO_PAUSES, NOT_APPLIED, FixedClock, ScriptedStore, audit_trail

KEY = "authority/v1/authority.json"


def authority(store: ScriptedStore, *, bucket: str = "metrics", prefix: str = "prod") -> Authority:
    return Authority(
        store=store,
        clock=FixedClock(),
        ids=RandomIds(),
        random=Random(1),
        bucket=bucket,
        prefix=prefix,
        backoff=NO_PAUSES,
    )


@async_test
async def test_init_creates_the_record_once_and_says_later_that_it_exists() -> None:
    store = ScriptedStore()

    first = await authority(store).init("s3_manifest")
    again = await authority(store, prefix="/prod/").init("s3_manifest")

    assert (first.is_new, again.is_new) == (True, False)
    assert again.record == first.record == await authority(store).check("s3_manifest")
    assert (first.record.bucket, first.record.prefix, first.record.epoch) == ("metrics", "prod", 1)
    assert first.record.authority_id


@pytest.mark.parametrize("fault", [APPLIED, NOT_APPLIED])
@async_test
async def test_init_in_doubt_knows_its_own_record(fault: str) -> None:
    store = ScriptedStore()
    store.next("authority", fault)

    created = await authority(store).init("local_spool")

    assert created.is_new
    assert created.record == await authority(store).check("local_spool")


@async_test
async def test_of_several_inits_at_once_one_creates_and_all_have_the_same_id() -> None:
    store = ScriptedStore()

    results = await asyncio.gather(*(authority(store).init("s3_manifest") for _ in range(8)))

    assert sum(each.is_new for each in results) == 1
    assert len({each.record.authority_id for each in results}) == 1


@pytest.mark.parametrize(
    ("bucket", "prefix", "mode"),
    [("other", "prod", "s3_manifest"), ("metrics", "test", "s3_manifest"), ("metrics", "prod", "local_spool")],
)
@async_test
async def test_another_bucket_prefix_or_mode_is_refused_and_changes_nothing(
    bucket: str, prefix: str, mode: AcceptanceMode
) -> None:
    store = ScriptedStore()
    await authority(store).init("s3_manifest")
    before = await store.get(KEY)

    other = authority(store, bucket=bucket, prefix=prefix)
    with pytest.raises(AnotherAuthority):
        await other.init(mode)
    with pytest.raises(AnotherAuthority, match=r"lakehead gateway init|change the mode of all of them"):
        await other.check(mode)

    assert await store.get(KEY) == before


@async_test
async def test_a_gateway_without_an_authority_does_not_start_and_creates_none() -> None:
    store = ScriptedStore()

    with pytest.raises(NoAuthority, match="run `lakehead gateway init CONFIG`"):
        await authority(store).check("s3_manifest")
    for change in (
        authority(store).open_spool("s1", collector_id="g1"),
        authority(store).close_spool("s1", by="ann"),
        authority(store).set_mode("local_spool", by="ann"),
    ):
        with pytest.raises(NoAuthority):
            await change

    assert await store.keys("") == []


@async_test
async def test_an_authority_that_cannot_be_read_is_not_taken_for_none() -> None:
    store = ScriptedStore()
    await store.put(KEY, b"{}")

    with pytest.raises(Unreadable):
        await authority(store).check("s3_manifest")
    with pytest.raises(Unreadable):
        await authority(store).init("s3_manifest")
    store.is_down_for_reads = True
    with pytest.raises(Unavailable):
        await authority(store).check("s3_manifest")


@async_test
async def test_who_has_set_up_the_authority_is_in_the_audit_trail_once() -> None:
    store = ScriptedStore()
    for who in ("ann", "bob"):
        await authority(store).init("s3_manifest", by=who)
    assert [(each.action, each.by, each.subject) for each in await audit_trail(store)] == [("init", "ann", KEY)]

    down = ScriptedStore()
    down.next("audit", DOWN)
    with pytest.raises(Unavailable):
        await authority(down).init("s3_manifest", by="ann")
    assert await down.keys("authority") == []


@async_test
async def test_a_bucket_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidRecord):
        await authority(ScriptedStore(), bucket="").init("s3_manifest")


@async_test
async def test_spools_are_opened_and_closed_and_one_that_is_opened_again_after_a_crash_is_listed_once() -> None:
    store = ScriptedStore()
    gateway = authority(store)
    await gateway.init("local_spool")

    await gateway.open_spool("s1", collector_id="g1", address="http://a")
    await gateway.open_spool("s2", collector_id="g2")
    both = await gateway.open_spool("s1", collector_id="g1", address="http://a")
    assert [(each.spool_id, each.address) for each in both.open_spools] == [("s1", "http://a"), ("s2", "")]
    assert both.version == 4, "a close that comes late from before is refused"

    moved = await gateway.open_spool("s1", collector_id="g1", address="http://b")
    assert [each.address for each in moved.open_spools] == ["http://b", ""]
    left = await gateway.close_spool("s1", by="ann")
    assert [each.spool_id for each in left.open_spools] == ["s2"]
    assert await gateway.close_spool("s1", by="ann") == left


@async_test
async def test_who_has_closed_a_spool_is_in_the_audit_trail_and_without_that_it_stays_open() -> None:
    store = ScriptedStore()
    await authority(store).init("local_spool")
    await authority(store).open_spool("s1", collector_id="g1")
    store.next("audit", DOWN)

    with pytest.raises(Unavailable):
        await authority(store).close_spool("s1", by="ann")
    assert [each.spool_id for each in (await authority(store).read()).open_spools] == ["s1"]
    for _ in range(2):
        await authority(store).close_spool("s1", by="ann")

    [entry] = [each for each in await audit_trail(store) if each.action != "init"]
    assert (entry.action, entry.by, entry.subject, entry.because_of) == ("close_spool", "ann", KEY, "s1")


@async_test
async def test_a_spool_that_is_given_up_is_in_the_audit_trail_once() -> None:
    store = ScriptedStore()
    await authority(store).init("local_spool")
    await authority(store).open_spool("s1", collector_id="g1")

    await authority(store).give_up_spool("s1", by="ann")

    assert (await authority(store).read()).open_spools == ()
    assert [each.action for each in await audit_trail(store) if each.action != "init"] == ["give_up_spool"]


@async_test
async def test_spools_that_open_at_once_are_all_recorded() -> None:
    store = ScriptedStore()
    await authority(store).init("local_spool")
    store.meanwhile["authority"] = [lambda: authority(store).open_spool("s2", collector_id="g2")]

    record = await authority(store).open_spool("s1", collector_id="g1")

    assert [each.spool_id for each in record.open_spools] == ["s2", "s1"]


@async_test
async def test_a_spool_on_a_copied_disk_is_refused() -> None:
    store = ScriptedStore()
    await authority(store).init("local_spool")
    await authority(store).open_spool("s1", collector_id="g1")

    with pytest.raises(Misconfigured, match="open at the gateway g1"):
        await authority(store).open_spool("s1", collector_id="g2")


@async_test
async def test_a_gateway_whose_disk_is_not_mounted_does_not_open_a_second_spool() -> None:
    store = ScriptedStore()
    await authority(store).init("local_spool")
    await authority(store).open_spool("s1", collector_id="g1")

    with pytest.raises(AnotherAuthority, match=r"has the spool s1 open.*--lost s1"):
        await authority(store).open_spool("s2", collector_id="g1")

    await authority(store).give_up_spool("s1", by="me")
    await authority(store).open_spool("s2", collector_id="g1")


@async_test
async def test_a_spool_is_not_opened_after_the_mode_has_changed() -> None:
    store = ScriptedStore()
    gateway = authority(store)
    await gateway.init("local_spool")
    await gateway.check("local_spool")
    store.meanwhile["authority"] = [lambda: authority(store).set_mode("s3_manifest", by="ann")]

    with pytest.raises(AnotherAuthority, match="s3_manifest"):
        await gateway.open_spool("s1", collector_id="g1")

    assert (await gateway.read()).open_spools == ()


@async_test
async def test_the_mode_changes_only_when_no_spool_is_open_and_raises_the_epoch() -> None:
    store = ScriptedStore()
    gateway = authority(store)
    created = await gateway.init("local_spool")
    await gateway.open_spool("s1", collector_id="g1")

    with pytest.raises(SpoolsOpen, match=r"s1 of g1.*Let these gateways empty and close them"):
        await gateway.set_mode("s3_manifest", by="ann")
    assert (await gateway.check("local_spool")).epoch == 1
    assert [each.action for each in await audit_trail(store)] == ["init"]

    await gateway.close_spool("s1", by="ann")
    changed = await gateway.set_mode("s3_manifest", by="ann")
    assert (changed.mode, changed.epoch, changed.authority_id) == ("s3_manifest", 2, created.record.authority_id)
    assert await gateway.set_mode("s3_manifest", by="ann") == changed
    [entry] = [each for each in await audit_trail(store) if each.action == "set_mode"]
    assert (entry.by, entry.action, entry.subject) == ("ann", "set_mode", KEY)
    assert (entry.before or {})["mode"] == "local_spool"
    assert (entry.after or {})["mode"] == "s3_manifest"


@async_test
async def test_a_spool_that_opens_while_the_mode_changes_keeps_the_mode() -> None:
    store = ScriptedStore()
    gateway = authority(store)
    await gateway.init("local_spool")
    store.meanwhile["audit"] = [lambda: authority(store).open_spool("s1", collector_id="g1")]

    with pytest.raises(SpoolsOpen):
        await gateway.set_mode("s3_manifest", by="ann")

    assert (await gateway.read()).mode == "local_spool"


@async_test
async def test_the_mode_does_not_change_without_its_audit_entry() -> None:
    store = ScriptedStore()
    await authority(store).init("s3_manifest")
    store.next("audit", DOWN)

    with pytest.raises(Unavailable):
        await authority(store).set_mode("local_spool", by="ann")

    assert (await authority(store).read()).mode == "s3_manifest"


@async_test
async def test_a_change_of_the_mode_in_doubt_raises_the_epoch_once() -> None:
    for fault in (APPLIED, NOT_APPLIED):
        store = ScriptedStore()
        await authority(store).init("s3_manifest")
        store.next("authority", fault)

        assert (await authority(store).set_mode("local_spool", by="ann")).epoch == 2
