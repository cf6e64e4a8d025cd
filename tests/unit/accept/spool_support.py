"""A spool on a real folder, in front of a store whose next writes can be told what to do."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from lakehead.accept.acceptance import Submission
from lakehead.accept.after_acceptance import AfterAcceptance
from lakehead.accept.authority import Authority
from lakehead.accept.conflicts import Conflicts
from lakehead.accept.spool import Spool
from lakehead.accept.spool_files import open_spool_folder
from lakehead.accept.spool_limits import SpoolLimits
from lakehead.accept.spool_opening import SpoolOpening
from lakehead.accept.spool_uploads import SpoolUploads
from lakehead.clock import SystemClock
from lakehead.errors import Unavailable
from lakehead.ids import RandomIds
from lakehead.storage.port import Created, Exists, ListedObject, Store
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import decode_frame, encode_frame
from lakehead.wire.record_schemas import FrameKind
from tests.unit.accept.support import NO_PAUSES, ScriptedStore, acceptor
from tests.unit.wire.frames import samples


def batch(first: int = 10, *, boot: str = "boot-1", compress: bool = True) -> Submission:
    """A real frame; not compressed it is another one of the same identity."""
    records = samples()
    identity = BatchIdentity("agent-a", boot, first, first + records.num_rows - 1)
    body = encode_frame(identity, FrameKind.SAMPLES, records, compress=compress)
    return Submission.of(body, decode_frame(body))


class OutageStore(ScriptedStore):
    """A store that can be out of reach altogether."""

    is_down = False

    async def create(self, key: str, body: bytes) -> Created | Exists:
        if self.is_down:
            raise Unavailable(f"{key}: no answer")
        return await super().create(key, body)

    def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        if self.is_down:
            raise Unavailable(f"{folder}: no answer")
        return super().list(folder, start_after=start_after)

    def go_down(self) -> None:
        self.is_down = self.is_down_for_reads = True

    def come_back(self) -> None:
        self.is_down = self.is_down_for_reads = False


class Queue:
    """Remembers what was queued for landing."""

    def __init__(self) -> None:
        self.queued: list[BatchIdentity] = []

    async def put(self, manifests: Sequence[IdentityManifest]) -> None:
        self.queued += [each.identity for each in manifests]


@dataclass
class Rig:
    """A gateway's spool and what is around it. `opened` starts the gateway, as often as a test likes."""

    folder: Path
    store: OutageStore = field(default_factory=OutageStore)
    queue: Queue = field(default_factory=Queue)
    limits: SpoolLimits = field(default_factory=SpoolLimits)
    name: str = "gateway-1"

    @property
    def authority(self) -> Authority:
        return Authority(
            store=self.store,
            clock=SystemClock(),
            ids=RandomIds(),
            random=Random(1),
            bucket="s3://lake",
            prefix="",
            backoff=NO_PAUSES,
        )

    def opening(self, disk: Store) -> SpoolOpening:
        return SpoolOpening(
            disk=disk,
            authority=self.authority,
            acceptor=acceptor(self.store, name=self.name),
            ids=RandomIds(),
            limits=self.limits,
        )

    @contextmanager
    def disk(self) -> Iterator[Store]:
        with open_spool_folder(self.folder, clock=SystemClock(), ids=RandomIds()) as disk:
            yield disk

    async def open(self, disk: Store) -> Spool:
        await self.authority.init("local_spool")
        return await self.opening(disk).open(address="http://here")

    def uploads(self, spool: Spool) -> SpoolUploads:
        return SpoolUploads(
            spool=spool,
            acceptor=spool.acceptor,
            conflicts=Conflicts(store=self.store, clock=SystemClock(), ids=RandomIds(), collector_id=self.name),
            effects=AfterAcceptance(store=self.store, queue=self.queue),
            clock=SystemClock(),
            random=Random(1),
            interval_seconds=0.0,
        )

    def file(self, submission: Submission, folder: str = "batches") -> Path:
        [found] = (self.folder / folder).rglob(f"{submission.identity.seq_start:020}-*.lmbatch")
        return found
