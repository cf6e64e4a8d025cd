"""A model of garbage collection: gateways in both modes, agents that retry late, landings, and an audit now and then.

What gateways, spools and collectors do is the real code. The store checks every write and every delete; its clock is
not that of any machine.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256

from lakehead.accept.acceptance import Acceptor, Submission
from lakehead.accept.voiding import Voiding
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import SeededIds
from lakehead.maintain.blob_references import BlobSource, FullScan, ListedBlobs, TimeIndex
from lakehead.maintain.blob_requests import CountedStore
from lakehead.maintain.garbage_collection import GarbageCollection
from lakehead.maintain.garbage_orphans import SpoolOutOfReach
from lakehead.maintain.garbage_report import BlobOutcome, GarbageReport
from lakehead.maintain.garbage_retention import KeepReason, RetiringBatch
from lakehead.maintain.garbage_settings import GarbageSettings, RunOptions
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Created, Exists, ListedObject, Replaced, Stale, Store, Version
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid, decode_at_identity
from lakehead.wire.authority_records import OpenSpool
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import OverlapManifest, OverlappedBatch, QuarantineManifest
from lakehead.wire.index_records import AcceptedByBlob, QuarantineByBlob
from lakehead.wire.maintenance_records import CompletedAudit
from tests.sim.accept_model import QUICK
from tests.sim.spool_model import ModelSpools, SpoolSimulation, SpoolStore
from tests.support.simulation import SimulatedClock, Violation

HORIZON = timedelta(seconds=20)
RETENTION = timedelta(seconds=40)
ROLLBACK = timedelta(seconds=10)


@dataclass(frozen=True, kw_only=True)
class GarbageParts:
    """The code of garbage collection that is simulated; shorter versions of it are to be caught."""

    collection: type[GarbageCollection] = GarbageCollection
    voiding: type[Voiding] = Voiding


class GarbageStore(SpoolStore):
    """Checks voids when they are created, and blobs when they are deleted. Its clock is the only one that counts."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.identities: dict[str, BatchIdentity] = {}
        """Of every frame that was ever stored, by its hash."""

        self.landed_ns: dict[BatchIdentity, int] = {}
        """When batches landed."""

    async def create(self, key: str, body: bytes) -> Created | Exists:
        outcome = await super().create(key, body)
        identity = keys.parse_accepted(key)
        if isinstance(outcome, Created) and identity is not None:
            record = decode_at_identity(body, identity)
            if isinstance(record, IdentityVoid):
                self._check_age(record)
        return outcome

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        return await super().replace(key, body, version)

    def _check_age(self, void: IdentityVoid) -> None:
        blob = self._objects.get(keys.raw_blob(void.frame_sha256))
        if (
            blob is not None
            and self.clock.now_ns() - blob.meta.modified_ns < HORIZON // timedelta(microseconds=1) * 1000
        ):
            raise Violation(f"{void.identity} became void, and its blob is younger than the horizon")

    async def delete(self, key: str) -> None:
        frame_sha256 = keys.parse_raw_blob(key)
        if frame_sha256 is None:
            raise Violation(f"{key} was to be deleted")
        if key in self._objects:
            self._check_delete(frame_sha256)
        await MemoryStore.delete(self, key)

    def _check_delete(self, frame_sha256: str) -> None:
        identity = self.identities[frame_sha256]
        if quarantine := [key for key in self._objects if self._quarantines(key, frame_sha256)]:
            raise Violation(f"{frame_sha256} was deleted, and is in quarantine: {quarantine}")
        at_key = self.at(identity)
        if at_key is None:
            raise Violation(f"{identity} was deleted, and may be accepted at any time")
        if isinstance(at_key, IdentityManifest) and at_key.frame_sha256 == frame_sha256:
            if keys.retired(identity) not in self._objects:
                raise Violation(f"{identity} was deleted, and is accepted and not retired")
            if identity not in self.landed_ns:
                raise Violation(f"{identity} was deleted, and has not landed")

    @staticmethod
    def _quarantines(key: str, frame_sha256: str) -> bool:
        found = keys.parse_identity_conflict(key) or keys.parse_overlap(key)
        return found is not None and found[1] == frame_sha256

    def write(self, key: str, body: bytes) -> None:
        """Store without waiting, as the model's own parts do."""
        self._store(key, body)

    def keys_in(self, folder: str) -> list[str]:
        return sorted(key for key in self._objects if key.startswith(f"{folder}/"))

    def body(self, key: str) -> bytes:
        return self._objects[key].body

    def modified_ns(self, key: str) -> int:
        return self._objects[key].meta.modified_ns


