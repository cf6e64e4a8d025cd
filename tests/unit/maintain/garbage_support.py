"""An authority with blobs of every kind, a store whose clock tests turn, and garbage collection over it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from lakehead.accept.acceptance import Acceptor, Answer, Submission
from lakehead.accept.authority import Authority
from lakehead.accept.spooled_batch import IdentityInSpool
from lakehead.accept.voiding import Voiding
from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.maintain.blob_references import BlobSource, FullScan
from lakehead.maintain.blob_requests import CountedStore
from lakehead.maintain.garbage_collection import GarbageCollection
from lakehead.maintain.garbage_orphans import SpoolOutOfReach
from lakehead.maintain.garbage_report import BlobDecision, BlobOutcome, GarbageReport
from lakehead.maintain.garbage_retention import FrameUser, KeepReason, RetiringBatch
from lakehead.maintain.garbage_settings import GarbageSettings, RunOptions
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.authority_records import OpenSpool
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import decode_frame, encode_frame
from lakehead.wire.index_records import AcceptedByBlob
from lakehead.wire.maintenance_records import CompletedAudit
from lakehead.wire.record_schemas import FrameKind
from tests.unit.accept.support import NO_PAUSES, ScriptedStore
from tests.unit.wire.frames import samples

DAY = timedelta(days=1)
START_NS = 1_760_000_000_000_000_000


def batch(first: int = 10, *, agent: str = "agent-a", compress: bool = True) -> Submission:
    """A real frame; not compressed it is another one of the same identity."""
    records = samples()
    identity = BatchIdentity(agent, "boot-1", first, first + records.num_rows - 1)
    body = encode_frame(identity, FrameKind.SAMPLES, records, compress=compress)
    return Submission.of(body, decode_frame(body))


@dataclass
class TurnedClock(SystemClock):
    """A clock that tests turn."""

    days: float = 0.0

    def now_ns(self) -> int:
        return START_NS + int(self.days * 86_400 * 10**9)


class WatchedStore(ScriptedStore):
    """Notes what is deleted, and whose clock a test turns."""

    def __init__(self, clock: TurnedClock, *, page_size: int = 1000) -> None:
        super().__init__(page_size=page_size)
        self._clock = clock
        self.deleted: list[str] = []
        self.fail_deletes: Exception | None = None

    async def delete(self, key: str) -> None:
        if self.fail_deletes is not None:
            raise self.fail_deletes
        self.deleted.append(key)
        await super().delete(key)


@dataclass
class Spools:
    """Spools that hold what a test says, and answer as it says."""

    held: set[BatchIdentity] = field(default_factory=set)
    voided: list[BatchIdentity] = field(default_factory=list)
    is_out_of_reach: bool = False
    fails: Exception | None = None

    async def check(self, spool: OpenSpool) -> None:
        if self.is_out_of_reach:
            raise SpoolOutOfReach(f"The spool {spool.spool_id} does not answer.")

    async def holds(self, spool: OpenSpool, identity: BatchIdentity) -> bool:
        del spool
        return identity in self.held

    async def void(self, spool: OpenSpool, identity: BatchIdentity) -> None:
        del spool
        if self.fails is not None:
            raise self.fails
        if identity in self.held:
            raise IdentityInSpool(f"The spool has {identity}.")
        self.voided.append(identity)


@dataclass
class Landings:
    """Somebody who is done with frames since when a test says."""

    done_ns: dict[BatchIdentity, int] = field(default_factory=dict)

    async def still_needed(
        self, batches: Sequence[RetiringBatch], *, done_before_ns: int
    ) -> Mapping[BatchIdentity, KeepReason]:
        return {
            each.identity: KeepReason(
                BlobOutcome.LANDED_LATELY if each.identity in self.done_ns else BlobOutcome.NOT_LANDED, "not done"
            )
            for each in batches
            if self.done_ns.get(each.identity, done_before_ns + 1) > done_before_ns
        }


class Rig:
    """One authority. Time is that of the store; the collector's own clock is years behind."""

    def __init__(self, *, page_size: int = 1000, settings: GarbageSettings | None = None) -> None:
        self.clock = TurnedClock()
        self.store = WatchedStore(self.clock, page_size=page_size)
        self.machine = TurnedClock(days=-1_000)
        self.settings = settings or GarbageSettings()
        self.spools = Spools()
        self.users: Sequence[FrameUser] = ()
        self.tables: Sequence[str] = ()

    def authority(self, store: object = None) -> Authority:
        return Authority(
            store=store or self.store,  # type: ignore[arg-type]
            clock=self.machine,
            ids=RandomIds(),
            random=Random(1),
            bucket="s3://lake",
            prefix="",
            backoff=NO_PAUSES,
        )

    async def init(self, *, spools: int = 0) -> None:
        await self.authority().init("local_spool" if spools else "s3_manifest")
        for number in range(spools):
            await self.authority().open_spool(f"spool-{number}", collector_id=f"g-{number}", address="http://here")

    def acceptor(self, store: object = None, name: str = "gateway") -> Acceptor:
        return Acceptor(
            store=store or self.store,  # type: ignore[arg-type]
            clock=self.clock,
            ids=RandomIds(),
            random=Random(1),
            collector_id=name,
            backoff=NO_PAUSES,
        )

    async def orphan(self, submission: Submission) -> str:
        """Upload a blob, and crash before the manifest."""
        await self.acceptor().store_blob(submission)
        return keys.raw_blob(submission.sha256)

    async def accept(self, submission: Submission, *, reference: bool = True) -> Answer:
        answer = await self.acceptor().accept(submission)
        manifest = getattr(answer, "manifest", None)
        if reference and isinstance(manifest, IdentityManifest):
            entry = AcceptedByBlob.of(manifest)
            await self.store.create(entry.key, entry.encode())
        return answer

    async def audit(self) -> None:
        """What the reconciler stores when it has seen everything."""
        now = self.clock.now_ns()
        record = CompletedAudit(
            begun_at_unix_ns=now,
            ended_at_unix_ns=now,
            accepted=0,
            voids=0,
            quarantined=0,
            repaired=0,
            problems=0,
            audited_by="reconciler",
            version=1,
        )
        await self.store.put(record.key, record.encode())

    async def later(self, days: float, *, audit: bool = True) -> None:
        self.clock.days += days
        if audit:
            await self.audit()
        self.clock.days += 0.001

    def collection(self, name: str = "gc-1") -> GarbageCollection:
        store = CountedStore(self.store)
        acceptor = Acceptor(
            store=store, clock=self.machine, ids=RandomIds(), random=Random(1), collector_id=name, backoff=NO_PAUSES
        )
        return GarbageCollection(
            store=store,
            voiding=Voiding(acceptor=acceptor, authority=self.authority(store), spools=self.spools),
            spools=self.spools,
            users=self.users,
            discarding_tables=self.tables,
            name=name,
            clock=self.machine,
            ids=RandomIds(),
            random=Random(1),
            settings=self.settings,
        )

    async def collect(
        self, source: BlobSource | None = None, *, dry_run: bool = False, audit: bool = False
    ) -> tuple[GarbageReport, list[BlobDecision]]:
        decided: list[BlobDecision] = []
        options = RunOptions(by="test", is_dry_run=dry_run, makes_audit=audit, decided=decided.append)
        report = await self.collection().run(source or FullScan(), options)
        return report, decided

    async def outcome(self, source: BlobSource | None = None, **options: bool) -> BlobOutcome:
        """Run it, and return what was decided about the only blob; what a dry run decides first is the same."""
        _, foreseen = await self.collect(source, dry_run=True, **options)
        before = dict(self.store._objects)
        _, decided = await self.collect(source, **options)
        [decision] = decided
        assert [(each.key, each.outcome) for each in foreseen] == [(decision.key, decision.outcome)]
        assert (decision.key in self.store._objects) is not decision.outcome.is_deleted
        gone = before.keys() - self.store._objects.keys()
        assert gone == ({decision.key} if decision.outcome.is_deleted else set())
        return decision.outcome

    async def blobs(self) -> list[str]:
        return await self.store.keys("raw-blobs")
