"""Acceptance on a gateway's disk, with crashes, lost power, garbage collection and changes of the mode.

The shorter versions of it lose or double batches, and must be caught.
"""

import asyncio
from collections.abc import Sequence

from lakehead.accept.acceptance import Accepted, Duplicate, Submission
from lakehead.accept.known_boots import KnownBoots
from lakehead.accept.spool import Spool
from lakehead.accept.spool_uploads import SpoolUploads
from lakehead.accept.spooled_batch import SpooledBatch
from lakehead.accept.voiding import Voiding
from lakehead.errors import LakeheadError
from lakehead.wire import acceptance_keys as keys
from lakehead.wire import spool_records as files
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.spool_records import KnownBoot
from tests.faults.store import Faults
from tests.sim.spool_model import Parts, SpoolSimulation, submission
from tests.support.simulation import Process, Scenario, Violation, World

ROUGH = Faults.all(0.02)
ENDS_WITHIN = 2_000.0
"""How long after the last fault every client has its answer, and the spool is empty."""


async def _send(sim: SpoolSimulation, submitted: Submission) -> None:
    """Send a batch, and sometimes again, much later."""
    world = sim.world
    await world.clock.sleep(world.random.expovariate(0.5))
    first = await sim.send(submitted)
    for _ in range(world.random.choice([0, 0, 1, 2])):
        await world.clock.sleep(world.random.choice([0, 1, 4, 30]))
        again = await sim.send(submitted)
        expected = Duplicate if isinstance(first, Accepted) else type(first)
        if type(again) is not expected:
            raise Violation(f"{submitted.identity}: first {first}, then {again}")


def _clients(sim: SpoolSimulation, contents: Sequence[float]) -> list[Process]:
    world, clients = sim.world, list[Process]()
    for number in range(world.random.randint(1, 4)):
        boot = world.random.choice(["boot", "boot", "other boot"])
        identity = BatchIdentity("agent", boot, number * 2, number * 2 + 1)
        for content in [1.0, *(world.random.choice(contents) for _ in range(world.random.randrange(2)))]:
            client = world.process(f"client {len(clients)}")
            client.spawn(_send(sim, submission(identity, content)))
            clients.append(client)
        if world.random.random() < 0.4:
            collector = world.process("gc")
            collector.spawn(sim.collect(submission(identity, 1.0)))
            clients.append(collector)
    return clients


async def _disturb(sim: SpoolSimulation, blows: int) -> None:
    """Kill the gateway, with or without the power, or pause it, and start it again."""
    world = sim.world
    for _ in range(blows):
        await world.clock.sleep(world.random.expovariate(1))
        if world.random.random() < 0.75:
            sim.stop_gateways(power=world.random.random() < 0.5)
            await world.clock.sleep(world.random.choice([0, 0, 0.5, 3]))
            sim.start_gateway()
            if world.random.random() < 0.3:  # soon enough to take what the first blow left, and nobody sends again
                await world.clock.sleep(world.random.uniform(0.1, 1))
                sim.stop_gateways(power=True)
                sim.start_gateway()
        else:
            world.random.choice(sim.gateways).process.pause(world.random.choice([0.3, 3, 15]))


async def _end(sim: SpoolSimulation, clients: Sequence[Process], *, all_queued: bool) -> None:
    """When faults stop everybody gets an answer, and a last drain, after a last crash, leaves nothing."""
    sim.become_calm()
    sim.stop_gateways(power=True)
    sim.start_gateway()
    await sim.world.until(*clients, at_most=ENDS_WITHIN)
    sim.stop_gateways(power=True)
    await sim.drain()
    sim.check_end(all_queued=all_queued)


def spooling(parts: Parts = Parts(), *, faults: Faults = ROUGH) -> Scenario:  # noqa: B008 - frozen
    """One gateway with a spool: it crashes, its disk fills and fails, and garbage collection voids beside it."""

    async def scenario(world: World) -> None:
        sim = SpoolSimulation(world, parts, faults)
        await sim.set_up("local_spool")
        sim.start_gateway()
        clients = _clients(sim, [1.0, 1.0, 2.0])
        await _disturb(sim, world.random.randrange(4))
        await world.clock.sleep(world.random.expovariate(0.5))
        await _end(sim, clients, all_queued=True)

    return scenario


