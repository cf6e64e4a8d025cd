"""Batches are accepted when they are on the gateway's disk, and every answer is one that the store will bear out."""

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lakehead.accept.acceptance import Accepted, Answer, Conflict, Duplicate, Void
from lakehead.accept.authority import SpoolClosed
from lakehead.accept.spool import Spool
from lakehead.accept.spool_limits import SpoolLimits
from lakehead.accept.spool_opening import SpoolNotEmpty
from lakehead.accept.spooled_batch import IdentityInSpool, SpoolFull, SpoolUnusable
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.storage import local_store
from lakehead.storage.port import Stale
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.authority_records import AuthorityRecord
from tests.support.async_tests import async_test
from tests.unit.accept.spool_support import Rig, batch
from tests.unit.accept.support import void_of


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "spool")


async def land(rig: Rig, spool: Spool) -> bool:
    return await rig.uploads(spool).land_all()


def manifest(answer: Answer) -> IdentityManifest:
    assert isinstance(answer, Accepted | Duplicate | Conflict)
    return answer.manifest


@async_test
async def test_with_the_store_down_a_batch_of_a_known_boot_is_accepted_and_later_a_duplicate(
    rig: Rig,
) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch(0))
        rig.store.go_down()
        first = await spool.accept(batch())
        assert rig.file(batch()).read_bytes() == batch().body
    rig.store.come_back()
    with rig.disk() as disk:
        spool = await rig.open(disk)
        rig.store.go_down()
        again = await spool.accept(batch())

        assert isinstance(first, Accepted)
        assert isinstance(again, Duplicate)
        assert again.manifest.answered_at_unix_ns == first.manifest.answered_at_unix_ns
        assert [each.identity for each in spool.page()] == [batch(0).identity, batch().identity]


@async_test
async def test_another_frame_under_an_identity_of_the_spool_is_a_conflict_also_after_a_restart(rig: Rig) -> None:
    for _ in range(2):
        with rig.disk() as disk:
            spool = await rig.open(disk)
            await spool.accept(batch())
            answer = await spool.accept(batch(compress=False))

            assert isinstance(answer, Conflict)
            assert answer.manifest.frame_sha256 == batch().sha256


@async_test
async def test_of_many_uploads_of_an_identity_at_once_one_is_the_first(rig: Rig) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)

        answers = await asyncio.gather(*(spool.accept(batch(compress=number % 2 == 0)) for number in range(8)))

        assert [type(each) for each in answers].count(Accepted) == 1
        assert [type(each) for each in answers].count(Duplicate) == 3
        assert [type(each) for each in answers].count(Conflict) == 4


@async_test
async def test_a_batch_lands_with_both_times_and_is_a_duplicate_then_although_the_store_is_down(rig: Rig) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        told = manifest(await spool.accept(batch())).answered_at_unix_ns

        assert await land(rig, spool)

        found = await rig.store.get(keys.accepted(batch().identity))
        assert found is not None
        stored = IdentityManifest.decode(found.body, keys.accepted(batch().identity))
        assert stored.spooled_at_unix_ns == told <= stored.accepted_at_unix_ns
        assert (spool.count, spool.total_bytes, rig.queue.queued) == (0, 0, [batch().identity])
        assert not list((rig.folder / "batches").rglob("*.lmbatch"))
    with rig.disk() as disk:
        spool = await rig.open(disk)
        rig.store.go_down()
        again = await spool.accept(batch())
        assert isinstance(again, Duplicate)
        assert again.manifest.answered_at_unix_ns == told
        assert isinstance(await spool.accept(batch(compress=False)), Conflict)


@async_test
async def test_what_only_the_store_can_tell_is_not_answered_while_it_is_down(rig: Rig) -> None:
    """A boot that the spool does not know, and one of whose batches it has forgotten all but the numbers."""
    with rig.disk() as disk:
        spool = await rig.open(disk)
        spool.boots.most_recent = 1
        for first in (0, 20):  # one after the other: the last one that lands is remembered whole
            await spool.accept(batch(first))
            await land(rig, spool)
        rig.store.go_down()

        for unknown in (batch(0), batch(boot="boot-2")):
            with pytest.raises(Unavailable):
                await spool.accept(unknown)
        assert isinstance(await spool.accept(batch(20)), Duplicate)
        assert isinstance(await spool.accept(batch(40)), Accepted)
        rig.store.come_back()
        assert isinstance(await spool.accept(batch(0)), Duplicate)


