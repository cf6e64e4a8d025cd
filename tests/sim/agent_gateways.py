"""The gateways of simulated agents: the real upload code over a store with faults, reached over a bad network.

The store counts each record that is accepted. Other machines use agents' identities, garbage collection makes them
void, operators decide about conflicts and put boots into quarantine, and tokens do not work for a while.
"""

import asyncio
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import msgspec
import pyarrow as pa
from starlette.requests import Request

from lakehead.accept.acceptance import Acceptor, Submission
from lakehead.accept.authority import Authority
from lakehead.accept.conflict_decisions import ConflictDecisions
from lakehead.accept.conflicts import Conflicts, NoSuchConflict
from lakehead.accept.voiding import Voiding
from lakehead.agent.gateway_answers import Answered, TryAgain
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.gateway.ingest_app import PATH
from lakehead.gateway.metrics import GatewayMetrics
from lakehead.gateway.settings import IngestSettings
from lakehead.gateway.uploads import Uploads
from lakehead.ids import SeededIds
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Created, Exists, Replaced, Stale, Store, Version
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid, decode_at_identity
from lakehead.wire.authority_records import AuthorityRecord, OpenSpool
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import ConflictResolution
from lakehead.wire.errors import TooLarge
from lakehead.wire.frame import decode_frame, encode_frame
from lakehead.wire.record_schemas import FrameKind, newest_schema
from tests.faults.store import NO_FAULTS, Faults, FaultStore
from tests.sim.accept_model import QUICK, AcceptanceStore
from tests.support.simulation import Process, Violation, World

ATTEMPT_SECONDS = 8.0
"""How long an agent waits for an answer."""

LATE_SECONDS = 120.0
"""How late a request may reach a gateway."""

AUTHORITY = AuthorityRecord(authority_id="ours", bucket="b", prefix="", mode="s3_manifest", epoch=1, version=1)
INGEST = IngestSettings(accept_seconds=5.0, requests_per_second=None)


@cache
def records(kind: FrameKind, first: int, count: int) -> pa.RecordBatch:
    """Records with numbers by which each is known again."""
    if kind is FrameKind.SAMPLES:
        rows = [
            {"time": number, "metric": "m", "labels": [], "type": "gauge", "value": float(number)}
            for number in range(first, first + count)
        ]
    else:
        empty: dict[str, list[str]] = {"attributes": [], "resource_attributes": [], "scope_attributes": []}
        rows = [{"time": number, "body": str(number), **empty} for number in range(first, first + count)]
    return pa.RecordBatch.from_pylist(rows, schema=newest_schema(kind).schema)


def numbers_in(found: pa.RecordBatch) -> list[int]:
    """The numbers of records."""
    return [int(value) for value in found.column("value" if "value" in found.schema.names else "body").to_pylist()]


@dataclass(frozen=True, slots=True)
class KnownFrame:
    """A frame, and the numbers of its records."""

    submission: Submission
    numbers: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.submission.body)


@lru_cache(maxsize=512)
def known_frame(body: bytes) -> KnownFrame:
    """Decode a frame, once for all that look at it. Raises what `decode_frame` raises."""
    frame = decode_frame(body)
    return KnownFrame(Submission.of(body, frame), tuple(numbers_in(frame.stored_records)))


@cache
def _metrics() -> GatewayMetrics:
    """Of all gateways, because nobody looks at them, and making them takes long."""
    return _NoMetrics()


class _NoMetrics(GatewayMetrics):
    def watch(self, admission: object) -> None:
        pass


class AgentStore(AcceptanceStore):
    """The object store: it counts what is accepted, and garbage collection deletes blobs of void identities."""

    def __init__(self, sim: "Gateways") -> None:
        super().__init__(clock=sim.world.clock)
        self._sim = sim

    async def create(self, key: str, body: bytes) -> Created | Exists:
        outcome = await MemoryStore.create(self, key, body)
        identity = keys.parse_accepted(key) if key.startswith(keys.ACCEPTED) and isinstance(outcome, Created) else None
        if identity is not None and isinstance(manifest := decode_at_identity(body, identity), IdentityManifest):
            frame = known_frame(self._objects[manifest.raw_blob_key].body)
            if frame.submission.sha256 != manifest.frame_sha256:
                self._sim.fail(f"{key} names a blob that is not there")
            self._sim.count(manifest, frame)
        return outcome

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        if not key.startswith((keys.AUTHORITY, keys.RESOLUTIONS)):
            raise Violation(f"{key} was to be replaced")
        return await MemoryStore.replace(self, key, body, version)

    def collect(self, frame_sha256: str) -> None:
        self._objects.pop(keys.raw_blob(frame_sha256), None)

    def may_be_dropped(self, identity: BatchIdentity, frame_sha256: str) -> bool:
        """Whether an operator has decided that an agent may drop a frame."""
        key = keys.resolution(identity, frame_sha256)
        found = self._objects.get(key)
        return found is not None and ConflictResolution.decode(found.body, key).resolution == "accept_existing"


