"""A model of acceptance: a store that watches identity manifests, gateways that crash, and clients that try again.

What gateways do with a submission is the real code. The store checks after every write what must hold of the objects,
and the model checks every answer against the store at the moment at which it is given.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256

from lakehead.accept.acceptance import Accepted, Acceptor, Answer, Conflict, Submission, Void
from lakehead.accept.after_acceptance import AfterAcceptance
from lakehead.accept.conflicts import Conflicts
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import SeededIds
from lakehead.retry import Backoff
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Created, Exists, Replaced, Stale, Store, Version
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid, decode_at_identity
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.record_schemas import FrameKind
from tests.faults.store import NO_FAULTS, Faults, FaultStore
from tests.support.simulation import Process, SimulatedClock, Violation, World

REQUEST_SECONDS = 10.0
"""How long a client waits for an answer before it asks another gateway."""

QUICK = Backoff(attempts=3, first_seconds=0.02, cap_seconds=0.1)


def submission(identity: BatchIdentity, content: str) -> Submission:
    """A submission whose bytes are no frame: acceptance does not look into them."""
    body = f"{identity}: {content}".encode()
    digest = sha256(body).hexdigest()
    return Submission(
        body=body, identity=identity, kind=FrameKind.SAMPLES, sha256=digest, wire_version=1, frame_version=1
    )


class AcceptanceStore(MemoryStore):
    """Checks every write: what stands at an identity's key never changes, and names a blob that is there."""

    async def create(self, key: str, body: bytes) -> Created | Exists:
        outcome = await super().create(key, body)
        if isinstance(outcome, Created) and (identity := keys.parse_accepted(key)) is not None:
            at_key = decode_at_identity(body, identity)
            if isinstance(at_key, IdentityManifest):
                self.check_blob(at_key)
        return outcome

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        del body, version
        raise Violation(f"{key} was to be replaced")

    async def put(self, key: str, body: bytes) -> Version:
        del body
        raise Violation(f"{key} was to be overwritten")

    async def delete(self, key: str) -> None:
        raise Violation(f"{key} was to be deleted")

    def check_blob(self, manifest: IdentityManifest) -> None:
        blob = self._objects.get(manifest.raw_blob_key)
        if blob is None or sha256(blob.body).hexdigest() != manifest.frame_sha256:
            raise Violation(f"{manifest.key} names a blob that is not there")

    def at(self, identity: BatchIdentity) -> IdentityManifest | IdentityVoid | None:
        found = self._objects.get(keys.accepted(identity))
        return decode_at_identity(found.body, identity) if found else None


@dataclass
class ModelQueue:
    """Notes what is queued for landing, and fails now and then."""

    sim: "AcceptanceSimulation"

    async def put(self, manifests: Sequence[IdentityManifest]) -> None:
        for manifest in manifests:
            if manifest.identity in self.sim.queued:
                self._fail(f"{manifest.identity} is queued twice")
            if not isinstance(self.sim.store.at(manifest.identity), IdentityManifest):
                self._fail(f"{manifest.identity} is queued and was not accepted")
            self.sim.queued.add(manifest.identity)
        await self.sim.world.clock.sleep(self.sim.world.random.expovariate(10))
        if self.sim.world.random.random() < 0.1:
            raise Unavailable("the queue does not answer")

    def _fail(self, why: str) -> None:
        """Fail the simulation: nobody waits for the task that queues."""
        self.sim.world.failure = self.sim.world.failure or Violation(why)
        raise self.sim.world.failure


@dataclass
class Gateway:
    """One gateway process: the real acceptor over a network with faults."""

    process: Process
    acceptor: Acceptor
    conflicts: Conflicts
    effects: AfterAcceptance

    async def answer(self, submitted: Submission, sim: "AcceptanceSimulation") -> Answer:
        """What a gateway does with a request after it was checked. Raises what it answers 503 to."""
        answer = await self.acceptor.accept(submitted)
        if isinstance(answer, Accepted):
            self.effects.start(answer.manifest)
        elif isinstance(answer, Conflict):
            with suppress(Unavailable, OutcomeUnknown):
                await self.conflicts.record(answer)
        sim.check(submitted, answer)
        return answer


