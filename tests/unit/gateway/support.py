"""A gateway over a store in memory, and tokens, boots and conflicts that a test sets as it likes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import httpx
from fastapi import FastAPI

from lakehead.accept.acceptance import Conflict
from lakehead.accept.accepted_overlaps import AcceptedOverlaps
from lakehead.accept.after_acceptance import AfterAcceptance
from lakehead.accept.conflicts import Conflicts
from lakehead.accept.repairs import Repairs
from lakehead.accept.spool import Spool
from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.gateway.error_codes import ErrorCode
from lakehead.gateway.ingest_app import PATH, ingest_app
from lakehead.gateway.metrics import GatewayMetrics
from lakehead.gateway.ports import ConflictKind
from lakehead.gateway.private_app import PrivateListener, private_app
from lakehead.gateway.readiness import Readiness
from lakehead.gateway.settings import IngestSettings, ReadinessSettings
from lakehead.gateway.uploads import Uploads
from lakehead.ids import RandomIds
from lakehead.storage.port import Created, Exists, ListedObject, Object, ObjectMeta
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.authority_records import Role
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import ConflictResolution, QuarantineManifest
from lakehead.wire.frame import encode_frame
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.stored_record import StoredRecord
from tests.unit.accept.support import ScriptedStore, acceptor
from tests.unit.wire.frames import IDENTITY, samples

AGENT, BOOT = IDENTITY.agent_id, IDENTITY.boot_id
TOKEN = "token-of-agent-a"
ROLES: dict[str, Role] = {"view-token": "viewer", "operate-token": "operator", "admin-token": "admin"}
AUTH = {"Authorization": f"Bearer {TOKEN}"}
FRAME = encode_frame(IDENTITY, FrameKind.SAMPLES, samples())
OTHER_FRAME = encode_frame(IDENTITY, FrameKind.SAMPLES, samples(), compress=False)
"""The same records under the same identity in other bytes: a conflict."""


def as_role(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {next(token for token, has in ROLES.items() if has == role)}"}


class WatchedStore(ScriptedStore):
    """Notes every call, and may hold back the creation of identity manifests."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.is_asked = asyncio.Event()
        """Set when somebody creates an identity manifest."""

    async def create(self, key: str, body: bytes) -> Created | Exists:
        self.calls.append(f"create {key}")
        if key.startswith("accepted/"):
            self.is_asked.set()
            await self.is_open.wait()
        return await super().create(key, body)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        self.calls.append(f"get {key}")
        return await super().get(key, start=start, end=end)

    async def head(self, key: str) -> ObjectMeta | None:
        self.calls.append(f"head {key}")
        if self.is_down_for_reads:
            raise Unavailable(f"{key}: 503")
        return await super().head(key)

    def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        self.calls.append(f"list {folder}")
        return super().list(folder, start_after=start_after)


@dataclass
class Tokens:
    agents: dict[str, str] = field(default_factory=lambda: {TOKEN: AGENT, "token-of-agent-b": "agent-b"})
    is_stale: bool = False

    def agent_of(self, token: str) -> str | None:
        if self.is_stale:
            raise Unavailable("The copy of the tokens is too old.")
        return self.agents.get(token)

    def role_of(self, token: str) -> Role | None:
        if self.is_stale:
            raise Unavailable("The copy of the tokens is too old.")
        return ROLES.get(token)


@dataclass
class Boots:
    quarantined: set[tuple[str, str]] = field(default_factory=set)
    is_stale: bool = False

    def is_quarantined(self, agent_id: str, boot_id: str) -> bool:
        if self.is_stale:
            raise Unavailable("The copy of the quarantine is too old.")
        return (agent_id, boot_id) in self.quarantined


class NoSuchConflict(Misconfigured):
    pass


@dataclass(frozen=True)
class Listed:
    key: str
    kind: ConflictKind
    identity: BatchIdentity
    submitted_sha256: str
    manifest: QuarantineManifest | None
    resolution: ConflictResolution | None = None
    problem: str = ""


@dataclass(frozen=True)
class Page:
    conflicts: tuple[Listed, ...]
    next_after: str | None


