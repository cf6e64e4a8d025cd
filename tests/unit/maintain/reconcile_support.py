"""Accepted batches in a store, and a reconciler for them, on a clock that is moved by hand."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from lakehead.accept.acceptance import Acceptor
from lakehead.accept.after_acceptance import AfterAcceptance
from lakehead.buffer.config import IngestorConfig, ObjectStoreConfig
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.ingestor import Ingestor
from lakehead.clock import SystemClock
from lakehead.gateway.landing_queue import BufferedLandingQueue
from lakehead.ids import RandomIds
from lakehead.lake.dead_letters import DeadLetters
from lakehead.maintain.accepted_events import AcceptedEvents
from lakehead.maintain.blob_check import BlobCheck
from lakehead.maintain.hour_indexes import HourIndexes
from lakehead.maintain.landed_batches import StateRanges
from lakehead.maintain.open_repairs import OpenRepairs
from lakehead.maintain.queued_batches import QueuedBatches
from lakehead.maintain.reconcile_batch import BatchReconciler
from lakehead.maintain.reconcile_cold import ColdScanner
from lakehead.maintain.reconcile_hours import SteadyScan
from lakehead.maintain.reconcile_landings import LandingTable, MissingLandings, PendingBatches
from lakehead.maintain.reconcile_settings import ReconcileSettings, VerifyMode
from lakehead.maintain.reconciler import Reconciler
from lakehead.maintain.reconciler_records import ReconcilerRecords
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Created, Exists, Object, ObjectMeta, Replaced, Stale, Store, Version
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.record_schemas import FrameKind
from tests.unit.accept.support import submitted

TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"
NOON = 1_760_011_200_000_000_000
HOUR = 3600.0
PLACE = ObjectStoreConfig(url="memory://")
QUEUE = "landing-queue/manifest.json"


@dataclass
class MovedClock:
    """Time that passes when a test says so, and when somebody sleeps."""

    seconds: float = 0.0

    def now_ns(self) -> int:
        return NOON + int(self.seconds * 1e9)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)


class CountedStore(MemoryStore):
    """Notes every write, and counts every request by its kind and the first folder of its key."""

    def __init__(self, clock: MovedClock) -> None:
        super().__init__(clock=clock)
        self.written: list[str] = []
        self.requests: Counter[tuple[str, str]] = Counter()

    def forget(self) -> None:
        self.written.clear()
        self.requests.clear()

    async def create(self, key: str, body: bytes) -> Created | Exists:
        found = await super().create(key, body)
        self.written.append(key)
        return found

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        self.written.append(key)
        return await super().replace(key, body, version)

    async def put(self, key: str, body: bytes) -> Version:
        self.written.append(key)
        return await super().put(key, body)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        self.requests["get", key.partition("/")[0]] += 1
        return await super().get(key, start=start, end=end)

    async def head(self, key: str) -> ObjectMeta | None:
        self.requests["head", key.partition("/")[0]] += 1
        return await super().head(key)

    async def delete_folder(self, *folders: str) -> None:
        for folder in folders:
            for key in await self.keys(folder):
                await self.delete(key)

    async def keys(self, folder: str = "") -> list[str]:
        return [each.key async for page in self.list(folder) for each in page]

    async def contents(self, *folders: str) -> dict[str, bytes]:
        found = {}
        for folder in folders:
            for key in await self.keys(folder):
                there = await MemoryStore.get(self, key)
                assert there is not None
                found[key] = there.body
        return found


def identity(number: int, *, agent: str = "agent-a", boot: str = "boot-1") -> BatchIdentity:
    return BatchIdentity(agent, boot, 10 * number, 10 * number + 9)


class NothingQueued:
    async def put(self, manifests: Sequence[IdentityManifest]) -> None:
        pass


@dataclass(kw_only=True)
class Authority:
    """A store in which batches are accepted as gateways do, and are reconciled."""

    clock: MovedClock = field(default_factory=MovedClock)
    store: CountedStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = CountedStore(self.clock)

    async def accept(self, *numbers: int, agent: str = "agent-a", indexed: bool = True) -> list[IdentityManifest]:
        """Accept batches, with their derived indexes or without."""
        acceptor = Acceptor(
            store=self.store,
            clock=self.clock,
            ids=RandomIds(),
            random=Random(1),
            collector_id="gateway-1",
        )
        effects = AfterAcceptance(store=self.store, queue=NothingQueued())
        accepted = []
        for number in numbers:
            answer = await acceptor.accept(submitted(f"{agent} {number}".encode(), identity(number, agent=agent)))
            accepted.append(answer.manifest)  # type: ignore[union-attr]
        if indexed:
            await effects.finish(accepted)
        return accepted

    def reconciler(
        self,
        *,
        store: Store | None = None,
        landings: MissingLandings | None = None,
        is_dry_run: bool = False,
        verify: VerifyMode = "hash",
        name: str = "reconciler-1",
        events: AcceptedEvents | None = None,
        seed: int = 1,
        clock: MovedClock | None = None,
    ) -> Reconciler:
        return reconciler_of(
            store or self.store,
            clock or self.clock,
            landings=landings,
            is_dry_run=is_dry_run,
            settings=ReconcileSettings(verify=verify),
            name=name,
            events=events,
            seed=seed,
        )


def reconciler_of(
    store: Store,
    clock: MovedClock,
    *,
    landings: MissingLandings | None,
    is_dry_run: bool,
    settings: ReconcileSettings,
    name: str,
    events: AcceptedEvents | None,
    seed: int,
) -> Reconciler:
    """A reconciler as the command wires it."""
    repairs = OpenRepairs(store)
    records = ReconcilerRecords(store=store, clock=clock, ids=RandomIds(), random=Random(seed), reconciler_id=name)

    def batches() -> BatchReconciler:
        return BatchReconciler(
            store=store,
            clock=clock,
            ids=RandomIds(),
            random=Random(seed),
            reconciler_id=name,
            blobs=BlobCheck(store, settings.verify),
            hours=HourIndexes(store),
            repairs=repairs,
            is_dry_run=is_dry_run,
        )

    return Reconciler(
        steady=SteadyScan(batches=batches(), landings=landings, settings=settings),
        cold=ColdScanner(batches=batches(), landings=landings, records=records, settings=settings),
        repairs=repairs,
        records=records,
        settings=settings,
        clock=clock,
        events=events,
        is_dry_run=is_dry_run,
    )


@dataclass
class Tables:
    known: Mapping[FrameKind, LandingTable]

    async def tables(self) -> Mapping[FrameKind, LandingTable]:
        return self.known


@dataclass(kw_only=True)
class LandingQueueOf:
    """The landing queue of an authority, with the state of its pipelines."""

    authority: Authority
    state: State
    ingestor: Ingestor
    letters: DeadLetters
    put: list[str] = field(default_factory=list)

    def landings(
        self, *, is_dry_run: bool = False, uuid: str | None = TABLE, pending: PendingBatches | None = None
    ) -> MissingLandings:
        return MissingLandings(
            store=self.authority.store,
            landed=StateRanges(self.state),
            letters=self.letters,
            tables=Tables({FrameKind.SAMPLES: LandingTable("metrics.samples", uuid)}),
            pending=pending or self.pending(),
            queue=self.queue,
            unit_of=lambda key: f"s3://lake/{key}",
            clock=self.authority.clock,
            grace_seconds=60.0,
            is_dry_run=is_dry_run,
        )

    def pending(self) -> QueuedBatches:
        deps = BufferDeps(store=self.authority.store, clock=SystemClock(), ids=RandomIds(), random=Random(1))
        return QueuedBatches(QUEUE, deps)

    @property
    def queue(self) -> "_NotedQueue":
        return _NotedQueue(BufferedLandingQueue(self.ingestor), self.put)


@dataclass
class _NotedQueue:
    queue: BufferedLandingQueue
    noted: list[str]

    async def put(self, manifests: Sequence[IdentityManifest]) -> None:
        self.noted += [each.key for each in manifests]
        await self.queue.put(manifests)


@asynccontextmanager
async def landing_queue(authority: Authority, folder: Path) -> AsyncIterator[LandingQueueOf]:
    config = IngestorConfig(object_store_config=PLACE, manifest_path=QUEUE, data_path_prefix="landing-queue/data")
    async with Ingestor(config, store=authority.store) as ingestor:
        with open_state(f"sqlite:///{folder}/state.db", SystemClock(), RandomIds()) as state:
            letters = DeadLetters(MemoryStore(clock=SystemClock()))
            yield LandingQueueOf(authority=authority, state=state, ingestor=ingestor, letters=letters)