@dataclass
class AcceptanceSimulation:
    """Gateways and clients of one seed, and what was answered."""

    world: World
    gateway: type[Gateway]
    acceptor: type[Acceptor]
    network: type[FaultStore]
    faults: Faults
    store: AcceptanceStore = field(init=False)
    gateways: list[Gateway] = field(default_factory=list)
    networks: list[FaultStore] = field(default_factory=list)
    queued: set[BatchIdentity] = field(default_factory=set)
    accepted: set[BatchIdentity] = field(default_factory=set)
    is_calm: bool = False

    def __post_init__(self) -> None:
        self.store = AcceptanceStore(clock=self.world.clock)

    def start_gateway(self) -> None:
        world = self.world
        clock = SimulatedClock(world.loop, off_by=world.random.choice([0, 0, 0, -3_000, 3_000]))
        name = f"gateway {len(self.networks)}"
        store = self.connect(clock)
        ids = SeededIds(world.random)
        self.gateways.append(
            self.gateway(
                world.process(name),
                self.acceptor(store=store, clock=clock, ids=ids, random=world.random, collector_id=name, backoff=QUICK),
                Conflicts(store=store, clock=clock, ids=ids, collector_id=name),
                AfterAcceptance(store=store, queue=ModelQueue(self), most_waiting=4, most_indexed_at_once=2),
            )
        )

    def connect(self, clock: SimulatedClock) -> Store:
        world = self.world
        faults = NO_FAULTS if self.is_calm else self.faults
        store = self.network(
            self.store, faults, random=world.random, clock=clock, ids=world.ids, note=world.note, backoff=QUICK
        )
        self.networks.append(store)
        return store

    async def send(self, submitted: Submission) -> Answer:
        """Send a batch to one gateway after another until one answers, as an agent does."""
        world = self.world
        while True:
            gateway = world.random.choice(self.gateways)
            answer: asyncio.Future[Answer | None] = world.loop.create_future()
            gateway.process.spawn(self._serve(gateway, submitted, answer))
            with suppress(TimeoutError):
                async with asyncio.timeout(REQUEST_SECONDS):
                    if (given := await asyncio.shield(answer)) is not None:
                        return given
            await world.clock.sleep(world.random.uniform(0, 0.5))

    async def _serve(self, gateway: Gateway, submitted: Submission, answer: "asyncio.Future[Answer | None]") -> None:
        given: Answer | None = None
        with suppress(Unavailable, OutcomeUnknown):
            given = await gateway.answer(submitted, self)
            self.world.note(f"{type(given).__name__} {submitted.identity.seq_start}")
        if not answer.done():
            answer.set_result(given)

    def check(self, submitted: Submission, answer: Answer) -> None:
        """Check an answer against the store at the moment at which it is given."""
        identity, at_key = submitted.identity, self.store.at(submitted.identity)
        if isinstance(answer, Void):
            if not isinstance(at_key, IdentityVoid):
                raise Violation(f"{identity} was answered as void, and is not")
            return
        if not isinstance(at_key, IdentityManifest):
            raise Violation(f"{identity} was answered as accepted, and is not")
        is_same = at_key.frame_sha256 == submitted.sha256
        if is_same is isinstance(answer, Conflict):
            raise Violation(f"{identity} has the hash {at_key.frame_sha256}, and was answered {type(answer).__name__}")
        self.store.check_blob(at_key)
        if isinstance(answer, Accepted):
            if identity in self.accepted:
                raise Violation(f"{identity} was accepted as the first twice")
            self.accepted.add(identity)

    def become_calm(self) -> None:
        """No more faults, but for writes that are to be applied later."""
        self.is_calm = True
        for store in self.networks:
            store.change_faults(NO_FAULTS)