def switching(parts: Parts = Parts(), *, faults: Faults = ROUGH) -> Scenario:  # noqa: B008 - frozen
    """The mode changes after a drain, and back, on the same disk or a new one, while agents send and GC voids."""

    async def scenario(world: World) -> None:
        sim = SpoolSimulation(world, parts, faults)
        await sim.set_up("local_spool")
        sim.start_gateway()
        clients = _clients(sim, [1.0])
        for _ in range(world.random.randint(1, 2)):
            await _disturb(sim, world.random.randrange(2))
            await world.clock.sleep(world.random.expovariate(1))
            sim.stop_gateways(power=world.random.random() < 0.5)
            await sim.drain()
            await sim.set_mode("s3_manifest")
            for _ in range(world.random.randint(0, 2)):
                sim.start_gateway("s3_manifest")
            await world.clock.sleep(world.random.choice([0, 1, 5]))
            sim.stop_gateways()
            if world.random.random() < 0.5:
                sim.new_disk()
            await sim.set_mode("local_spool")
            sim.start_gateway()
        await world.clock.sleep(world.random.expovariate(0.5))
        await _end(sim, clients, all_queued=False)

    return scenario


# --- shorter versions that must be caught


class AnswersBeforeTheFlush(Spool):
    """The batch is in memory, and will be on disk."""

    async def _create(self, submission: Submission) -> SpooledBatch:
        batch = SpooledBatch(submission.identity, len(submission.body), self.clock.now_ns(), submission.sha256)
        self._add(batch)
        write = asyncio.ensure_future(self.disk.create(batch.key, submission.body))
        write.add_done_callback(lambda task: task.exception())
        return batch


class TrustsNamesAtTheStart(Spool):
    """What a killed process left is taken as it looks: its names may not be on disk."""

    async def load(self) -> None:
        async for page in self.disk.list(files.BATCHES):
            for each in page:
                identity = files.parse_spooled_batch(each.key)
                assert identity is not None
                self._add(SpooledBatch(identity, each.size, each.modified_ns))
        async for page in self.disk.list(files.VOIDS):
            self._voids.update(identity for each in page if (identity := files.parse_void(each.key)) is not None)
        await self.boots.load()


class DoesNotAskTheStore(Spool):
    """A boot that is not known is taken for a new one."""

    async def _in_store(self, identity: BatchIdentity) -> IdentityManifest | IdentityVoid | None:
        if identity not in self._voids:
            known = self.boots._boots
            new = KnownBoot(agent_id=identity.agent_id, boot_id=identity.boot_id, spans=())
            known.setdefault((identity.agent_id, identity.boot_id), new)
        return await super()._in_store(identity)


class ForgetsInMemoryAlone(KnownBoots):
    """What was known of a boot that is forgotten stays on disk, and is believed after the next start."""

    async def _forget_old_ones(self) -> None:
        while len(self._boots) > self.most:
            del self._boots[next(iter(self._boots))]


class BelievesWhatItForgot(Spool):
    """A spool with such boots."""

    async def load(self) -> None:
        self.boots = ForgetsInMemoryAlone(disk=self.disk, store=self.boots.store)
        await Spool.load(self)


class DoesNotRememberWhatLanded(Spool):
    """A batch leaves the spool, and nothing says that it was there."""

    async def landed(self, manifests: Sequence[IdentityManifest]) -> None:
        for each in manifests:
            if (batch := self._batches.get(each.identity)) is not None:
                await self._delete(batch)


class VoidsInMemory(Spool):
    """A void is told to garbage collection before it is on disk."""

    async def void(self, identity: BatchIdentity) -> None:
        voided = asyncio.ensure_future(super().void(identity))
        voided.add_done_callback(lambda task: task.exception())
        await asyncio.sleep(0)
        if voided.done():
            voided.result()


