"""Compares records of accepted batches that do not land, because others landed under their sequence numbers.

It comes before the landing is published: what has landed was compared, whoever dies when. Equal records are dropped.
A batch with others than those that landed goes to quarantine, and so does one that could not be compared.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lakehead.accept.overlaps import Overlaps
from lakehead.consume.decode.frames import LIMITS, AcceptedFrame, accepted_frame
from lakehead.consume.decode.record_comparison import differing_rows, spans_of
from lakehead.consume.decode.rows import ObjectRefused
from lakehead.consume.messages import uri_in_store
from lakehead.consume.ports import OverlapReport
from lakehead.errors import Misconfigured
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import OverlappedBatch, as_ranges
from lakehead.wire.errors import NewerFormat, Unreadable
from lakehead.wire.frame import Frame
from lakehead.wire.key_parts import boot_part
from lakehead.wire.spans import Span, Spans, common, count, merged, without

KEPT_FRAMES = 4
"""Decoded frames that are kept in memory, for batches that overlap the same ones."""

KEPT_BYTES = 64 * 2**20
"""A larger frame is not kept."""

MOST_COMPARED = 5_000
"""How many pairs of batches are compared for one agent in a landing. Others wait for that landing."""

LONGEST_REASON = 500

TOO_MANY = f"More than {MOST_COMPARED:,} pairs of batches of its agent have common numbers."

FindOwners = Callable[[str, Spans], Awaitable[Mapping[str, Spans]]]
"""Returns which units landed numbers of a stream, each with those that it landed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedRecords:
    """Records of an accepted batch that do not land, because their sequence numbers have landed."""

    unit: str
    """The URI of the batch's identity manifest."""

    frame: AcceptedFrame
    spans: Spans
    """Their sequence numbers."""

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the batch: then it may have landed itself, and comes again."""
        return count(self.spans) == self.frame.identity.record_count


@dataclass(frozen=True, slots=True)
class _Compared:
    """Another batch with some of the same sequence numbers."""

    identity: BatchIdentity
    manifest: IdentityManifest | None
    shared: Spans
    doubtful: Spans = ()
    """Where it differs, or could not be compared."""

    problem: str = ""
    """Why it could not be compared."""

    def overlapped(self, spans: Spans, problem: str = "") -> OverlappedBatch:
        return OverlappedBatch(
            accepted_manifest_key=keys.accepted(self.identity),
            raw_blob_key=self.manifest.raw_blob_key if self.manifest else "",
            frame_sha256=self.manifest.frame_sha256 if self.manifest else "",
            ranges=as_ranges(spans),
            not_compared=(self.problem or problem)[:LONGEST_REASON],
        )


class _AcceptedOfBoot:
    """Accepted batches of one boot, in the order of their numbers. There may be very many."""

    def __init__(self, identities: Sequence[BatchIdentity]) -> None:
        self._identities = identities
        self._longest = max((each.record_count for each in identities), default=0)

    def near(self, spans: Spans) -> Sequence[BatchIdentity]:
        """Those that can have some of the numbers."""
        first = bisect_left(self._identities, spans[0][0] - self._longest, key=lambda each: each.seq_start)
        last = bisect_left(self._identities, spans[-1][1], key=lambda each: each.seq_start)
        return [each for each in self._identities[first:last] if each.seq_end >= spans[0][0]]


class _Owners:
    """Which unit landed each of some numbers: no number has two. There may be very many."""

    def __init__(self, landed: Mapping[str, Spans]) -> None:
        self._places = sorted((start, end, unit) for unit, spans in landed.items() for start, end in spans)

    def of(self, spans: Spans) -> dict[str, Spans]:
        first = max(0, bisect_right(self._places, spans[0][0], key=lambda each: each[0]) - 1)
        last = bisect_left(self._places, spans[-1][1], key=lambda each: each[0])
        found: dict[str, list[Span]] = {}
        for start, end, unit in self._places[first:last]:
            if own := common(spans, [(start, end)]):
                found.setdefault(unit, []).extend(own)
        return {unit: merged(own) for unit, own in found.items()}


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Dropped records that may not be those that landed: that depends on who landed them."""

    dropped: DroppedRecords
    compared: Sequence[_Compared]
    spans: Spans
    is_cut_short: bool
    """Whether there was too much to compare."""