@async_test
async def test_the_store_is_asked_about_a_boot_once_and_again_when_it_was_forgotten(rig: Rig) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        spool.boots.most = 1
        await asyncio.gather(*(spool.accept(batch(first)) for first in (0, 20, 40)))
        await spool.accept(batch(boot="boot-2"))
        await land(rig, spool)
        rig.store.go_down()

        with pytest.raises(Unavailable):
            await spool.accept(batch(60))
        assert len(list((rig.folder / "boots").rglob("*.json"))) == 1


@async_test
async def test_a_void_of_the_store_is_told_and_so_is_one_that_is_about_to_be(rig: Rig) -> None:
    void = void_of(batch())
    with rig.disk() as disk:
        await rig.authority.init("local_spool")
        await rig.store.create(keys.voiding(batch().identity), void.encode())
        spool = await rig.open(disk)

        with pytest.raises(Unavailable, match="about to become void"):
            await spool.accept(batch())
        await rig.store.create(void.key, void.encode())
        assert isinstance(await spool.accept(batch()), Void)


@async_test
async def test_garbage_collection_is_refused_what_is_spooled_and_else_the_void_outlives_a_restart(rig: Rig) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch(0))
        with pytest.raises(IdentityInSpool):
            await spool.void(batch(0).identity)
        await spool.void(batch().identity)
    with rig.disk() as disk:
        spool = await rig.open(disk)
        with pytest.raises(Unavailable, match="about to become void"):
            await spool.accept(batch())
        void = void_of(batch())
        await rig.store.create(void.key, void.encode())
        assert isinstance(await spool.accept(batch()), Void)
        assert isinstance(await spool.accept(batch(0)), Duplicate)


@async_test
async def test_a_full_spool_refuses_before_it_writes_and_takes_batches_again_when_some_have_landed(rig: Rig) -> None:
    rig.limits = SpoolLimits(most_bytes=2 * len(batch().body), most_batches=100)
    with rig.disk() as disk:
        spool = await rig.open(disk)
        results = await asyncio.gather(
            *(spool.accept(batch(first)) for first in range(0, 100, 20)), return_exceptions=True
        )

        assert sorted(type(each).__name__ for each in results) == ["Accepted"] * 2 + ["SpoolFull"] * 3
        assert len(list((rig.folder / "batches").rglob("*.lmbatch"))) == 2
        with pytest.raises(SpoolFull):
            spool.check()
        await land(rig, spool)
        spool.check()
        assert isinstance(await spool.accept(batch(80)), Accepted)


@async_test
async def test_a_disk_that_cannot_be_written_accepts_nothing_and_goes_on_when_it_can(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch(0))
        for number in (errno.ENOSPC, errno.EROFS, errno.EIO):

            def fail(*_: object, error: int = number) -> int:
                raise OSError(error, os.strerror(error))

            with monkeypatch.context() as patched:
                patched.setattr("lakehead.storage.local_store.os.write", fail)
                with pytest.raises(SpoolUnusable):
                    await spool.accept(batch())
        assert spool.count == 1
        assert isinstance(await spool.accept(batch()), Accepted)


@async_test
async def test_after_a_flush_that_failed_nothing_is_accepted_until_the_next_start(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int, key: str) -> None:
        raise OutcomeUnknown(f"{key}: the flush failed")

    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch(0))
        with monkeypatch.context() as patched:
            patched.setattr(local_store, "fsync_folder", fail)
            with pytest.raises(OutcomeUnknown):
                await spool.accept(batch())
        with pytest.raises(SpoolUnusable, match="started again"):
            await spool.accept(batch(20))
        with pytest.raises(Unavailable):
            await spool.void(batch().identity)
        with pytest.raises(SpoolUnusable):
            spool.check()
    with rig.disk() as disk:
        spool = await rig.open(disk)
        assert isinstance(await spool.accept(batch()), Duplicate)


@async_test
async def test_an_upload_that_is_given_up_leaves_no_file_that_the_spool_does_not_know(rig: Rig) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch(0))
        upload = asyncio.ensure_future(spool.accept(batch()))
        for _ in range(3):  # it is being written now
            await asyncio.sleep(0)
        assert spool._reserved
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload

        assert spool.count == len(list((rig.folder / "batches").rglob("*.lmbatch"))) == 2


