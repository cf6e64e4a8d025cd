"""Sequence numbers of accepted batches, boot by boot, in the order in which a scan of their keys finds them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lakehead.maintain.acceptance_audit_report import AuditReport, FindingKind, numbers_of
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.spans import Span, Spans, common, merged, without

Boot = tuple[str, str]
"""An agent and one of its boots."""


@dataclass(slots=True)
class GrowingSpans:
    """Spans to which others are added, most of them at the end."""

    spans: list[Span] = field(default_factory=list)

    def add(self, start: int, end: int) -> None:
        """Add the numbers from `start` up to but not including `end`."""
        if not self.spans or start > self.spans[-1][1]:
            self.spans.append((start, end))
        elif start >= self.spans[-1][0]:
            self.spans[-1] = (self.spans[-1][0], max(end, self.spans[-1][1]))
        else:
            self.spans = list(merged([*self.spans, (start, end)]))

    @property
    def merged(self) -> Spans:
        """The numbers, in order."""
        return tuple(self.spans)


@dataclass(slots=True)
class BootSequences:
    """Tells the gaps and overlaps of each boot when the scan has left it: only one boot is held in memory."""

    report: AuditReport
    _boot: Boot | None = None
    _accepted: GrowingSpans = field(default_factory=GrowingSpans)
    _void: GrowingSpans = field(default_factory=GrowingSpans)

    def accepted(self, identity: BatchIdentity) -> None:
        """The scan has found an accepted batch, or a record that cannot be read."""
        self._enter(identity)
        spans = self._accepted.spans
        self.report.overlapping += bool(spans) and identity.seq_start < spans[-1][1]
        self._accepted.add(identity.seq_start, identity.seq_end + 1)

    def void(self, identity: BatchIdentity) -> None:
        """The scan has found an identity that is void."""
        self._enter(identity)
        self._void.add(identity.seq_start, identity.seq_end + 1)

    def finish(self) -> None:
        """Tell the gaps of the last boot."""
        if self._boot is None:
            return
        accepted, void = self._accepted.merged, self._void.merged
        known = merged([*accepted, *void])
        gaps = without([(known[0][0], known[-1][1])], accepted)
        if explained := common(gaps, void):
            self.report.add(FindingKind.VOID_GAP, numbers_of(*self._boot, explained))
        if unexplained := without(gaps, void):
            self.report.add(FindingKind.GAP, numbers_of(*self._boot, unexplained))
        self._boot, self._accepted, self._void = None, GrowingSpans(), GrowingSpans()

    def _enter(self, identity: BatchIdentity) -> None:
        boot = (identity.agent_id, identity.boot_id)
        if boot != self._boot:
            self.finish()
            self._boot = boot
            self.report.boots += 1


@dataclass(slots=True)
class AcceptedNumbers:
    """Which rows must be in the tables, and which may be. It grows with the boots and the gaps in them."""

    required: dict[FrameKind, dict[Boot, GrowingSpans]] = field(default_factory=dict)
    allowed: dict[FrameKind, dict[Boot, GrowingSpans]] = field(default_factory=dict)

    def allow(self, identity: BatchIdentity, kind: FrameKind | None) -> None:
        """Rows of a batch may be in the table of its kind; in any, if that is not known."""
        for each in FrameKind if kind is None else (kind,):
            _of(self.allowed, each, identity).add(identity.seq_start, identity.seq_end + 1)

    def require(self, identity: BatchIdentity, kind: FrameKind, spans: Spans) -> None:
        """Rows with these numbers of a batch must be in the table of its kind."""
        required = _of(self.required, kind, identity)
        for start, end in spans:
            required.add(start, end)

    def boots(self, kind: FrameKind) -> Iterator[tuple[Boot, Spans]]:
        """The boots of which rows must be there, with their numbers."""
        for boot, spans in self.required.get(kind, {}).items():
            yield boot, spans.merged

    def allowed_of(self, kind: FrameKind, boot: Boot) -> Spans:
        """The numbers of a boot of which rows may be there."""
        found: Mapping[Boot, GrowingSpans] = self.allowed.get(kind, {})
        return found[boot].merged if boot in found else ()


def _of(numbers: dict[FrameKind, dict[Boot, GrowingSpans]], kind: FrameKind, identity: BatchIdentity) -> GrowingSpans:
    boots = numbers.setdefault(kind, {})
    return boots.setdefault((identity.agent_id, identity.boot_id), GrowingSpans())