@dataclass(slots=True, kw_only=True)
class OverlapCheck:
    """Compares what is dropped with what landed, for one table at a time."""

    overlaps: Overlaps
    store_url: str
    """The URL of the store of accepted batches, by which units are named."""

    go_on: Callable[[], object] = lambda: None
    """Called between comparisons; raises if there is no time for more."""

    _frames: dict[str, Frame] = field(default_factory=dict, init=False)
    _own: Frame | None = field(default=None, init=False)
    """The frame of the batch whose dropped records are compared, of any size, once it was read."""

    _comparisons: Counter[str] = field(default_factory=Counter, init=False)
    """How many were made for each agent."""

    async def check(self, dropped: Sequence[DroppedRecords], *, table: str, owners: FindOwners) -> OverlapReport:
        """Compare dropped records of batches with those that landed. On return the quarantine is durable.

        `table` is the uuid of the table. Raises `Unavailable`, `OutcomeUnknown` and `Misconfigured` if the store does
        not answer as it should or a stored record is damaged, and `NewerFormat`; repeating it is safe.
        """
        boots: dict[tuple[str, str], list[DroppedRecords]] = {}
        for each in dropped:
            boots.setdefault((each.frame.identity.agent_id, each.frame.identity.boot_id), []).append(each)
        equal = batches = records = 0
        try:
            for (agent_id, boot_id), theirs in sorted(boots.items()):
                spans = merged(span for each in theirs for span in each.spans)
                near = await self.overlaps.accepted_in(agent_id, boot_id, spans, go_on=self.go_on)
                accepted = _AcceptedOfBoot(near)
                doubts = [await self._doubt(each, accepted) for each in sorted(theirs, key=lambda each: each.spans)]
                equal += sum(count(each.spans) for each in theirs)
                doubtful = merged(span for each in doubts for span in each.spans)
                landed = _Owners(await owners(boot_part(agent_id, boot_id), doubtful) if doubtful else {})
                for doubt in doubts:
                    different = await self._quarantine(doubt, landed, table)
                    batches, records, equal = batches + bool(different), records + different, equal - different
        finally:
            self._frames.clear()
            self._own = None
            self._comparisons.clear()
        return OverlapReport(equal=equal, batches=batches, records=records)

    async def _quarantine(self, doubt: _Doubt, landed: _Owners, table: str) -> int:
        """Put a batch in quarantine if others landed other records. Returns how many of its own are there then."""
        frame = doubt.dropped.frame
        found = self._by_owner(doubt, landed.of(doubt.spans)) if doubt.spans else ()
        contradicted = [(spans, batch) for spans, batch in found if spans]
        if not contradicted:
            return 0
        try:
            await self.overlaps.record(frame.identity, frame.sha256, [batch for _, batch in contradicted], table=table)
        except NewerFormat:
            raise
        except Unreadable as error:
            raise Misconfigured(str(error)) from error
        return count(span for spans, _ in contradicted for span in spans)

    async def _doubt(self, each: DroppedRecords, accepted: _AcceptedOfBoot) -> _Doubt:
        """Compare the dropped records of one batch with those of all others."""
        compared: list[_Compared] = []
        agent_id, self._own = each.frame.identity.agent_id, None
        for identity in accepted.near(each.spans):
            shared = common(each.spans, [(identity.seq_start, identity.seq_end + 1)])
            if shared and identity != each.frame.identity:
                self.go_on()
                if self._comparisons[agent_id] >= MOST_COMPARED:
                    return _Doubt(each, compared, each.spans, is_cut_short=True)
                self._comparisons[agent_id] += 1
                compared += await self._compare(each.frame, identity, shared)
        doubtful = merged(span for other in compared for span in other.doubtful)
        if not each.is_whole:  # it has not landed before, so another has brought each of them
            doubtful = merged([*doubtful, *without(each.spans, [span for other in compared for span in other.shared])])
        return _Doubt(each, compared, doubtful, is_cut_short=False)

    def _by_owner(self, doubt: _Doubt, landed: Mapping[str, Spans]) -> Iterator[tuple[Spans, OverlappedBatch]]:
        """The batches that landed other records than the dropped ones, with their sequence numbers."""
        compared, doubtful = doubt.compared, doubt.spans
        elsewhere = TOO_MANY if doubt.is_cut_short else "It is not among the accepted batches of this store."
        units = {uri_in_store(self.store_url, keys.accepted(other.identity)): other for other in compared}
        for unit, spans in landed.items():
            if unit in units:
                different = common(spans, units[unit].doubtful)
                yield different, units[unit].overlapped(different)
            elif unit != doubt.dropped.unit:
                yield spans, _unknown(unit, spans, elsewhere)
        unowned = without(doubtful, [span for spans in landed.values() for span in spans])
        for other in compared:
            different = common(unowned, other.doubtful)
            yield different, other.overlapped(different, "Which of the two has landed is not known.")
        if rest := without(unowned, [span for other in compared for span in other.doubtful]):
            yield rest, _unknown("unknown", rest, "Which batch has landed is not known.")

    async def _compare(self, frame: AcceptedFrame, identity: BatchIdentity, shared: Spans) -> list[_Compared]:
        """Compare a batch with another; nothing is returned for one that is void, or lands in another table."""
        try:
            manifest = await self.overlaps.accepted(identity)
        except NewerFormat:
            raise
        except Unreadable as error:
            return [_Compared(identity, None, shared, shared, str(error))]
        if manifest is None or manifest.kind not in ("", frame.kind.word):
            return []
        try:
            other = await self._frame(manifest.frame_sha256, identity)
            if other.header.kind is not frame.kind:
                return []
            own = self._own = self._own or await self._frame(frame.sha256, frame.identity)
        except ObjectRefused as error:
            return [_Compared(identity, manifest, shared, shared, str(error))]
        return [_Compared(identity, manifest, shared, _differing(own, other, shared))]

    async def _frame(self, sha256: str, identity: BatchIdentity) -> Frame:
        """Read a frame. Raises `ObjectRefused` if it is missing or damaged, and `NewerFormat`."""
        if (kept := self._frames.pop(sha256, None)) is None:
            key = keys.raw_blob(sha256)
            found = await self.overlaps.store.get(key, end=LIMITS.frame_bytes + 1)
            if found is None:
                raise ObjectRefused(f"The frame {key} does not exist.")
            try:
                kept = accepted_frame(found.body, identity, sha256)
            except ObjectRefused as error:
                raise ObjectRefused(f"The frame {key}: {error}") from None
        if kept.identity != identity:
            raise ObjectRefused(f"The frame {keys.raw_blob(sha256)} is that of another batch.")
        if kept.records.nbytes <= KEPT_BYTES:
            self._frames[sha256] = kept  # as the last one
            while len(self._frames) > KEPT_FRAMES:
                del self._frames[next(iter(self._frames))]
        return kept


def _differing(one: Frame, other: Frame, shared: Spans) -> Spans:
    found: list[Span] = []
    for start, end in shared:
        flags = differing_rows(_records(one, start, end), _records(other, start, end))
        found += spans_of(np.asarray(flags), first=start)
    return merged(found)


def _records(frame: Frame, start: int, end: int) -> pa.RecordBatch:
    return frame.records.slice(start - frame.identity.seq_start, end - start)


def _unknown(named: str, spans: Spans, problem: str) -> OverlappedBatch:
    return OverlappedBatch(accepted_manifest_key=named, ranges=as_ranges(spans), not_compared=problem)
