"""A model of `local_spool`: a disk that forgets what was not flushed, a gateway that crashes, and garbage collection.

What the gateway, its uploads and garbage collection do is the real code. Every promise to a client is written down, and
checked against the object store at the end; voids are checked against the promises at once.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa

from lakehead.accept.acceptance import Accepted, Acceptor, Answer, Conflict, Submission, Void
from lakehead.accept.after_acceptance import AfterAcceptance, LandingQueue
from lakehead.accept.authority import Authority
from lakehead.accept.conflicts import Conflicts
from lakehead.accept.spool import Spool
from lakehead.accept.spool_opening import SpoolConflicts, SpoolOpening
from lakehead.accept.spool_uploads import SpoolUploads
from lakehead.accept.spooled_batch import IdentityInSpool
from lakehead.accept.voiding import Voiding
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.ids import SeededIds
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Created, Exists, Object, Replaced, Stale, Store, Version
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.authority_records import AcceptanceMode, OpenSpool
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import decode_frame, encode_frame
from lakehead.wire.record_schemas import SAMPLES_V1, FrameKind
from lakehead.wire.spool_records import BOOTS
from tests.faults.store import NO_FAULTS, Faults, FaultStore
from tests.sim.accept_model import QUICK, AcceptanceStore
from tests.support.simulation import Process, Violation, World

REQUEST_SECONDS = 10.0


@lru_cache(maxsize=256)
def submission(identity: BatchIdentity, content: float) -> Submission:
    """A real frame: the spool reads its identity back."""
    rows = [
        {"time": number, "metric": "m", "labels": [], "type": "gauge", "value": content}
        for number in range(identity.record_count)
    ]
    body = encode_frame(identity, FrameKind.SAMPLES, pa.RecordBatch.from_pylist(rows, schema=SAMPLES_V1))
    return Submission.of(body, decode_frame(body))


class SimulatedDisk(MemoryStore):
    """A folder as a process sees it, and as it is after the power was lost: only what was flushed is there for sure.

    A process that dies leaves what it has written; whether that reaches the disk is decided when the power is lost.
    """

    def __init__(self, world: World, *, faults: float = 0.0) -> None:
        super().__init__(clock=world.clock)
        self.faults = faults
        self._world = world
        self._flushed: dict[str, Object] = {}

    async def create(self, key: str, body: bytes) -> Created | Exists:
        await self._work("create", key)
        outcome = await super().create(key, body)
        await self._flush(key)
        return outcome

    async def put(self, key: str, body: bytes) -> Version:
        await self._work("put", key)
        version = await super().put(key, body)
        await self._flush(key)
        return version

    async def delete(self, key: str) -> None:
        await self._work("delete", key)
        await super().delete(key)
        await self._flush(key)

    def lose_power(self) -> None:
        for key in sorted({*self._objects, *self._flushed}):
            if self._objects.get(key) is not self._flushed.get(key) and self._world.random.random() < 0.5:
                self._flush_now(key)
        self._objects = dict(self._flushed)

    def flush_folder(self, folder: str) -> None:
        """As every start of a process does with what is known of boots."""
        for key in sorted({*self._objects, *self._flushed}):
            if key.startswith(f"{folder}/"):
                self._flush_now(key)

    def has(self, folder: str) -> list[str]:
        return [key for key in self._objects if key.startswith(f"{folder}/")]

    async def _work(self, verb: str, key: str) -> None:
        await self._world.clock.sleep(self._world.random.expovariate(500))
        if self._world.random.random() < self.faults:
            self._world.note(f"{verb} {key}: the disk is full")
            raise Unavailable("the disk is full")

    async def _flush(self, key: str) -> None:
        await self._world.clock.sleep(self._world.random.expovariate(self._world.random.choice([200, 200, 5])))
        if self._world.random.random() < self.faults / 4:
            self._world.note(f"{key}: fsync fails")
            raise OutcomeUnknown(f"{key} was written, and could not be flushed")
        folder = key.rpartition("/")[0]
        for each in sorted({*self._objects, *self._flushed}):
            if each.rpartition("/")[0] == folder:
                self._flush_now(each)

    def _flush_now(self, key: str) -> None:
        if key in self._objects:
            self._flushed[key] = self._objects[key]
        else:
            self._flushed.pop(key, None)


class SpoolStore(AcceptanceStore):
    """The object store: the authority record is replaced, and garbage collection deletes blobs of void identities."""

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        if key != keys.AUTHORITY:
            raise Violation(f"{key} was to be replaced")
        return await MemoryStore.replace(self, key, body, version)

    def collect(self, frame_sha256: str) -> None:
        self._objects.pop(keys.raw_blob(frame_sha256), None)

    def has(self, key: str) -> bool:
        return key in self._objects


@dataclass
class ModelQueue:
    """Notes what is queued for landing: any number of times, and only what was accepted."""

    sim: "SpoolSimulation"

    async def put(self, manifests: Sequence[IdentityManifest]) -> None:
        for manifest in manifests:
            if not isinstance(self.sim.store.at(manifest.identity), IdentityManifest):
                self.sim.fail(f"{manifest.identity} is queued and was not accepted")
        await self.sim.world.clock.sleep(self.sim.world.random.expovariate(10))
        self.sim.queued.update(each.identity for each in manifests)


@dataclass
class SpoolGateway:
    """One start of a gateway: with a spool, or without one in the strict mode."""

    process: Process
    acceptor: Acceptor
    conflicts: Conflicts
    effects: AfterAcceptance
    opening: SpoolOpening | None
    spool: Spool | None = None

    async def run(self, sim: "SpoolSimulation") -> None:
        """Open the spool, as soon as the store allows it, and land what is in it until the process dies."""
        assert self.opening is not None
        while True:
            try:
                spool = await self.opening.open(address="here")
                break
            except (Unavailable, OutcomeUnknown):
                await sim.world.clock.sleep(0.5)
        sim.world.note(f"the spool is open with {spool.count} batches")
        if sim.forgetful:
            spool.boots.most = spool.boots.most_recent = 1
        uploads = sim.uploads(self, spool)
        self.spool = spool
        await uploads.run()

    async def answer(self, submitted: Submission) -> Answer:
        if self.opening is None:
            answer = await self.acceptor.accept(submitted)
            if isinstance(answer, Accepted):
                self.effects.start(answer.manifest)
            return answer
        if self.spool is None:
            raise Unavailable("the spool is not open yet")
        answer = await self.spool.accept(submitted)
        if isinstance(answer, Conflict):
            with suppress(Unavailable, OutcomeUnknown):
                await SpoolConflicts(self.conflicts, self.acceptor).record(answer)
        return answer


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The code that is simulated; shorter versions of it are to be caught."""

    spool: type[Spool] = Spool
    uploads: type[SpoolUploads] = SpoolUploads
    voiding: type[Voiding] = Voiding


