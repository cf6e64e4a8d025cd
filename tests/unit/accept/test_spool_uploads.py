"""Batches of a spool reach the store once, whatever happens on the way, and what cannot is kept and told."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from lakehead.accept.acceptance import Accepted, Conflict, Duplicate
from lakehead.accept.known_boots import KnownBoots
from lakehead.accept.spool import Spool
from lakehead.accept.spool_opening import SpoolNotEmpty
from lakehead.clock import SystemClock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.wire import acceptance_keys as keys
from tests.support.async_tests import async_test
from tests.unit.accept.spool_support import Rig, batch
from tests.unit.accept.support import APPLIED, DOWN, acceptor, void_of


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "spool")


@async_test
async def test_a_store_that_is_down_keeps_everything_in_the_spool_and_says_so_until_it_is_back(rig: Rig) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        for first in range(0, 400, 20):
            await spool.accept(batch(first))
        uploads = rig.uploads(spool)
        rig.store.go_down()

        assert not await uploads.land_all()

        assert spool.count == 20
        assert uploads.counts.failed <= 2 * uploads.at_once, "the rest is not even tried"
        with pytest.raises(Unavailable, match="20 batches wait in the spool"):
            uploads.check()
        rig.store.come_back()
        assert await uploads.land_all()
        uploads.check()
        assert (spool.count, uploads.counts.landed, len(set(rig.queue.queued))) == (0, 20, 20)


@async_test
async def test_one_batch_that_cannot_be_landed_holds_up_no_others(rig: Rig) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        for first in (0, 20, 40):
            await spool.accept(batch(first))
        rig.store.next("accepted", DOWN)

        assert not await rig.uploads(spool).land_all()

        assert spool.count == 1
        assert await rig.uploads(spool).land_all()


@async_test
async def test_a_batch_that_can_never_be_landed_does_not_slow_down_others(rig: Rig) -> None:
    class Pauses(SystemClock):
        taken: ClassVar[list[float]] = []

        async def sleep(self, seconds: float) -> None:
            self.taken.append(seconds)
            if len(self.taken) == 6:
                raise asyncio.CancelledError
            await spool.accept(batch(100 + 20 * len(self.taken)))

    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch(0))
        await rig.store.create(keys.accepted(batch(0).identity), b"damaged")
        uploads = replace(rig.uploads(spool), clock=Pauses(), interval_seconds=1.0)

        with pytest.raises(asyncio.CancelledError):
            await uploads.run()

        assert (spool.waiting(), uploads.counts.landed) == ((batch(0).identity,), 5)
        assert max(Pauses.taken) == 1.0, "five landed, each after one interval"


@pytest.mark.parametrize("step", ["raw-blobs", "accepted", "accepted-by-time", "remembered", "removed"])
@async_test
async def test_a_process_that_dies_at_any_step_loses_and_doubles_nothing(
    rig: Rig, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dying is an error that nobody catches: the next start knows the disk alone."""

    class Died(BaseException):
        pass

    async def die(*_: object) -> None:
        raise Died

    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch())
        with monkeypatch.context() as patched:
            if step == "remembered":
                patched.setattr(KnownBoots, "landed", die)
            elif step == "removed":
                patched.setattr(Spool, "_delete", die)
            else:
                rig.store.meanwhile[step] = [die]
            with pytest.raises(Died):
                await rig.uploads(spool).land_all()
    with rig.disk() as disk:
        spool = await rig.open(disk)
        assert isinstance(await spool.accept(batch()), Duplicate)
        assert await rig.uploads(spool).land_all()

        assert await rig.store.head(keys.accepted(batch().identity)) is not None
        assert batch().identity in rig.queue.queued
        assert spool.count == 0


@async_test
async def test_an_identity_manifest_in_doubt_is_taken_up_as_its_own(rig: Rig) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch())
        rig.store.next("accepted", APPLIED)

        assert await rig.uploads(spool).land_all()

        assert (spool.count, rig.queue.queued) == (0, [batch().identity])


@async_test
async def test_a_batch_that_meets_a_conflict_goes_to_quarantine_and_only_then_leaves_the_spool(rig: Rig) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch())
        assert isinstance(await acceptor(rig.store, name="another").accept(batch(compress=False)), Accepted)
        uploads = rig.uploads(spool)
        rig.store.next("quarantine", DOWN)

        assert not await uploads.land_all()
        assert spool.count == 1
        assert await uploads.land_all()

        assert await rig.store.head(keys.identity_conflict(batch().identity, batch().sha256)) is not None
        assert await rig.store.head(keys.raw_blob(batch().sha256)) is not None
        assert (spool.count, uploads.counts.conflicts) == (0, 1)
        assert isinstance(await spool.accept(batch()), Conflict)


@async_test
async def test_a_batch_that_meets_a_void_is_kept_and_told_and_the_spool_is_not_closed(rig: Rig) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch())
        void = void_of(batch())
        await rig.store.create(void.key, void.encode())
        uploads = rig.uploads(spool)

        await uploads.drain()

        assert rig.file(batch(), "kept").read_bytes() == batch().body
        assert (spool.count, uploads.counts.kept) == (0, 1)
        with pytest.raises(Unavailable, match="kept/"):
            uploads.check()
        with pytest.raises(SpoolNotEmpty):
            await rig.opening(disk).close(spool, by="ann")
    with rig.disk() as disk:
        assert len((await rig.open(disk)).aside) == 1, "also after a restart"


@async_test
async def test_draining_gives_up_when_nothing_changes(rig: Rig) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch())
        rig.store.go_down()

        with pytest.raises((Unavailable, OutcomeUnknown)):
            await rig.uploads(spool).drain(tries=3)

        assert spool.count == 1
