"""`python -m bench.care_generated KEYS`: a cold scan of so many accepted batches that are stored nowhere.

A store makes up what is asked for: manifests, the sizes of frames, and the entries of all indexes. Prints what the
process held, as JSON.
"""

import asyncio
import json
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from pathlib import Path

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.maintain.blob_check import BlobCheck
from lakehead.maintain.hour_indexes import HourIndexes
from lakehead.maintain.open_repairs import OpenRepairs
from lakehead.maintain.reconcile_batch import BatchReconciler
from lakehead.maintain.reconcile_cold import ColdScanner
from lakehead.maintain.reconcile_report import ReconcileReport
from lakehead.maintain.reconcile_settings import ReconcileSettings
from lakehead.maintain.reconciler_records import ReconcilerRecords
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import ListedObject, Object, ObjectMeta, Version
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.utc_hours import HOUR_NS, UtcHour

AGENTS = 4
PER_AGENT_AND_HOUR = 1_000
RECORDS = 1_000
FRAME_BYTES = 66_450
FIRST_HOUR = UtcHour.of(1_760_000_000_000_000_000)
PAGE = 1_000
PAGES_PER_SAMPLE = 5
_VERSION = Version("1")
_PAGE_SIZE = resource.getpagesize()


class GeneratedStore(MemoryStore):
    """Has so many accepted batches of some agents, which send all the time, without holding any.

    Only what a reconciler writes is held: its records, and index entries, which are all there already.
    """

    def __init__(self, batches: int) -> None:
        super().__init__(clock=SystemClock())
        self._per_agent = batches // AGENTS
        self.batches = self._per_agent * AGENTS
        self.held_mib: list[float] = []
        """What the process held now and then while batches were listed."""

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        """Return an identity manifest, or what is held."""
        identity = keys.parse_accepted(key)
        if identity is None:
            return await super().get(key, start=start, end=end)
        body = _manifest(identity).encode()
        return Object(ObjectMeta(key, len(body), _VERSION, 0), body)

    async def head(self, key: str) -> ObjectMeta | None:
        """Say that frames and index entries are there."""
        if key.startswith((keys.RAW_BLOBS, keys.ACCEPTED_BY_BLOB, keys.ACCEPTED_BY_TIME, keys.RAW_BLOBS_BY_TIME)):
            return ObjectMeta(key, FRAME_BYTES, _VERSION, 0)
        return await super().head(key)

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        """Yield pages of batches, of the entries of an hour, or of what is held."""
        made_up = self._keys(folder)
        if made_up is None:
            async for page in super().list(folder, start_after=start_after):
                yield page
            return
        pages = 0
        while listed := [ListedObject(key, 700, 0) for key in islice(made_up, PAGE)]:
            if folder == keys.ACCEPTED and pages % PAGES_PER_SAMPLE == 0:
                self.held_mib.append(resident_mib())
            pages += 1
            yield listed

    def _keys(self, folder: str) -> Iterator[str] | None:
        if folder == keys.ACCEPTED:
            return (
                keys.accepted(_identity(agent, number)) for agent in range(AGENTS) for number in range(self._per_agent)
            )
        for index in (keys.ACCEPTED_BY_TIME, keys.RAW_BLOBS_BY_TIME):
            hour = UtcHour.parse(folder.removeprefix(f"{index}/"))
            if hour is not None:
                return self._entries(index, hour)
        return None

    def _entries(self, index: str, hour: UtcHour) -> Iterator[str]:
        first = (hour.number - FIRST_HOUR.number) * PER_AGENT_AND_HOUR
        for number in range(max(0, first), min(first + PER_AGENT_AND_HOUR, self._per_agent)):
            for agent in range(AGENTS):
                identity = _identity(agent, number)
                if index == keys.ACCEPTED_BY_TIME:
                    yield keys.accepted_by_time(hour, identity)
                else:
                    yield keys.raw_blob_by_time(hour, _sha256(identity))


def _identity(agent: int, number: int) -> BatchIdentity:
    return BatchIdentity(f"agent-{agent:04}", "boot", number * RECORDS, (number + 1) * RECORDS - 1)


def _sha256(identity: BatchIdentity) -> str:
    return f"{identity.agent_id[-4:]}{identity.seq_start:060}"  # not one of any frame: nobody hashes them


def _manifest(identity: BatchIdentity) -> IdentityManifest:
    hour = FIRST_HOUR.number + identity.seq_start // RECORDS // PER_AGENT_AND_HOUR
    sha256 = _sha256(identity)
    return IdentityManifest(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_sha256=sha256,
        frame_bytes=FRAME_BYTES,
        raw_blob_key=keys.raw_blob(sha256),
        accepted_at_unix_ns=hour * HOUR_NS + 1,
        collector_id="gateway",
        wire_version=1,
        frame_version=1,
        nonce="0" * 32,
    )


def resident_mib() -> float:
    """What this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_SIZE / (1 << 20)


async def scan(batches: int) -> dict[str, object]:
    """Scan so many batches, with the parts that `lakehead reconcile` has. Returns what was held."""
    store = GeneratedStore(batches)
    clock, ids, random = SystemClock(), RandomIds(), system_random()
    settings = ReconcileSettings(verify="size")
    scanner = ColdScanner(
        batches=BatchReconciler(
            store=store,
            clock=clock,
            ids=ids,
            random=random,
            reconciler_id="bench",
            blobs=BlobCheck(store, settings.verify),
            hours=HourIndexes(store),
            repairs=OpenRepairs(store),
        ),
        landings=None,
        records=ReconcilerRecords(store=store, clock=clock, ids=ids, random=random, reconciler_id="bench"),
        settings=settings,
    )
    report, before, began = ReconcileReport(), resident_mib(), time.perf_counter()
    is_complete = await scanner.scan(report)
    seconds = time.perf_counter() - began
    if not is_complete or report.accepted != store.batches or report.done or report.wrong:
        raise RuntimeError(f"The cold scan of {store.batches:,} sound batches found other ones: {report}")
    middle = len(store.held_mib) // 2
    halves = store.held_mib[:middle], store.held_mib[middle:]
    return {
        "seconds": seconds,
        "before_mib": before,
        "peaks_mib": [max(half) for half in halves],
        "medians_mib": [statistics.median(half) for half in halves],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(scan(int(sys.argv[1])))))
