"""How one batch becomes accepted, once, whichever gateways try: the raw blob, then the identity manifest.

The identity manifest decides. Until it exists nothing has been accepted, and a blob that was left behind is an orphan
for garbage collection; once it exists its hash is the truth, whatever a gateway holds.
"""

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field

from lakehead.accept.record_file import read_record
from lakehead.clock import Clock
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import Ids, Random
from lakehead.retry import Backoff
from lakehead.storage.port import Created, Replaced, Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid, decode_at_identity
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import InvalidRecord, Unreadable
from lakehead.wire.frame import Frame, frame_sha256
from lakehead.wire.index_records import RawBlobByTime
from lakehead.wire.maintenance_records import BatchRepair
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.utc_hours import UtcHour

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A frame that was decoded and found valid, as it was sent."""

    body: bytes = field(repr=False)
    identity: BatchIdentity
    kind: FrameKind
    sha256: str
    wire_version: int
    frame_version: int
    spooled_at_unix_ns: int = 0
    """When a gateway's spool held it; 0 if it comes straight from an agent."""

    @classmethod
    def of(cls, body: bytes, frame: Frame) -> "Submission":
        """The submission of a frame, with the bytes that it was decoded from."""
        return cls(
            body=body,
            identity=frame.identity,
            kind=frame.header.kind,
            sha256=frame_sha256(body),
            wire_version=frame.header.wire_version,
            frame_version=frame.header.frame_version,
        )


@dataclass(frozen=True, slots=True)
class Accepted:
    """This call has accepted the batch: its side effects are this caller's to start, and nobody else's."""

    manifest: IdentityManifest


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The same frame was accepted before. There is nothing left to do."""

    manifest: IdentityManifest


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another frame was accepted under the identity. What was submitted is not accepted, and must not be lost."""

    manifest: IdentityManifest
    submission: Submission


@dataclass(frozen=True, slots=True)
class Void:
    """Nothing was accepted under the identity, and nothing ever will be: send the records under another."""

    record: IdentityVoid


