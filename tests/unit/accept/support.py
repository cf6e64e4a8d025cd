"""An acceptor over a store whose next writes can be told what to do."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from random import Random

from lakehead.accept.acceptance import Acceptor, Submission
from lakehead.clock import SystemClock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import RandomIds
from lakehead.retry import Backoff
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Created, Exists, Object, Replaced, Stale, Version
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.audit_records import AuditEntry
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.record_schemas import FrameKind

IDENTITY = BatchIdentity("agent-a", "boot-1", 10, 20)
NO_PAUSES = Backoff(attempts=3, first_seconds=0)

NOT_APPLIED, APPLIED, DOWN, GONE = "in doubt, not applied", "in doubt, applied", "unavailable", "exists, then gone"
TOLD_STALE = "applied, and told stale"


class ScriptedStore(MemoryStore):
    """Notes every write, and does to the next writes below a prefix what the test has said."""

    def __init__(self, *, page_size: int = 1000) -> None:
        super().__init__(clock=SystemClock(), page_size=page_size)
        self.created: list[str] = []
        self.script: dict[str, list[str]] = {}
        self.is_down_for_reads = False
        self.replaced: list[str] = []
        self.meanwhile: dict[str, list[Callable[[], Awaitable[object]]]] = {}
        """What others do below a prefix right before each of the next writes."""

    def next(self, prefix: str, *what: str) -> None:
        self.script[prefix] = list(what)

    async def create(self, key: str, body: bytes) -> Created | Exists:
        self.created.append(key)
        await self._meanwhile(key)
        match self._next(key):
            case "in doubt, not applied":
                raise OutcomeUnknown(f"{key}: no answer")
            case "in doubt, applied":
                await super().create(key, body)
                raise OutcomeUnknown(f"{key}: no answer")
            case "unavailable":
                raise Unavailable(f"{key}: 503")
            case "exists, then gone":
                return Exists(await super().put("elsewhere", b""))
            case _:
                return await super().create(key, body)

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        self.replaced.append(key)
        await self._meanwhile(key)
        match self._next(key):
            case "in doubt, not applied":
                raise OutcomeUnknown(f"{key}: no answer")
            case "in doubt, applied":
                await super().replace(key, body, version)
                raise OutcomeUnknown(f"{key}: no answer")
            case "applied, and told stale":
                await super().replace(key, body, version)
                return Stale(None)
            case "unavailable":
                raise Unavailable(f"{key}: 503")
            case _:
                return await super().replace(key, body, version)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        if self.is_down_for_reads:
            raise Unavailable(f"{key}: 503")
        return await super().get(key, start=start, end=end)

    def writes(self, prefix: str) -> int:
        return sum(key.startswith(f"{prefix}/") for key in self.created)

    async def keys(self, folder: str) -> list[str]:
        return [each.key async for page in self.list(folder) for each in page]

    async def _meanwhile(self, key: str) -> None:
        for prefix, others in self.meanwhile.items():
            if key.startswith(f"{prefix}/") and others:
                await others.pop(0)()

    def _next(self, key: str) -> str | None:
        for prefix, what in self.script.items():
            if key.startswith(f"{prefix}/") and what:
                return what.pop(0)
        return None


@dataclass
class FixedClock(SystemClock):
    """Time that passes only when a test says so."""

    seconds: float = 1000.0

    def now_ns(self) -> int:
        return 1_760_000_000_000_000_000 + int(self.seconds * 10**9)

    def monotonic(self) -> float:
        return self.seconds


async def audit_trail(store: ScriptedStore) -> list[AuditEntry]:
    """All entries of the audit trail, the oldest first."""
    found = []
    for key in await store.keys("audit/v1"):
        there = await MemoryStore.get(store, key)
        assert there is not None
        found.append(AuditEntry.decode(there.body, key))
    return found


def acceptor(store: ScriptedStore, *, name: str = "gateway-1") -> Acceptor:
    return Acceptor(
        store=store, clock=SystemClock(), ids=RandomIds(), random=Random(1), collector_id=name, backoff=NO_PAUSES
    )


def submitted(content: bytes = b"records", identity: BatchIdentity = IDENTITY) -> Submission:
    """A submission whose body is no frame: acceptance does not look into it."""
    return Submission(
        body=content,
        identity=identity,
        kind=FrameKind.SAMPLES,
        sha256=sha256(content).hexdigest(),
        wire_version=1,
        frame_version=1,
    )


def manifest_of(submission: Submission, *, collector_id: str = "gateway-2", nonce: str = "theirs") -> IdentityManifest:
    """The manifest that another gateway made."""
    identity = submission.identity
    return IdentityManifest(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_sha256=submission.sha256,
        frame_bytes=len(submission.body),
        raw_blob_key=f"raw-blobs/v1/sha256/{submission.sha256[:2]}/{submission.sha256[2:4]}/{submission.sha256}.lmbatch",
        accepted_at_unix_ns=1_760_000_000_000_000_000,
        collector_id=collector_id,
        wire_version=1,
        frame_version=1,
        nonce=nonce,
    )


def void_of(submission: Submission) -> IdentityVoid:
    identity = submission.identity
    return IdentityVoid(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_sha256=submission.sha256,
        voided_at_unix_ns=1_760_000_000_000_000_000,
        voided_by="gc-1",
    )
