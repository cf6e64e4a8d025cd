"""The steady scan: batches of the newest hours, found by the time indexes.

A gateway writes the entry of the frame's hour before it accepts the batch, so the hours of `raw-blobs-by-time` name all
that can be accepted. `accepted-by-time` is listed too: an entry may have been written late, into an old hour.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from lakehead.accept.record_file import read_record
from lakehead.errors import Unavailable
from lakehead.maintain.reconcile_batch import BatchReconciler, LookedAt, Standing, each_retried, reconcile_all
from lakehead.maintain.reconcile_landings import LandingState, MissingLandings
from lakehead.maintain.reconcile_report import ProblemKind, ReconcileReport
from lakehead.maintain.reconcile_settings import FAST_CLOCKS_SECONDS, ReconcileSettings
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import Unreadable
from lakehead.wire.index_records import AcceptedByTime, RawBlobByTime
from lakehead.wire.utc_hours import UtcHour

PAGE = 1_000
MOST_REMEMBERED = 500_000
"""Settled batches that are remembered, and batches on their way that are looked at again."""

MOST_UNDER_WAY = 100_000

MOST_OUT_OF_REACH = 10_000
"""Frames that cannot be read, and are remembered. Those that exceed it keep their hours open."""

OUT_OF_REACH_PER_PASS = 100
"""Of these, those that a pass tries again. The next pass goes on with the others."""

HOLD_SECONDS = 3600.0
"""How long a frame that cannot be read keeps its hour open. After that scans of everything find it, also after a start
of another reconciler."""

MOST_FAILED_HOURS = 3
"""Hours in a row that cannot be listed, after which a pass ends: the store is away, and not only one of its pages."""


@dataclass(slots=True)
class SettledBatches:
    """Remembers what needs no other look: the newest ones, in bounded memory."""

    most: int = MOST_REMEMBERED
    _names: dict[bytes, None] = field(default_factory=dict)

    def add(self, *hashes: str) -> None:
        """Remember hashes of frames and ids of manifests."""
        for name in hashes:
            self._names[bytes.fromhex(name)] = None
        while len(self._names) > self.most:
            del self._names[next(iter(self._names))]

    def __contains__(self, name: str) -> bool:
        return bytes.fromhex(name) in self._names


@dataclass(frozen=True, slots=True)
class _UnderWay:
    manifest: IdentityManifest
    hour: UtcHour
    """The hour in which it was found."""

    names: tuple[str, ...]
    """The names of its index entries."""


@dataclass(slots=True, kw_only=True)
class SteadyScan:
    """Looks at the newest hours, pass by pass. What is settled costs its share of a listing from then on."""

    batches: BatchReconciler
    landings: MissingLandings | None
    settings: ReconcileSettings
    stop: asyncio.Event | None = None
    """Ends a scan after its page, so that the checkpoint moves over what is done."""

    settled: SettledBatches = field(default_factory=SettledBatches)
    _under_way: "dict[BatchIdentity, _UnderWay]" = field(default_factory=dict)
    """Batches that have not landed."""

    _names_under_way: dict[str, BatchIdentity] = field(default_factory=dict)
    """The names of their index entries."""

    _out_of_reach: dict[BatchIdentity, float] = field(default_factory=dict)
    """Batches whose frames cannot be read, and since when, by the monotonic clock."""

    @property
    def waiting(self) -> int:
        """How many batches that were looked at have not landed."""
        return len(self._under_way)

    async def scan(self, since_unix_ns: int, report: ReconcileReport) -> int:
        """Look at all hours since a time. Returns the time up to which everything was looked at.

        An hour that could not be listed is in the report. Raises `Unavailable` if several in a row could not, or none.
        """
        now = self.batches.clock.now_ns()
        self.batches.hours.forget()
        through = now - int(self.settings.grace_seconds * 1e9)
        through = min([through, *[hour.start_ns for hour in await self._look_again(report)]])
        await self._try_again(UtcHour.of(now), report)
        first, last = UtcHour.of(max(0, since_unix_ns)), UtcHour.of(now + int(FAST_CLOCKS_SECONDS * 1e9))
        failed = 0
        for number in range(first.number, last.number + 1):
            hour = UtcHour(number)
            try:
                is_complete = await self._scan_hour(hour, report)
                failed = 0
            except Unavailable as error:
                failed += 1
                if failed in (MOST_FAILED_HOURS, last.number + 1 - first.number):
                    raise
                report.found(ProblemKind.FAILED, hour.path, f"The hour {hour.path} was not looked at. {error}")
                is_complete = False
            if not is_complete:
                through = min(through, hour.start_ns)
            if self.is_stopped:
                return max(0, min(through, hour.start_ns))
        return max(0, through)

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more is to be begun."""
        return self.stop is not None and self.stop.is_set()

    async def _look_again(self, report: ReconcileReport) -> Iterable[UtcHour]:
        """Look at batches on their way. Returns the hours of those whose state is not known."""
        if self.landings is None or not self._under_way:
            return ()
        open_hours: set[UtcHour] = set()
        waiting = list(self._under_way.items())
        for first in range(0, len(waiting), PAGE * 10):
            some = waiting[first : first + PAGE * 10]
            looked = await self.landings.settle([each.manifest for _, each in some], report)
            for identity, each in some:
                self._note(each.manifest, looked[identity], each.hour)
                if looked[identity] in (LandingState.YOUNG, LandingState.UNKNOWN):
                    open_hours.add(each.hour)
        return open_hours

    async def _try_again(self, hour: UtcHour, report: ReconcileReport) -> None:
        """Look at some of the batches whose frames could not be read."""
        some = list(self._out_of_reach.items())[:OUT_OF_REACH_PER_PASS]
        looked = await reconcile_all(
            self.batches, [identity for identity, _ in some], report, at_once=self.settings.at_once
        )
        for identity, since in some:  # the others come first in the next pass
            if self._out_of_reach.pop(identity, None) is not None:  # else it came back meanwhile, by an event
                self._out_of_reach[identity] = since
        await self.note(looked, hour, report)

    async def _scan_hour(self, hour: UtcHour, report: ReconcileReport) -> bool:
        """Look at everything in an hour that is not settled. Returns whether all of it was looked at."""
        is_complete = True
        for folder, entry_of in ((keys.RAW_BLOBS_BY_TIME, RawBlobByTime), (keys.ACCEPTED_BY_TIME, AcceptedByTime)):
            async for page in self._new_entries(f"{folder}/{hour.path}"):
                look = partial(self._identity_of, entry_of, report=report)
                at_once = self.settings.at_once
                found = await each_retried(page, look, str, self.batches, report, at_once=at_once)
                is_complete &= None not in found
                named = {name: each for key, each in zip(page, found, strict=True) if each and (name := _name(key))}
                is_complete &= await self._reconcile(named, hour, report)
                if self.is_stopped:
                    return False
        return is_complete

    async def _new_entries(self, folder: str) -> AsyncIterator[Sequence[str]]:
        """Yield the keys of entries whose batches are not settled, and not known to be on their way."""
        async for page in self.batches.store.list(folder):
            new = [each.key for each in page if (name := _name(each.key)) and not self._is_known(name)]
            for first in range(0, len(new), PAGE):
                yield new[first : first + PAGE]

    def _is_known(self, name: str) -> bool:
        return name in self.settled or name in self._names_under_way

    async def _identity_of(
        self, kind: type[RawBlobByTime] | type[AcceptedByTime], key: str, *, report: ReconcileReport
    ) -> BatchIdentity | str:
        """The identity that an entry names; empty if it cannot be read: then a scan of everything finds its batch."""
        try:
            entry: RawBlobByTime | AcceptedByTime | None = await read_record(kind, key, self.batches.store)
        except Unreadable as error:
            report.found(ProblemKind.UNREADABLE, key, str(error))
            return ""
        return "" if entry is None else entry.identity

    async def _reconcile(
        self, named: Mapping[str, BatchIdentity | str], hour: UtcHour, report: ReconcileReport
    ) -> bool:
        new: dict[BatchIdentity, list[str]] = {}
        is_complete = True
        for name, identity in named.items():
            if not isinstance(identity, BatchIdentity):
                continue
            accepted = keys.manifest_id(keys.accepted(identity))
            if accepted in self.settled:  # it came again in another hour
                self.settled.add(name)
            elif identity in self._under_way:
                self._name_under_way(identity, name)
            elif identity in self._out_of_reach:
                is_complete &= not self._holds(identity)
            else:
                new.setdefault(identity, []).append(name)
        looked = await reconcile_all(self.batches, list(new), report, at_once=self.settings.at_once)
        return await self.note(looked, hour, report, names=new) and is_complete

    def _holds(self, identity: BatchIdentity) -> bool:
        """Whether a batch whose frame cannot be read keeps its hour open."""
        now = self.batches.clock.monotonic()
        if identity not in self._out_of_reach and len(self._out_of_reach) >= MOST_OUT_OF_REACH:
            return True
        return now - self._out_of_reach.setdefault(identity, now) < HOLD_SECONDS

    async def note(
        self,
        looked: Sequence[LookedAt | None],
        hour: UtcHour,
        report: ReconcileReport,
        *,
        names: Mapping[BatchIdentity, Sequence[str]] | None = None,
    ) -> bool:
        """Queue what nobody has queued of what was looked at, and remember what is settled.

        Returns whether all of it was looked at, and none has to be looked at again before the hour counts as done.
        """
        entries = names or {}
        sound: dict[BatchIdentity, IdentityManifest] = {}
        is_complete = None not in looked
        for each in looked:
            if each is None:
                continue
            if each.standing is Standing.OUT_OF_REACH:
                is_complete &= not self._holds(each.identity)
                continue
            self._out_of_reach.pop(each.identity, None)
            if each.standing is Standing.SOUND and each.manifest is not None:
                sound[each.identity] = each.manifest
            elif each.standing in (Standing.DAMAGED, Standing.RETIRED, Standing.VOID):
                # A damaged frame is looked at with the open repairs from now on, and queued when it is right again.
                self._settle(each.identity, entries.get(each.identity, ()))
        if self.landings is None:
            for identity in sound:
                self._settle(identity, entries.get(identity, ()))
            return is_complete
        for identity, landing in (await self.landings.settle(sound.values(), report)).items():
            self._note(sound[identity], landing, hour, entries.get(identity, ()))
            is_complete &= landing not in (LandingState.YOUNG, LandingState.UNKNOWN)
        return is_complete

    def _note(
        self, manifest: IdentityManifest, landing: LandingState, hour: UtcHour, names: Sequence[str] = ()
    ) -> None:
        identity = manifest.identity
        if landing is LandingState.SETTLED:
            before = self._under_way.pop(identity, None)
            known = [*names, *(before.names if before else ())]
            for name in known:
                self._names_under_way.pop(name, None)
            self._settle(identity, known)
        elif identity in self._under_way or len(self._under_way) < MOST_UNDER_WAY:
            if identity not in self._under_way:
                self._under_way[identity] = _UnderWay(manifest, hour, ())
            self._name_under_way(identity, manifest.frame_sha256, keys.manifest_id(manifest.key), *names)

    def _name_under_way(self, identity: BatchIdentity, *names: str) -> None:
        """Remember names of a batch on its way. All of them are forgotten when it is settled."""
        new = [name for name in dict.fromkeys(names) if name not in self._names_under_way]
        if new:
            before = self._under_way[identity]
            self._under_way[identity] = replace(before, names=(*before.names, *new))
            self._names_under_way.update(dict.fromkeys(new, identity))

    def _settle(self, identity: BatchIdentity, names: Iterable[str]) -> None:
        self.settled.add(keys.manifest_id(keys.accepted(identity)), *names)


def _name(key: str) -> str | None:
    """The hash in the key of an entry; None if it is no entry."""
    found = keys.parse_raw_blob_by_time(key) or keys.parse_accepted_by_time(key)
    return found[1] if found else None
