"""A model of the whole path behind gateways: a queue, consumers that land batches, reconcilers, and operators.

Gateways, spools, garbage collection and reconcilers are the real code; queue and table are models. What is landed is
counted by record, and what an operator dropped is written down.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lakehead.accept.after_acceptance import LandingQueue
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import SeededIds
from lakehead.lake.dead_letters import DeadLetters
from lakehead.maintain.blob_check import BlobCheck
from lakehead.maintain.hour_indexes import HourIndexes
from lakehead.maintain.open_repairs import OpenRepairs
from lakehead.maintain.reconcile_batch import BatchReconciler
from lakehead.maintain.reconcile_cold import ColdScanner
from lakehead.maintain.reconcile_hours import SteadyScan
from lakehead.maintain.reconcile_landings import LandingTable, MissingLandings
from lakehead.maintain.reconcile_report import ReconcileReport
from lakehead.maintain.reconcile_settings import ReconcileSettings
from lakehead.maintain.reconciler import Reconciler
from lakehead.maintain.reconciler_records import ReconcilerRecords
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Replaced, Stale, Store, Version
from lakehead.wire import acceptance_keys as keys
from lakehead.wire import dead_letters as letters
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.key_parts import boot_part
from lakehead.wire.maintenance_records import DiscardedBatch
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.spans import Spans, merged
from tests.sim.garbage_model import GarbageSimulation, GarbageStore
from tests.support.simulation import SimulatedClock

TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"
SETTINGS = ReconcileSettings(grace_seconds=2.0, at_once=2)
DERIVED = (keys.RAW_BLOBS_BY_TIME, keys.ACCEPTED_BY_TIME, keys.ACCEPTED_BY_BLOB, keys.QUARANTINE_BY_BLOB)
HELD_SECONDS = 8.0
"""How long an entry of the queue is one consumer's."""


class PathStore(GarbageStore):
    """The object store of the whole path: reconcilers and dead letters replace their records."""

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        if key.startswith(("reconciler/v1/", f"{keys.REPAIRS}/", f"{letters.ROOT}/")):
            return await MemoryStore.replace(self, key, body, version)
        return await super().replace(key, body, version)

    def lose_derived(self, folder: str) -> None:
        """Forget one of the derived indexes."""
        for key in self.keys_in(folder):
            del self._objects[key]

    def snapshot(self) -> dict[str, bytes]:
        """All objects but those in which reconcilers note that they live, and how far they are."""
        return {key: each.body for key, each in self._objects.items() if not key.startswith("reconciler/v1/")}


@dataclass(eq=False)
class QueuedEntry:
    """Some accepted batches, queued together."""

    identities: tuple[BatchIdentity, ...]
    held_until: float = float("-inf")


@dataclass
class PathQueue:
    """The landing queue: delivers at least once, and may leave open whether something was queued."""

    sim: "PathSimulation"
    entries: list[QueuedEntry] = field(default_factory=list)

    async def put(self, manifests: Sequence[IdentityManifest]) -> None:
        await self._way()
        self.entries.append(QueuedEntry(tuple(each.identity for each in manifests)))
        await self._way(applied=True)

    async def among(self, accepted_keys: Collection[str]) -> frozenset[str]:
        await self._way()
        queued = frozenset(keys.accepted(each) for entry in self.entries for each in entry.identities)
        await self._way()
        return queued & frozenset(accepted_keys)

    def take(self) -> QueuedEntry | None:
        now, free = self.sim.world.clock.monotonic(), list[QueuedEntry]()
        free = [entry for entry in self.entries if entry.held_until <= now]
        if not free:
            return None
        taken = self.sim.world.random.choice(free)
        taken.held_until = now + HELD_SECONDS
        return taken

    def acknowledge(self, entry: QueuedEntry) -> None:
        if entry in self.entries:
            self.entries.remove(entry)

    async def _way(self, *, applied: bool = False) -> None:
        world = self.sim.world
        await world.clock.sleep(world.random.expovariate(10))
        if not self.sim.is_calm and world.random.random() < 0.05:
            raise OutcomeUnknown("the queue did not answer") if applied else Unavailable("the queue does not answer")


