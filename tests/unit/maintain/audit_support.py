"""An authority with accepted batches and everything that follows from them, to take something away from."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from lakehead.accept.discarded_batches import DiscardedBatches, DiscardedLookup
from lakehead.clock import SystemClock
from lakehead.consume.accepted_units import accepted_unit
from lakehead.ids import RandomIds
from lakehead.maintain.acceptance_audit import AcceptanceAudit, AuditParts, AuditSettings
from lakehead.maintain.acceptance_audit_landed import LandedCheck
from lakehead.maintain.acceptance_audit_report import AuditReport, FindingKind
from lakehead.maintain.landed_batches import LandedBatches, StateRanges
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import ListedObject, Object, ObjectMeta, Store
from lakehead.storage.read_only_store import ReadOnlyStore
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import OverlapManifest, OverlappedBatch, QuarantineManifest
from lakehead.wire.frame import frame_sha256
from lakehead.wire.index_records import AcceptedByBlob, AcceptedByTime, QuarantineByBlob, RawBlobByTime
from lakehead.wire.key_parts import boot_part
from lakehead.wire.maintenance_records import RetiredBatch
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.utc_hours import HOUR_NS, UtcHour
from tests.support.state_tools import FIRST, landing, numbers
from tests.unit.accept.support import FixedClock

URL = "s3://bucket/prod"
TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"
NOW = FixedClock().now_ns()
EARLIER = NOW - 5 * HOUR_NS
BOOT = ("agent-a", "boot-1")


def accepted_manifest(
    identity: BatchIdentity, sha256: str, size: int, *, at: int, kind: str = "samples"
) -> IdentityManifest:
    """The manifest of a batch whose frame has this hash and size."""
    return IdentityManifest(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_sha256=sha256,
        frame_bytes=size,
        raw_blob_key=keys.raw_blob(sha256),
        accepted_at_unix_ns=at,
        collector_id="gateway-1",
        wire_version=1,
        frame_version=1,
        kind=kind,
    )


@dataclass
class Authority:
    """What a gateway has stored, object by object."""

    store: Store = field(default_factory=lambda: MemoryStore(clock=SystemClock(), page_size=7))

    async def accept(
        self, identity: BatchIdentity, *, at: int = EARLIER, kind: str = "samples", body: bytes = b""
    ) -> IdentityManifest:
        """Store a batch with all of its index entries."""
        body = body or f"frame of {identity}".encode()
        sha256 = frame_sha256(body)
        manifest = accepted_manifest(identity, sha256, len(body), at=at, kind=kind)
        entry = RawBlobByTime.of(identity, sha256, len(body))
        await self.store.put(manifest.raw_blob_key, body)
        await self.store.put(entry.key_in(manifest.hour), entry.encode())
        await self.store.put(manifest.key, manifest.encode())
        for index in (AcceptedByTime.of(manifest), AcceptedByBlob.of(manifest)):
            await self.store.put(index.key, index.encode())
        return manifest

    async def accept_many(self, count: int, *, size: int = 10, agent: str = BOOT[0]) -> list[IdentityManifest]:
        """Accept batches of one boot without gaps."""
        return [
            await self.accept(BatchIdentity(agent, BOOT[1], first, first + size - 1))
            for first in range(0, count * size, size)
        ]

    async def void(self, identity: BatchIdentity) -> None:
        record = IdentityVoid(
            agent_id=identity.agent_id,
            boot_id=identity.boot_id,
            seq_start=identity.seq_start,
            seq_end=identity.seq_end,
            frame_sha256="ab" * 32,
            voided_at_unix_ns=EARLIER,
            voided_by="gc",
        )
        await self.store.put(record.key, record.encode())

    async def conflict(self, accepted: IdentityManifest, body: bytes = b"other") -> QuarantineManifest:
        """Put a frame in quarantine that came under the identity of an accepted batch."""
        sha256 = frame_sha256(body)
        manifest = QuarantineManifest.of(accepted, sha256, observed_at_unix_ns=EARLIER, collector_id="gateway-2")
        await self.store.put(keys.raw_blob(sha256), body)
        await self._quarantined(manifest)
        return manifest

    async def overlap(self, loser: IdentityManifest, winner: IdentityManifest) -> OverlapManifest:
        """Put an accepted batch in quarantine of which another has landed some records."""
        common = (max(loser.seq_start, winner.seq_start), min(loser.seq_end, winner.seq_end))
        other = OverlappedBatch(accepted_manifest_key=winner.key, ranges=(common,))
        manifest = OverlapManifest.of(
            loser.identity,
            loser.frame_sha256,
            [other],
            table=TABLE,
            observed_at_unix_ns=EARLIER,
            observed_by="pipeline",
        )
        await self._quarantined(manifest)
        return manifest

    async def retire(self, manifest: IdentityManifest) -> None:
        """Delete a frame after its time."""
        record = RetiredBatch.of(manifest.identity, manifest.frame_sha256, at_unix_ns=NOW, by="gc")
        await self.store.put(record.key, record.encode())
        await self.store.delete(manifest.raw_blob_key)
        for hour in (manifest.hour, UtcHour(manifest.hour.number - 1)):
            await self.store.delete(keys.raw_blob_by_time(hour, manifest.frame_sha256))

    async def discard(self, manifest: IdentityManifest) -> None:
        records = DiscardedBatches(
            store=self.store, clock=FixedClock(), ids=RandomIds(), random=Random(1), by="operator"
        )
        await records.discard(TABLE, manifest.identity, reason="no date")

    async def _quarantined(self, manifest: QuarantineManifest | OverlapManifest) -> None:
        reference = QuarantineByBlob.of(manifest)
        await self.store.put(manifest.key, manifest.encode())
        await self.store.put(reference.key, reference.encode())

    async def audit(self, parts: AuditParts | None = None, **settings: object) -> AuditReport:
        """Audit it. Nothing can be written meanwhile."""
        audit = AcceptanceAudit(
            ReadOnlyStore(self.store),
            FixedClock(),
            AuditSettings(**settings),  # type: ignore[arg-type] # by name
            parts or AuditParts(),
        )
        return await audit.run()


@contextmanager
def landed(folder: Path, store: Store, *spans: tuple[int, int]) -> Iterator[tuple[State, LandedCheck]]:
    """A state in which these sequence numbers of the boot have landed, as samples."""
    with open_state(f"sqlite:///{folder}/state.db", SystemClock(), RandomIds()) as state:
        stream = numbers(boot_part(*BOOT), *spans)
        state.landings.settle(TABLE, None, FIRST, [landing(FIRST, numbered=stream if spans else ())])
        batches = LandedBatches(StateRanges(state), {FrameKind.SAMPLES: TABLE})
        yield state, LandedCheck(batches, state, DiscardedLookup(store), lambda identity: accepted_unit(identity, URL))


def found(report: AuditReport) -> dict[FindingKind, list[str]]:
    """What was found, by kind: keys, or agents and numbers."""
    kinds = sorted({each.kind for each in report.findings})
    return {kind: [each.what for each in report.findings if each.kind is kind] for kind in kinds}


class CountingStore(MemoryStore):
    """Notes what is asked of it."""

    def __init__(self, page_size: int = 1000) -> None:
        super().__init__(clock=SystemClock(), page_size=page_size)
        self.asked: list[tuple[str, str]] = []

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        self.asked.append(("get", key))
        return await super().get(key, start=start, end=end)

    async def head(self, key: str) -> ObjectMeta | None:
        self.asked.append(("head", key))
        return await super().head(key)

    def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        self.asked.append(("list", folder))
        return super().list(folder, start_after=start_after)

    def times(self, what: str, folder: str) -> int:
        """How often something was asked for below a folder."""
        return sum(kind == what and f"{key}/".startswith(f"{folder}/") for kind, key in self.asked)