@dataclass
class ConflictBook:
    """Records conflicts in the store as gateways do, and keeps decisions in memory."""

    recorder: Conflicts
    known: list[Listed] = field(default_factory=list)
    decided: dict[str, ConflictResolution] = field(default_factory=dict)
    asked: list[tuple[str, BatchIdentity, str, str, str]] = field(default_factory=list)
    listed: list[tuple[str | None, str | None, str, int]] = field(default_factory=list)
    error: LakeheadError | None = None

    async def record(self, conflict: Conflict) -> None:
        await self.recorder.record(conflict)

    async def resolution(self, identity: BatchIdentity, submitted_sha256: str) -> ConflictResolution | None:
        del identity
        self._fail()
        return self.decided.get(submitted_sha256)

    async def list(
        self, *, agent_id: str | None = None, kind: ConflictKind | None = None, after: str = "", limit: int = 100
    ) -> Page:
        self._fail()
        self.listed.append((agent_id, kind, after, limit))
        found = [each for each in self.known if agent_id in (None, each.identity.agent_id) and each.key > after]
        return Page(tuple(found[:limit]), found[limit - 1].key if len(found) > limit else None)

    async def show(self, identity: BatchIdentity, submitted_sha256: str) -> Listed:
        self._fail()
        for each in self.known:
            if (each.identity, each.submitted_sha256) == (identity, submitted_sha256):
                return each
        raise NoSuchConflict("There is no such conflict.")

    async def accept_existing(
        self, identity: BatchIdentity, submitted_sha256: str, *, by: str, note: str = ""
    ) -> StoredRecord:
        return await self._decide("accept_existing", identity, submitted_sha256, by, note)

    async def quarantine_identity(
        self, identity: BatchIdentity, submitted_sha256: str, *, by: str, note: str = ""
    ) -> StoredRecord:
        return await self._decide("quarantine_identity", identity, submitted_sha256, by, note)

    async def release(self, identity: BatchIdentity, submitted_sha256: str, *, by: str, note: str = "") -> StoredRecord:
        return await self._decide("release", identity, submitted_sha256, by, note)

    async def _decide(self, what: str, identity: BatchIdentity, sha256: str, by: str, note: str) -> StoredRecord:
        manifest = (await self.show(identity, sha256)).manifest
        assert manifest is not None
        self.asked.append((what, identity, sha256, by, note))
        return manifest

    def _fail(self) -> None:
        if self.error:
            raise self.error


class LandingQueue:
    """Remembers what was queued."""

    def __init__(self) -> None:
        self.queued: list[IdentityManifest] = []

    async def put(self, manifests: Sequence[IdentityManifest]) -> None:
        self.queued += manifests


class ManualClock(SystemClock):
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def monotonic(self) -> float:
        return self.seconds


class Gateway:
    """Both applications, and everything behind them."""

    def __init__(self, settings: IngestSettings | None = None, spool: Spool | None = None) -> None:
        self.clock = ManualClock()
        self.store = WatchedStore()
        self.tokens, self.boots, self.queue = Tokens(), Boots(), LandingQueue()
        self.conflicts = ConflictBook(
            Conflicts(store=self.store, clock=self.clock, ids=RandomIds(), collector_id="gateway-1")
        )
        self.metrics = GatewayMetrics()
        self.after = AfterAcceptance(store=self.store, queue=self.queue)
        self.metrics.watch_side_effects(self.after.counts)
        self.uploads = Uploads(
            tokens=self.tokens,
            quarantine=self.boots,
            acceptor=spool or acceptor(self.store),
            conflicts=self.conflicts,
            side_effects=self.after,
            authority_id="authority-1",
            metrics=self.metrics,
            clock=self.clock,
            settings=settings or IngestSettings(),
        )
        self.readiness = Readiness(
            store=self.store, ids=RandomIds(), clock=self.clock, settings=ReadinessSettings(check_seconds=60.0)
        )
        self.ingest = ingest_app(self.uploads)
        self._private: Callable[[], FastAPI] = lambda: private_app(
            PrivateListener(
                tokens=self.tokens,
                conflicts=self.conflicts,
                decisions=self.conflicts,
                overlaps=AcceptedOverlaps(store=self.store),
                repairs=Repairs(self.store),
                readiness=self.readiness,
                metrics=self.metrics,
                refusals={NoSuchConflict: ErrorCode.NO_SUCH_CONFLICT},
                spool=spool,
                ingest=self.ingest,
            )
        )

    @cached_property
    def private(self) -> FastAPI:
        """The private application, made when it is first asked for: that takes longer than most tests."""
        return self._private()

    async def post(self, body: bytes = FRAME, **headers: str) -> httpx.Response:
        """Upload with the agent's token, unless other headers say otherwise; `_` in a name stands for `-`."""
        sent = AUTH | {name.replace("_", "-"): value for name, value in headers.items()}
        async with client(self.ingest) as http:
            return await http.post(PATH, content=body, headers={name: value for name, value in sent.items() if value})

    async def get(self, path: str, role: str | None = "viewer") -> httpx.Response:
        async with client(self.private) as http:
            return await http.get(path, headers=as_role(role) if role else {})

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"lakehead_gateway_{name}", labels) or 0.0

    async def close(self) -> None:
        await self.after.close(within=60)
        self.uploads.close()


def client(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")