@dataclass
class _Tokens:
    sim: "Gateways"

    def agent_of(self, token: str) -> str | None:
        return None if self.sim.knows_no_token else token


@dataclass
class _Quarantine:
    sim: "Gateways"

    def is_quarantined(self, agent_id: str, boot_id: str) -> bool:
        return (agent_id, boot_id) in self.sim.quarantined


@dataclass
class _Decoder:
    sim: "Gateways"

    async def decode(self, body: bytes) -> Submission:
        known = known_frame(body)
        if known.numbers[0] in self.sim.refused_numbers:
            raise TooLarge("the limit was lowered")
        return known.submission


def _foreign_receipt(submitted: Submission) -> Answered:
    """What the gateway of another deployment answers."""
    receipt = {
        "duplicate": False,
        "authority": "another",
        "agent_id": submitted.identity.agent_id,
        "boot_id": submitted.identity.boot_id,
        "seq_start": submitted.identity.seq_start,
        "seq_end": submitted.identity.seq_end,
        "frame_sha256": submitted.sha256,
        "accepted_at_unix_ns": 1,
    }
    return Answered(200, msgspec.json.encode(receipt))


class _NoSideEffects:
    def start(self, manifest: IdentityManifest) -> None:
        pass

    async def close(self, *, within: float) -> None:
        pass


class _NoSpools:
    async def void(self, spool: OpenSpool, identity: BatchIdentity) -> None:
        raise NotImplementedError