@dataclass
class SpoolSimulation:
    """The gateways and clients of one seed, and what was promised."""

    world: World
    parts: Parts
    faults: Faults
    store: SpoolStore = field(init=False)
    disk: SimulatedDisk = field(init=False)
    disks: list[SimulatedDisk] = field(default_factory=list)
    gateways: list[SpoolGateway] = field(default_factory=list)
    networks: list[FaultStore] = field(default_factory=list)
    queued: set[BatchIdentity] = field(default_factory=set)
    promised: dict[BatchIdentity, str] = field(default_factory=dict)
    accepted: set[BatchIdentity] = field(default_factory=set)
    is_calm: bool = False
    forgetful: bool = field(init=False)
    """Whether spools know one boot at a time, and one batch of it."""

    def __post_init__(self) -> None:
        self.store = SpoolStore(clock=self.world.clock)
        self.forgetful = bool(self.world.seed % 2)
        self.new_disk()

    def new_disk(self) -> None:
        faults = 0.0 if self.is_calm else self.world.random.choice([0, 0, 0.02])
        self.disk = SimulatedDisk(self.world, faults=faults)
        self.disks.append(self.disk)

    def authority(self, store: Store) -> Authority:
        world = self.world
        return Authority(
            store=store, clock=world.clock, ids=world.ids, random=world.random, bucket="b", prefix="", backoff=QUICK
        )

    async def set_up(self, mode: AcceptanceMode) -> None:
        await self.authority(self.store).init(mode)

    def gateway(self, mode: AcceptanceMode, name: str = "gateway") -> SpoolGateway:
        world = self.world
        store, ids = self.connect(), SeededIds(world.random)
        acceptor = Acceptor(
            store=store, clock=world.clock, ids=ids, random=world.random, collector_id="gateway", backoff=QUICK
        )
        opening = None
        if mode == "local_spool":
            self.disk.flush_folder(BOOTS)
            opening = SpoolOpening(
                disk=self.disk,
                authority=self.authority(store),
                acceptor=acceptor,
                ids=ids,
                spool=self.parts.spool,
            )
        return SpoolGateway(
            world.process(name),
            acceptor,
            Conflicts(store=store, clock=world.clock, ids=ids, collector_id="gateway"),
            AfterAcceptance(store=store, queue=self.landing_queue()),
            opening,
        )

    def landing_queue(self) -> LandingQueue:
        """Where gateways put what they have accepted."""
        return ModelQueue(self)

    def start_gateway(self, mode: AcceptanceMode = "local_spool") -> None:
        started = self.gateway(mode)
        self.gateways.append(started)
        if mode == "local_spool":
            started.process.spawn(started.run(self))

    def uploads(self, gateway: SpoolGateway, spool: Spool) -> SpoolUploads:
        return self.parts.uploads(
            spool=spool,
            acceptor=gateway.acceptor,
            conflicts=gateway.conflicts,
            effects=gateway.effects,
            clock=self.world.clock,
            random=self.world.random,
            at_once=2,
            group=3,
        )

    def stop_gateways(self, *, power: bool = False) -> None:
        for each in self.gateways:
            each.process.crash()
        self.gateways.clear()
        if power:
            self.world.note("the power is lost")
            self.disk.lose_power()

    async def drain(self) -> None:
        """`lakehead gateway drain`, by a process that may be killed, until it has succeeded."""
        world = self.world
        while True:
            gateway = self.gateway("local_spool", "drain")
            work = gateway.process.spawn(self._drain(gateway))
            if not self.is_calm and world.random.random() < 0.3:
                await world.clock.sleep(world.random.expovariate(3))
                gateway.process.crash()
            else:
                await world.until(gateway.process)
                if work.done() and not work.cancelled() and work.result():
                    return

    async def _drain(self, gateway: SpoolGateway) -> bool:
        assert gateway.opening is not None
        try:
            spool = await gateway.opening.open(address="here")
            await self.uploads(gateway, spool).drain()
            await gateway.opening.close(spool, by="operator")
        except (Unavailable, OutcomeUnknown) as error:
            self.world.note(f"not drained: {error}")
            return False
        return True

    async def set_mode(self, mode: AcceptanceMode) -> None:
        await self.authority(self.store).set_mode(mode, by="operator")

    def connect(self) -> Store:
        world = self.world
        faults = NO_FAULTS if self.is_calm else self.faults
        store = FaultStore(
            self.store, faults, random=world.random, clock=world.clock, ids=world.ids, note=world.note, backoff=QUICK
        )
        self.networks.append(store)
        return store

    # --- clients

    async def send(self, submitted: Submission) -> Answer:
        """Send a batch to whatever gateway there is until one answers."""
        world = self.world
        while True:
            given: asyncio.Future[Answer | None] = world.loop.create_future()
            if self.gateways:
                gateway = world.random.choice(self.gateways)
                gateway.process.spawn(self._serve(gateway, submitted, given))
                with suppress(TimeoutError):
                    async with asyncio.timeout(world.random.choice([0.2, REQUEST_SECONDS])):
                        if (answer := await asyncio.shield(given)) is not None:
                            return answer
            await world.clock.sleep(world.random.uniform(0, 0.5))

    async def _serve(
        self, gateway: SpoolGateway, submitted: Submission, given: "asyncio.Future[Answer | None]"
    ) -> None:
        answer: Answer | None = None
        with suppress(Unavailable, OutcomeUnknown):
            answer = await gateway.answer(submitted)
            self.world.note(f"{type(answer).__name__} {submitted.identity.seq_start}")
            self.check(submitted, answer)
        if not given.done():
            given.set_result(answer)

    def check(self, submitted: Submission, answer: Answer) -> None:
        """Check an answer at the moment at which it is given."""
        identity, at_key = submitted.identity, self.store.at(submitted.identity)
        if isinstance(answer, Void):
            if not isinstance(at_key, IdentityVoid) or identity in self.promised:
                raise Violation(f"{identity} was answered as void, and is not")
        elif isinstance(answer, Conflict):
            if self.promised.get(identity) == submitted.sha256:
                raise Violation(f"{identity} was promised, and is a conflict now")
        else:
            if isinstance(at_key, IdentityVoid):
                raise Violation(f"{identity} was promised, and is void")
            if self.promised.setdefault(identity, submitted.sha256) != submitted.sha256:
                raise Violation(f"two frames of {identity} were promised")
            if isinstance(answer, Accepted):
                if identity in self.accepted:
                    raise Violation(f"{identity} was accepted as the first twice")
                self.accepted.add(identity)

    # --- garbage collection

    async def collect(self, submitted: Submission) -> None:
        """Make an identity void, and delete its blob, unless it is accepted or a spool has it."""
        world, store = self.world, self.connect()
        ids = SeededIds(world.random)
        acceptor = Acceptor(
            store=store, clock=world.clock, ids=ids, random=world.random, collector_id="gc", backoff=QUICK
        )
        voiding = self.parts.voiding(acceptor=acceptor, authority=self.authority(store), spools=ModelSpools(self))
        identity = submitted.identity
        record = IdentityVoid(
            agent_id=identity.agent_id,
            boot_id=identity.boot_id,
            seq_start=identity.seq_start,
            seq_end=identity.seq_end,
            frame_sha256=submitted.sha256,
            voided_at_unix_ns=world.clock.now_ns(),
            voided_by="gc",
        )
        while True:  # what was begun and not ended would be answered 503 until it is
            await world.clock.sleep(world.random.expovariate(0.5))
            try:
                found = await voiding.void(record)
            except IdentityInSpool:
                return
            except (Unavailable, OutcomeUnknown):
                continue
            if isinstance(found, IdentityVoid):
                world.note(f"void {identity.seq_start}")
                self.store.collect(submitted.sha256)
            return

    def fail(self, why: str) -> None:
        self.world.failure = self.world.failure or Violation(why)
        raise self.world.failure

    # --- the end

    def become_calm(self) -> None:
        self.is_calm = True
        for store in self.networks:
            store.change_faults(NO_FAULTS)
        for disk in self.disks:
            disk.faults = 0.0

    def check_end(self, *, all_queued: bool) -> None:
        """Nothing that was promised is lost, and nothing is left."""
        for identity, promised in self.promised.items():
            at_key = self.store.at(identity)
            if not isinstance(at_key, IdentityManifest) or at_key.frame_sha256 != promised:
                raise Violation(f"{identity} was promised with {promised}, and the store has {at_key}")
            self.store.check_blob(at_key)
            if all_queued and identity not in self.queued:
                raise Violation(f"{identity} was landed, and is not queued")
        if left := [
            key for disk in self.disks for folder in ("batches", "kept", "damaged") for key in disk.has(folder)
        ]:
            raise Violation(f"the spool still has {left}")


@dataclass
class ModelSpools:
    """Reaches the spool of the gateway that runs now, if one does."""

    sim: SpoolSimulation

    async def void(self, spool: OpenSpool, identity: BatchIdentity) -> None:
        del spool
        running = [each for each in self.sim.gateways if each.spool is not None]
        if not running:
            raise Unavailable("the spool is out of reach")
        [gateway] = running
        assert gateway.spool is not None
        done: asyncio.Future[LakeheadError | None] = self.sim.world.loop.create_future()

        async def serve(opened: Spool) -> None:
            failure: LakeheadError | None = None
            try:
                await opened.void(identity)
            except LakeheadError as error:
                failure = error
            if not done.done():
                done.set_result(failure)

        gateway.process.spawn(serve(gateway.spool))
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                failure = await asyncio.shield(done)
        except TimeoutError:
            raise Unavailable("the spool does not answer") from None
        if failure is not None:
            raise failure