@dataclass
class PathTable:
    """The table in which batches land: counts each record, and answers as a state does."""

    sim: "PathSimulation"
    rows: Counter[tuple[str, int]] = field(default_factory=Counter)
    """How often each record of each boot has landed."""

    async def ranges(self, table: str, streams: Sequence[str]) -> Mapping[str, Spans]:
        world = self.sim.world
        await world.clock.sleep(world.random.expovariate(10))
        if table != TABLE or (not self.sim.is_calm and world.random.random() < 0.05):
            raise Unavailable("the state does not answer")
        return {
            stream: merged((number, number + 1) for boot, number in self.rows if boot == stream) for stream in streams
        }

    async def tables(self) -> Mapping[FrameKind, LandingTable]:
        return {FrameKind.SAMPLES: LandingTable("metrics.samples", TABLE)}

    def has(self, identity: BatchIdentity) -> bool:
        return all(record in self.rows for record in _records(identity))

    def land(self, identity: BatchIdentity) -> None:
        """Land the records of a batch that have not landed, in one commit."""
        self.rows.update(record for record in _records(identity) if record not in self.rows)


@dataclass(frozen=True, kw_only=True)
class PathParts:
    """The code of reconcilers that is simulated; shorter versions of it are to be caught."""

    landings: type[MissingLandings] = MissingLandings
    cold: type[ColdScanner] = ColdScanner