class VoidsWhatIsSpooled(Spool):
    """A void is not refused for a batch that is in the spool."""

    async def void(self, identity: BatchIdentity) -> None:
        self._voids.add(identity)


class RemovesBeforeTheManifest(SpoolUploads):
    """A batch leaves the spool when its upload begins."""

    async def _land(self, identity: BatchIdentity) -> IdentityManifest | None:
        submission = await self.spool.read(identity)
        if submission is None:
            return None
        await self.spool.landed([self.acceptor.manifest_of(submission)])
        answer = await self.acceptor.accept(submission)
        return answer.manifest if isinstance(answer, Accepted | Duplicate) else None


class RemovesBeforeItIsQueued(SpoolUploads):
    """A batch leaves the spool before what follows its acceptance was done."""

    async def _land(self, identity: BatchIdentity) -> IdentityManifest | None:
        manifest = await super()._land(identity)
        if manifest is not None:
            await self.spool.landed([manifest])
        return manifest


class VoidsInTheStoreFirst(Voiding):
    """The void is in the object store before the spools know."""

    async def void(self, record: IdentityVoid) -> IdentityManifest | IdentityVoid:
        await self.acceptor.store.create(record.key, record.encode())
        for spool in (await self.authority.read()).open_spools:
            await self.spools.void(spool, record.identity)
        found = await self.acceptor.read(record.identity)
        assert found is not None
        return found


class VoidsWithoutNotice(Voiding):
    """Spools that are opened after the open ones were listed are not told."""

    async def void(self, record: IdentityVoid) -> IdentityManifest | IdentityVoid:
        for spool in (await self.authority.read()).open_spools:
            await self.spools.void(spool, record.identity)
        await self.acceptor.store.create(record.key, record.encode())
        found = await self.acceptor.read(record.identity)
        assert found is not None
        return found


class VoidsThoughASpoolIsOutOfReach(Voiding):
    """A spool that does not answer is left out."""

    async def void(self, record: IdentityVoid) -> IdentityManifest | IdentityVoid:
        await self.acceptor.store.create(keys.voiding(record.identity), record.encode())
        for spool in (await self.authority.read()).open_spools:
            try:
                await self.spools.void(spool, record.identity)
            except LakeheadError:
                continue
        await self.acceptor.store.create(record.key, record.encode())
        found = await self.acceptor.read(record.identity)
        assert found is not None
        return found


SPOOL_SOUND: dict[str, Scenario] = {"spool": spooling(), "spool_mode_switches": switching()}
SPOOL_BROKEN: dict[str, Scenario] = {
    "spool_answers_before_the_flush": spooling(Parts(spool=AnswersBeforeTheFlush)),
    "spool_trusts_names_at_the_start": spooling(Parts(spool=TrustsNamesAtTheStart)),
    "spool_does_not_ask_the_store": switching(Parts(spool=DoesNotAskTheStore)),
    "spool_believes_what_it_forgot": spooling(Parts(spool=BelievesWhatItForgot)),
    "spool_does_not_remember_what_landed": spooling(Parts(spool=DoesNotRememberWhatLanded)),
    "spool_voids_in_memory": spooling(Parts(spool=VoidsInMemory)),
    "spool_voids_what_is_spooled": spooling(Parts(spool=VoidsWhatIsSpooled)),
    "spool_removes_before_the_manifest": spooling(Parts(uploads=RemovesBeforeTheManifest)),
    "spool_removes_before_it_is_queued": spooling(Parts(uploads=RemovesBeforeItIsQueued)),
    "spool_void_in_the_store_first": spooling(Parts(voiding=VoidsInTheStoreFirst)),
    "spool_void_without_notice": switching(Parts(voiding=VoidsWithoutNotice)),
    "spool_void_though_out_of_reach": spooling(Parts(voiding=VoidsThoughASpoolIsOutOfReach)),
}