@pytest.mark.parametrize("damage", ["torn", "a bit", "another", "gone"])
@async_test
async def test_a_damaged_file_is_set_aside_and_told_and_the_frame_can_be_sent_again(rig: Rig, damage: str) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        for first in (0, 20):
            await spool.accept(batch(first))
    file = rig.file(batch(20))
    body = file.read_bytes()
    match damage:
        case "torn":
            file.write_bytes(body[:-3])
        case "a bit":
            file.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
        case "another":
            file.write_bytes(batch(0).body)
        case _:
            file.write_bytes(b"")
    (rig.folder / "batches" / "stranger.txt").write_text("?")
    with rig.disk() as disk:
        spool = await rig.open(disk)
        uploads = rig.uploads(spool)
        assert await uploads.land_all()

        assert rig.queue.queued == [batch(0).identity]
        assert sorted(each.split("/")[0] for each in spool.aside) == ["batches", "damaged"]
        with pytest.raises(Unavailable, match="need an operator"):
            uploads.check()
        with pytest.raises(IdentityInSpool):
            await spool.void(batch(20).identity)
        with pytest.raises(SpoolNotEmpty):
            await rig.opening(disk).close(spool, by="ann")
        assert isinstance(await spool.accept(batch(20)), Accepted)


@async_test
async def test_a_spool_is_one_process_s_one_gateway_s_and_one_authority_s(rig: Rig, tmp_path: Path) -> None:
    with rig.disk() as disk:
        await rig.open(disk)
        with pytest.raises(Misconfigured, match="Another process"), rig.disk():
            pass
        rig.name = "gateway-2"
        with pytest.raises(Misconfigured, match="a copy of that gateway's disk"):
            await rig.open(disk)
        other = Rig(rig.folder)
        with pytest.raises(Misconfigured, match="holds batches of the authority"):
            await other.open(disk)
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured, match="cannot be a spool"):
        Rig(tmp_path / "file").disk().__enter__()


@async_test
async def test_a_spool_is_listed_before_its_first_batch_and_until_it_is_empty_and_closed(rig: Rig) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        [listed] = (await rig.authority.read()).open_spools
        assert (listed.collector_id, listed.address) == ("gateway-1", "http://here")
        await spool.accept(batch())
        with pytest.raises(SpoolNotEmpty):
            await rig.opening(disk).close(spool, by="ann")
        await rig.uploads(spool).drain()
        await rig.opening(disk).close(spool, by="ann")

        assert (await rig.authority.read()).open_spools == ()
        assert (await rig.authority.set_mode("s3_manifest", by="me")).mode == "s3_manifest"


@async_test
async def test_a_spool_that_is_opened_again_after_others_have_accepted_asks_the_store_again(rig: Rig) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch(0))
        await rig.uploads(spool).drain()
        await rig.opening(disk).close(spool, by="ann")
        void = void_of(batch())
        assert isinstance(void, IdentityVoid)
        await rig.store.create(void.key, void.encode())

        spool = await rig.open(disk)

        assert isinstance(await spool.accept(batch()), Void)


@async_test
async def test_a_spool_that_is_closed_by_others_while_it_is_opened_asks_the_store_again(rig: Rig) -> None:
    """Garbage collection does not ask it then, and what it knows of boots is not all."""
    void = void_of(batch())
    with rig.disk() as disk:
        first = await rig.open(disk)
        await first.accept(batch(0))
        await rig.uploads(first).drain()

        async def give_up() -> None:
            await rig.authority.give_up_spool(first.spool_id, by="ann")
            await rig.store.create(void.key, void.encode())

        class Meanwhile(Spool):
            async def load(self) -> None:
                await super().load()
                await give_up()

        spool = await replace(rig.opening(disk), spool=Meanwhile).open()

        assert isinstance(await spool.accept(batch()), Void)
        assert [each.spool_id for each in (await rig.authority.read()).open_spools] == [spool.spool_id]
        await give_up()
        with pytest.raises(SpoolClosed):
            await rig.opening(disk).tell_address(spool, "http://there")


@async_test
async def test_a_close_that_comes_late_does_not_close_a_spool_that_was_opened_since(rig: Rig) -> None:
    """A drain was killed after it had sent it, and the gateway has the address that the drain has told."""
    with rig.disk() as disk:
        await rig.open(disk)
        before = await rig.store.get(keys.AUTHORITY)
        assert before is not None
        record = AuthorityRecord.decode(before.body, keys.AUTHORITY)
        late = msgspec.structs.replace(record, open_spools=(), version=record.version + 1, nonce="late")

        spool = await rig.open(disk)

        assert isinstance(await rig.store.replace(keys.AUTHORITY, late.encode(), before.meta.version), Stale)
        assert [each.spool_id for each in (await rig.authority.read()).open_spools] == [spool.spool_id]


def test_no_folder_of_a_boot_that_has_left_the_spool_stays(rig: Rig) -> None:
    with rig.disk():
        (rig.folder / "batches" / "agent=61" / "boot=62").mkdir(parents=True)
    with rig.disk():
        assert not (rig.folder / "batches").exists()