@dataclass
class PathSimulation(GarbageSimulation):
    """Everything of one seed."""

    path_parts: PathParts = field(default_factory=PathParts)
    queue: PathQueue = field(init=False)
    table: PathTable = field(init=False)
    bad: set[BatchIdentity] = field(default_factory=set)
    """Batches that cannot be landed."""

    given_up: set[BatchIdentity] = field(default_factory=set)
    dropping: set[BatchIdentity] = field(default_factory=set)
    """Batches that an operator has begun to drop, which the state knows: none is landed from then on."""

    dropped: set[BatchIdentity] = field(default_factory=set)
    """Batches of which an operator was told that they will not land."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.path = PathStore(self.garbage.clock)
        self.store = self.garbage = self.path
        self.queue, self.table = PathQueue(self), PathTable(self)

    def landing_queue(self) -> LandingQueue:
        return self.queue

    # --- consumers

    async def consume(self) -> None:
        """Land what is queued, and acknowledge it after that, until the process dies."""
        world, store = self.world, self.connect()
        while True:
            await world.clock.sleep(world.random.expovariate(0.5))
            entry = self.queue.take()
            if entry is None:
                continue
            done = [await self._consumed(identity, store) for identity in entry.identities]
            await world.clock.sleep(world.random.expovariate(2))
            if all(done):
                self.queue.acknowledge(entry)

    async def _consumed(self, identity: BatchIdentity, store: Store) -> bool:
        """Land a batch, or give it up; whether that is done."""
        manifest = self.store.at(identity)
        if not isinstance(manifest, IdentityManifest):
            self.fail(f"{identity} is queued, and was not accepted")
            return False
        if self.table.has(identity):
            return True
        try:
            letter = await DeadLetters(store).get(TABLE, keys.accepted(identity))
            if letter is not None and letter.closed is not None and letter.closed.how == "dropped":
                return True
            if identity in self.bad:
                return await self._give_up(identity, store)
            found = await store.get(manifest.raw_blob_key)
        except (Unavailable, OutcomeUnknown):
            return False
        if found is None:
            return self.table.has(identity)  # then it was retired, else its repair is waited for
        await self.world.clock.sleep(self.world.random.expovariate(2))
        if identity in self.dropping:
            return False
        self.table.land(identity)
        self.land(identity)
        return True

    async def _give_up(self, identity: BatchIdentity, store: Store) -> bool:
        at = datetime.fromtimestamp(self.world.clock.monotonic(), UTC)
        unit = keys.accepted(identity)
        letter = letters.DeadLetterObject(table=TABLE, unit=unit, reason="it cannot be read", first_at=at, last_at=at)
        self.given_up.add(identity)
        await DeadLetters(store).write(letter)
        self.world.note(f"gave up {identity.seq_start}")
        return True

    async def decide(self) -> None:
        """An operator drops or replays what was given up. Raises `Unavailable` and `OutcomeUnknown`."""
        world, store = self.world, self.connect()
        for identity in sorted(self.given_up, key=str):
            letter = await DeadLetters(store).get(TABLE, keys.accepted(identity))
            if letter is not None and letter.closed is not None and letter.closed.how == "dropped":
                self.dropped.add(identity)  # also by a write that was applied after its operator had died
            if letter is None or letter.closed is not None:
                continue
            at = datetime.fromtimestamp(world.clock.monotonic(), UTC)
            if identity in self.dropping or (world.random.random() < 0.5 and not self.table.has(identity)):
                self.dropping.add(identity)
                record = DiscardedBatch.of(TABLE, identity, at_unix_ns=1, by="operator")
                await store.create(record.key, record.encode())
                closed = await DeadLetters(store).close(letter, letters.ClosedLetter("dropped", at))
                if closed.closed is not None and closed.closed.how == "dropped":
                    self.dropped.add(identity)
                    world.note(f"dropped {identity.seq_start}")
            else:
                manifest = self.store.at(identity)
                assert isinstance(manifest, IdentityManifest)
                await self.queue.put([manifest])
                await DeadLetters(store).mark_replayed(letter, at)
                self.bad.discard(identity)

    # --- reconcilers

    def reconciler(self, store: Store) -> Reconciler:
        world, ids = self.world, SeededIds(self.world.random)
        clock = SimulatedClock(world.loop, off_by=world.random.choice([0, 0, -30, 30]))
        repairs = OpenRepairs(store)
        records = ReconcilerRecords(store=store, clock=clock, ids=ids, random=world.random, reconciler_id="reconciler")
        landings = self.path_parts.landings(
            store=store,
            landed=self.table,
            letters=DeadLetters(store),
            tables=self.table,
            pending=self.queue,
            queue=self.queue,
            unit_of=str,
            clock=clock,
            grace_seconds=SETTINGS.grace_seconds,
        )

        def batches() -> BatchReconciler:
            return BatchReconciler(
                store=store,
                clock=clock,
                ids=ids,
                random=world.random,
                reconciler_id="reconciler",
                blobs=BlobCheck(store),
                hours=HourIndexes(store),
                repairs=repairs,
            )

        return Reconciler(
            steady=SteadyScan(batches=batches(), landings=landings, settings=SETTINGS),
            cold=self.path_parts.cold(batches=batches(), landings=landings, records=records, settings=SETTINGS),
            repairs=repairs,
            records=records,
            settings=SETTINGS,
            clock=clock,
        )

    async def reconcile(self, passes: int | None = None) -> None:
        """Look at the newest hours again and again, and at everything now and then, until the process dies."""
        world, reconciler = self.world, self.reconciler(self.connect())
        while passes is None or passes > 0:
            passes = None if passes is None else passes - 1
            await world.clock.sleep(world.random.choice([1, 5, 20]))
            with suppress(Unavailable, OutcomeUnknown):
                await (reconciler.cold_scan() if world.random.random() < 0.4 else reconciler.pass_once())

    async def reconciled(self) -> ReconcileReport:
        """What a new reconciler does in one pass over the newest hours and one over everything."""
        reconciler = self.reconciler(self.connect())
        report = await reconciler.pass_once()
        report.add(await reconciler.cold_scan())
        return report

    async def audit(self) -> None:
        """The scan of everything by a reconciler, instead of the model's own."""
        with suppress(Unavailable, OutcomeUnknown):
            await self.reconciler(self.connect()).cold_scan()
            self.world.note("audited")

    # --- the end

    def unsettled(self) -> list[BatchIdentity]:
        """What was promised, and has neither landed nor was dropped."""
        return [
            each for each in sorted(self.promised, key=str) if not self.table.has(each) and each not in self.dropped
        ]

    def check_landed(self) -> None:
        """Every record landed once, and nothing that was dropped did."""
        if twice := [record for record, count in self.table.rows.items() if count > 1]:
            self.fail(f"{twice} landed more than once")
        if landed := [each for each in self.dropped if self.table.has(each)]:
            self.fail(f"{landed} were dropped, and landed")


def _records(identity: BatchIdentity) -> list[tuple[str, int]]:
    boot = boot_part(identity.agent_id, identity.boot_id)
    return [(boot, number) for number in range(identity.seq_start, identity.seq_end + 1)]