Answer = Accepted | Duplicate | Conflict | Void


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptor:
    """Accepts batches in one store. Every gateway of a deployment has one, for the same bucket and prefix."""

    store: Store
    clock: Clock
    ids: Ids
    random: Random
    collector_id: str
    """The gateway's name, for people who ask who accepted a batch."""

    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=4, first_seconds=0.05, cap_seconds=1.0))
    """How often the identity manifest is created again after an attempt whose outcome nobody could tell."""

    async def accept(self, submission: Submission) -> Answer:
        """Accept a batch, unless its identity is taken.

        Raises `Unavailable` or `OutcomeUnknown` if it is not known to be accepted: then it may be, and submitting the
        same bytes again is safe. An object at the identity's key that cannot be read is `Unavailable` too: what it
        says may still be found out. Raises `Misconfigured` if this gateway can accept nothing.
        """
        await self.store_blob(submission)
        manifest = self.manifest_of(submission)
        match await self._create(manifest):
            case IdentityVoid() as void:
                return Void(void)
            case IdentityManifest() as found if found.nonce == manifest.nonce:
                return Accepted(found)
            case IdentityManifest() as found if found.frame_sha256 == submission.sha256:
                await self.heal(submission)
                return Duplicate(found)
            case IdentityManifest() as found:
                return Conflict(found, submission)

    async def store_blob(self, submission: Submission) -> None:
        """Store the blob and its entry in the index of this hour, before anything can be accepted.

        So whoever lists the hours up to one in which nothing is under way any more has seen every blob that can still
        be accepted. The entry is written for a blob that exists, too: this attempt is of this hour.
        """
        hour = UtcHour.of(self.clock.now_ns())
        entry = RawBlobByTime.of(submission.identity, submission.sha256, len(submission.body))
        # Both have the same content whoever creates them, so it does not matter who does. Both have ended when this
        # ends, also if one fails: whoever bounds the memory of submissions can rely on it.
        failures = await asyncio.gather(
            _failure(self._ensure(entry.raw_blob_key, submission.body)),
            _failure(self._ensure(entry.key_in(hour), entry.encode())),
        )
        for failure in failures:
            if failure is not None:
                raise failure

    async def heal(self, submission: Submission) -> bool:
        """Store the frame of an accepted batch again if it is known to be missing or corrupt: these are its bytes.

        Returns whether it was stored. Never raises a `LakeheadError`: the batch is accepted whatever becomes of it, and
        the next upload of the same frame tries again. The reconciler finds that it is right, and closes the repair.
        """
        key = keys.raw_blob(submission.sha256)
        try:
            repair = await read_record(BatchRepair, keys.repair(submission.identity), self.store)
            if repair is None or repair.state != "open" or repair.frame_sha256 != submission.sha256:
                return False
            stored = await self.store.get(key, end=len(submission.body) + 1)
            if stored is None:
                is_stored = isinstance(await self.store.create(key, submission.body), Created)
            elif stored.body == submission.body and stored.meta.size == len(submission.body):
                return False
            else:
                replaced = await self.store.replace(key, submission.body, stored.meta.version)
                is_stored = isinstance(replaced, Replaced)
        except LakeheadError as error:
            LOG.warning("%s may be missing or corrupt, and could not be stored again: %s", key, error)
            return False
        if is_stored:
            LOG.info("%s was missing or corrupt, and is stored again.", key)
        return is_stored

    async def _ensure(self, key: str, body: bytes) -> None:
        """Store an object unless it is there. After a write in doubt it is enough that it is, whoever stored it."""
        try:
            await self.store.create(key, body)
        except OutcomeUnknown:
            if await self.store.head(key) is None:
                raise

    def manifest_of(self, submission: Submission) -> IdentityManifest:
        """Return the manifest that would accept a submission now. Nothing is stored."""
        identity = submission.identity
        return IdentityManifest(
            agent_id=identity.agent_id,
            boot_id=identity.boot_id,
            seq_start=identity.seq_start,
            seq_end=identity.seq_end,
            frame_sha256=submission.sha256,
            frame_bytes=len(submission.body),
            raw_blob_key=keys.raw_blob(submission.sha256),
            accepted_at_unix_ns=self.clock.now_ns(),
            collector_id=self.collector_id,
            wire_version=submission.wire_version,
            frame_version=submission.frame_version,
            nonce=self.ids.uuid(),
            kind=submission.kind.word,
            spooled_at_unix_ns=submission.spooled_at_unix_ns,
        )

    async def _create(self, manifest: IdentityManifest) -> IdentityManifest | IdentityVoid:
        """Create the manifest. Returns what stands at its key: this manifest, or what somebody else created before.

        A create whose outcome is unknown is repeated with the same bytes: if the first one is applied late, it has the
        same nonce. Only what was read from the key is believed.
        """
        try:
            body = manifest.encode_checked()  # what cannot be read back would be neither accepted nor not, for good
        except InvalidRecord as error:
            raise Misconfigured(
                f"Nothing was accepted. {error} Correct collector_id, or this machine's clock."
            ) from error
        doubt: OutcomeUnknown | None = None
        async for _ in self.backoff.each_attempt(self.clock, self.random):
            try:
                if isinstance(await self.store.create(manifest.key, body), Created):
                    return manifest
                doubt = None
            except OutcomeUnknown as error:
                doubt = error
            if (found := await self.read(manifest.identity)) is not None:
                return found
            if doubt is None:
                raise Unavailable(
                    f"{manifest.key} existed when it was to be created, and is gone now. Nothing may delete it: check "
                    "the bucket's policy. Nothing was accepted; try again later."
                )
        assert doubt is not None, "there is at least one attempt"  # noqa: S101 - for the type checker
        raise doubt

    async def read(self, identity: BatchIdentity) -> IdentityManifest | IdentityVoid | None:
        """Return what stands at an identity's key; None if nothing does. Raises `Unavailable`."""
        key = keys.accepted(identity)
        found = await self.store.get(key)
        if found is None:
            return None
        try:
            return decode_at_identity(found.body, identity)
        except Unreadable as error:
            raise Unavailable(f"Whether {key} was accepted cannot be told. {error}") from error


async def _failure(write: Awaitable[object]) -> LakeheadError | None:
    try:
        await write
    except LakeheadError as error:
        return error
    return None