@dataclass
class Gateways:
    """The gateways of one seed, and what they accepted."""

    world: World
    faults: Faults
    count_of_gateways: int
    network_faults: float
    store: AgentStore = field(init=False)
    authority_id: str = AUTHORITY.authority_id
    running: list[tuple[Process, Uploads]] = field(default_factory=list)
    accepted: dict[int, BatchIdentity] = field(default_factory=dict)
    """Under which identity each record was accepted."""

    knows_no_token: bool = False
    refused_numbers: set[int] = field(default_factory=set)
    """Frames that begin with one of these records are answered 413."""

    quarantined: set[tuple[str, str]] = field(default_factory=set)
    is_calm: bool = False
    _networks: list[FaultStore] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = AgentStore(self)

    async def set_up(self) -> None:
        """Make the authority, and start the gateways."""
        await self.store.create(AUTHORITY.key, AUTHORITY.encode())
        for number in range(self.count_of_gateways):
            self.running.append(self._start(number))

    def restart(self, number: int) -> None:
        """Kill a gateway, and start it again."""
        self.running[number][0].crash()
        self.running[number] = self._start(number)

    def become_calm(self) -> None:
        """No more faults, but for writes that are to be applied later."""
        self.is_calm = True
        self.network_faults, self.knows_no_token = 0.0, False
        self.refused_numbers.clear()
        for store in self._networks:
            store.change_faults(NO_FAULTS)

    def count(self, manifest: IdentityManifest, frame: KnownFrame) -> None:
        """Note what was accepted: each record once."""
        self.world.note(f"accepted {manifest.boot_id[:4]} {manifest.seq_start}: {frame.numbers}")
        for number in frame.numbers:
            if (before := self.accepted.get(number)) is not None:
                self.fail(f"the record {number} was accepted under {before} and {manifest.identity}")
            if number >= 0:
                self.accepted[number] = manifest.identity

    def fail(self, why: str) -> None:
        """Fail the simulation, whoever waits for the task in which this was seen."""
        self.world.failure = self.world.failure or Violation(why)
        self.world.changed()
        raise self.world.failure

    # --- what agents see

    async def post(self, number: int, body: bytes, token: str, *, knows_authority: bool) -> Answered | TryAgain:
        """Send a frame to a gateway over the network. One that knows its authority may meet another."""
        world, draw = self.world, self.world.random.random
        await world.clock.sleep(world.random.expovariate(200))
        if draw() < self.network_faults:
            match world.random.randrange(7):
                case 0:
                    return TryAgain("refused", in_doubt=False)
                case 1:
                    await world.clock.sleep(ATTEMPT_SECONDS)
                    return TryAgain("the request was lost", in_doubt=True)
                case 2:
                    world.loop.create_task(self._deliver_late(number, body, token), context=world.context)
                    await world.clock.sleep(ATTEMPT_SECONDS)
                    return TryAgain("no answer", in_doubt=True)
                case 3:
                    with suppress(TimeoutError):
                        await self._deliver(number, body, token)
                    return TryAgain("the answer was lost", in_doubt=True)
                case 4:  # something between here and there answers
                    status = world.random.choice([200, 404, 409, 410, 423, 502, 503])
                    return Answered(status, b"<html>", world.random.choice(["", "3"]))
                case 5 if knows_authority:
                    return _foreign_receipt(known_frame(body).submission)
                case _:
                    await world.clock.sleep(world.random.expovariate(0.5))
        try:
            return await self._deliver(number, body, token)
        except TimeoutError:
            return TryAgain("no answer in time", in_doubt=True)

    async def _deliver_late(self, number: int, body: bytes, token: str) -> None:
        await self.world.clock.sleep(self.world.random.uniform(0, LATE_SECONDS))
        with suppress(TimeoutError):
            await self._deliver(number, body, token)

    async def _deliver(self, number: int, body: bytes, token: str) -> Answered:
        """Let the gateway answer, in its own process. Raises `TimeoutError`."""
        process, uploads = self.running[number]
        answer: asyncio.Future[Answered] = self.world.loop.create_future()
        process.spawn(self._serve(uploads, body, token, answer))
        async with asyncio.timeout(ATTEMPT_SECONDS):
            return await answer

    async def _serve(self, uploads: Uploads, body: bytes, token: str, answer: "asyncio.Future[Answered]") -> None:
        headers = [(b"authorization", f"Bearer {token}".encode()), (b"content-length", str(len(body)).encode())]

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body}

        response = await uploads.answer(
            Request({"type": "http", "method": "POST", "path": PATH, "headers": headers}, receive)
        )
        self.world.note(f"{response.status_code} for {known_frame(body).numbers}")
        if not answer.done():
            answer.set_result(
                Answered(response.status_code, bytes(response.body), response.headers.get("Retry-After", ""))
            )

    # --- what others do

    async def use_identity(self, identity: BatchIdentity, kind: FrameKind) -> None:
        """What a cloned machine does: it sends other records under an agent's identity."""
        count = identity.record_count
        body = encode_frame(identity, kind, records(kind, -1_000, count), compress=False)
        with suppress(Unavailable, OutcomeUnknown):
            await self._acceptor(self._connect()).accept(known_frame(body).submission)

    async def collect(self, submitted: Submission) -> None:
        """Garbage collection makes an identity void, unless it is accepted, and deletes its blob then."""
        store, identity = self._connect(), submitted.identity
        voiding = Voiding(acceptor=self._acceptor(store), authority=self._authority(store), spools=_NoSpools())
        record = IdentityVoid(
            agent_id=identity.agent_id,
            boot_id=identity.boot_id,
            seq_start=identity.seq_start,
            seq_end=identity.seq_end,
            frame_sha256=submitted.sha256,
            voided_at_unix_ns=self.world.clock.now_ns(),
            voided_by="gc",
        )
        with suppress(Unavailable, OutcomeUnknown):
            if isinstance(await voiding.void(record), IdentityVoid):
                self.world.note(f"void {identity.boot_id[:4]} {identity.seq_start}")
                self.store.collect(submitted.sha256)

    async def accept_existing(self, identity: BatchIdentity, frame_sha256: str) -> None:
        """An operator decides that an agent may drop a frame, as soon as the conflict is recorded."""
        conflicts = self._conflicts(self._connect())
        while True:
            try:
                decisions = ConflictDecisions(conflicts=conflicts, random=self.world.random, backoff=QUICK)
                await decisions.accept_existing(identity, frame_sha256, by="operator")
                return
            except (Unavailable, OutcomeUnknown, NoSuchConflict):
                await self.world.clock.sleep(5)

    def conflicts_of(self, frames: Iterable[Submission]) -> list[Submission]:
        """Those frames under whose identity another one was accepted."""
        return [
            each
            for each in frames
            if isinstance(found := self.store.at(each.identity), IdentityManifest) and found.frame_sha256 != each.sha256
        ]

    # --- how they are made

    def _start(self, number: int) -> tuple[Process, Uploads]:
        store = self._connect()
        uploads = Uploads(
            tokens=_Tokens(self),
            quarantine=_Quarantine(self),
            acceptor=self._acceptor(store),
            conflicts=self._conflicts(store),
            side_effects=_NoSideEffects(),
            authority_id=self.authority_id,
            metrics=_metrics(),
            clock=self.world.clock,
            settings=INGEST,
        )
        uploads._decoder = _Decoder(self)  # type: ignore[assignment]  # the real one has threads
        return self.world.process(f"gateway {number}"), uploads

    def _connect(self) -> Store:
        world, faults = self.world, NO_FAULTS if self.is_calm else self.faults
        store = FaultStore(
            self.store, faults, random=world.random, clock=world.clock, ids=world.ids, note=world.note, backoff=QUICK
        )
        self._networks.append(store)
        return store

    def _acceptor(self, store: Store) -> Acceptor:
        world = self.world
        return Acceptor(
            store=store,
            clock=world.clock,
            ids=SeededIds(world.random),
            random=world.random,
            collector_id="gateway",
            backoff=QUICK,
        )

    def _conflicts(self, store: Store) -> Conflicts:
        return Conflicts(store=store, clock=self.world.clock, ids=self.world.ids, collector_id="gateway")

    def _authority(self, store: Store) -> Authority:
        world = self.world
        return Authority(
            store=store, clock=world.clock, ids=world.ids, random=world.random, bucket="b", prefix="", backoff=QUICK
        )