@dataclass
class ModelLandings:
    """Knows what has landed when, and does not answer now and then."""

    sim: "GarbageSimulation"

    async def still_needed(
        self, batches: Sequence[RetiringBatch], *, done_before_ns: int
    ) -> Mapping[BatchIdentity, KeepReason]:
        world = self.sim.world
        await world.clock.sleep(world.random.expovariate(10))
        if not self.sim.is_calm and world.random.random() < 0.1:
            raise Unavailable("the state does not answer")
        landed = self.sim.garbage.landed_ns
        return {
            each.identity: KeepReason(BlobOutcome.LANDED_LATELY if each.identity in landed else BlobOutcome.NOT_LANDED)
            for each in batches
            if landed.get(each.identity, done_before_ns + 1) > done_before_ns
        }


@dataclass
class GarbageModelSpools(ModelSpools):
    """The spool of the gateway that runs now, as collectors reach it."""

    async def check(self, spool: OpenSpool) -> None:
        if not any(each.spool is not None for each in self.sim.gateways):
            raise SpoolOutOfReach(f"{spool.spool_id} does not answer")

    async def holds(self, spool: OpenSpool, identity: BatchIdentity) -> bool:
        raise AssertionError(f"only dry runs ask: {spool}, {identity}")


@dataclass
class GarbageSimulation(SpoolSimulation):
    """Gateways, agents, collectors, landings and audits of one seed."""

    garbage_parts: GarbageParts = field(default_factory=GarbageParts)
    is_auditing: bool = True
    """Whether audits are made at all before the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        off_by = self.world.random.choice([0, -5_000, 5_000, 100_000])
        self.garbage = GarbageStore(SimulatedClock(self.world.loop, off_by=off_by))
        self.store = self.garbage

    def knows(self, submitted: Submission) -> Submission:
        self.garbage.identities[submitted.sha256] = submitted.identity
        return submitted

    # --- what is derived from accepted batches

    def land(self, identity: BatchIdentity) -> None:
        """Land an accepted batch; some are in quarantine before, with or without the reverse reference."""
        manifest = self.store.at(identity)
        if not isinstance(manifest, IdentityManifest) or identity in self.garbage.landed_ns:
            return
        if self.world.random.random() < 0.3:
            other = OverlappedBatch(
                accepted_manifest_key="another", ranges=((identity.seq_start, identity.seq_end),), not_compared="so"
            )
            overlap = OverlapManifest.of(
                identity, manifest.frame_sha256, [other], table="t", observed_at_unix_ns=1, observed_by="model"
            )
            self.garbage.write(overlap.key, overlap.encode())
            if self.world.random.random() < 0.5:
                reference = QuarantineByBlob.of(overlap)
                self.garbage.write(reference.key, reference.encode())
        self.garbage.landed_ns[identity] = self.garbage.clock.now_ns()
        self.world.note(f"landed {identity.seq_start}")

    async def land_now_and_then(self, seconds: float) -> None:
        world = self.world
        until = world.clock.monotonic() + seconds
        while world.clock.monotonic() < until:
            await world.clock.sleep(world.random.expovariate(0.2))
            for identity in sorted(self.promised, key=str):
                if world.random.random() < 0.3:
                    self.land(identity)

    async def audit(self) -> None:
        """What a reconciler does: every reverse reference is there when it ends."""
        world, store = self.world, self.garbage
        begun_ns = store.clock.now_ns()
        await world.clock.sleep(world.random.expovariate(1))
        for key in store.keys_in(keys.ACCEPTED):
            identity = keys.parse_accepted(key)
            assert identity is not None
            if isinstance(manifest := store.at(identity), IdentityManifest):
                self._refer(AcceptedByBlob.of(manifest))
        for key in store.keys_in(keys.IDENTITY_CONFLICTS):
            self._refer(QuarantineByBlob.of(QuarantineManifest.decode(store.body(key), key)))
        for key in store.keys_in(keys.OVERLAPS):
            self._refer(QuarantineByBlob.of(OverlapManifest.decode(store.body(key), key)))
        record = CompletedAudit(
            begun_at_unix_ns=begun_ns,
            ended_at_unix_ns=store.clock.now_ns(),
            accepted=0,
            voids=0,
            quarantined=0,
            repaired=0,
            problems=0,
            audited_by="model",
            version=1,
        )
        store.write(record.key, record.encode())
        world.note("audited")

    def _refer(self, reference: AcceptedByBlob | QuarantineByBlob) -> None:
        if not self.garbage.has(reference.key):
            self.garbage.write(reference.key, reference.encode())

    # --- collectors

    def collection(self, store: Store) -> GarbageCollection:
        world, ids = self.world, SeededIds(self.world.random)
        clock = SimulatedClock(world.loop, off_by=world.random.choice([0, -50_000, 50_000]))
        counted = CountedStore(store)
        acceptor = Acceptor(store=counted, clock=clock, ids=ids, random=world.random, collector_id="gc", backoff=QUICK)
        spools = GarbageModelSpools(self)
        voiding = self.garbage_parts.voiding(acceptor=acceptor, authority=self.authority(counted), spools=spools)
        return self.garbage_parts.collection(
            store=counted,
            voiding=voiding,
            spools=spools,
            users=(ModelLandings(self),),
            name="gc",
            clock=clock,
            ids=ids,
            random=world.random,
            settings=GarbageSettings(retry_horizon=HORIZON, retention=RETENTION, rollback=ROLLBACK, at_once=2),
        )

    def source(self) -> BlobSource:
        async def pages() -> AsyncIterator[Sequence[ListedObject]]:
            for page in [each async for each in self.garbage.list("")]:
                yield page

        known: list[BlobSource] = [
            FullScan(),
            FullScan(),
            TimeIndex(needs_age=True),
            ListedBlobs(pages, needs_age=True),
        ]
        return self.world.random.choice(known)

    async def collect_once(
        self, source: BlobSource | None = None, *, makes_audit: bool = False
    ) -> GarbageReport | None:
        try:
            report = await self.collection(self.connect()).run(
                source or self.source(), RunOptions(by="model", makes_audit=makes_audit)
            )
        except (Unavailable, OutcomeUnknown) as error:
            self.world.note(f"not collected: {error}")
            return None
        self.world.note(f"collected { ({each.value: tally.count for each, tally in report.tallies.items()}) }")
        return report

    async def collect_now_and_then(self, rounds: int) -> None:
        world = self.world
        for _ in range(rounds):
            await world.clock.sleep(world.random.choice([1, 10, 25, 25, 60]))
            await self.collect_once(makes_audit=world.random.random() < 0.2)

    async def audit_now_and_then(self, rounds: int) -> None:
        for _ in range(rounds):
            await self.world.clock.sleep(self.world.random.choice([5, 20, 30, 60]))
            await self.audit()

    # --- the end

    def check_end(self, *, all_queued: bool) -> None:
        """What was promised is accepted, with its blob until it is retired; the spool is empty."""
        for identity, promised in self.promised.items():
            at_key = self.store.at(identity)
            if not isinstance(at_key, IdentityManifest) or at_key.frame_sha256 != promised:
                raise Violation(f"{identity} was promised with {promised}, and the store has {at_key}")
            if not self.garbage.has(keys.retired(identity)):
                self.store.check_blob(at_key)
        del all_queued
        if left := [
            key for disk in self.disks for folder in ("batches", "kept", "damaged") for key in disk.has(folder)
        ]:
            raise Violation(f"the spool still has {left}")

    def check_no_garbage(self) -> None:
        """No blob is left that nothing names, and none of a batch that could be retired."""
        store = self.garbage
        for key in store.keys_in(keys.RAW_BLOBS):
            frame_sha256 = keys.parse_raw_blob(key)
            assert frame_sha256 is not None
            assert sha256(store.body(key)).hexdigest() == frame_sha256
            identity = store.identities[frame_sha256]
            at_key = store.at(identity)
            is_accepted = isinstance(at_key, IdentityManifest) and at_key.frame_sha256 == frame_sha256
            is_quarantined = any(store._quarantines(each, frame_sha256) for each in store._objects)
            if not is_accepted and not is_quarantined:
                raise Violation(f"{identity} is an orphan, and was not deleted: {at_key}")
            if is_accepted and not is_quarantined and identity in store.landed_ns:
                raise Violation(f"{identity} has landed long ago, and was not deleted")
