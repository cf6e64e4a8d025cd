"""What a collector holds in one partition, and what it knows of its own writes. Nothing here does I/O."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile

from lakehead.buffer.claims import Claim, ClaimState
from lakehead.buffer.counts import Counts
from lakehead.buffer.errors import OutOfTurn
from lakehead.buffer.manifests import Stored
from lakehead.storage.port import Version
from lakehead.wire.queue_manifests import ConsumerManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A write that ends claims, was sent, and may have landed or may yet."""

    number: int
    """What stands in `acks` for us once it has landed."""

    locations: frozenset[str]
    end: ClaimState
    """What becomes of the claims."""

    leaves: bool
    """Whether it gives up the queue too."""

    over: ConsumerManifest
    """What it takes the place of."""

    at: Version | None
    """The version of that."""

    refused: bool = False
    """Whether the store said that it did not land. That may be a mistake: our request, sent twice on the way."""

    def may_be_forgotten(self, acks: Mapping[str, int], most: int) -> bool:
        """Whether it may have landed though `acks` does not have it, because of all that others have written since.

        The oldest entries are dropped first. So one that is older than ours, and stands as it was, is proof that ours
        was not dropped.
        """
        return len(acks) >= most and not any(acks.get(name) == number for name, number in self.over.acks.items())


class Holdings:
    """The claims of one collector, and the writes that end some of them and were left without an answer."""

    def __init__(self, who: str, counts: Counts, *, ordered: bool, most_collectors: int) -> None:
        self.held: dict[str, Claim] = {}
        """In the order in which they were claimed."""
        self.forgotten: dict[str, Claim] = {}
        """What was acknowledged without an answer, and the manifest has no trace of that any more."""
        self.epoch: int | None = None
        """In ordered mode, the epoch in which the queue is ours."""
        self.sent: list[Sent] = []
        """What was sent and is not settled yet."""
        self._who = who
        self._counts = counts
        self._ordered = ordered
        self._most_collectors = most_collectors

    @property
    def is_empty(self) -> bool:
        """Whether nothing is ours, nor the queue itself."""
        return not self.held and self.epoch is None

    def hold(self, claims: Sequence[Claim], epoch: int) -> None:
        """These are ours now."""
        if self._ordered:
            self.epoch = epoch
        for claim in claims:
            self.held[claim.location] = claim
            if (before := self.forgotten.pop(claim.location, None)) is not None:
                before.state = ClaimState.RELEASED  # it could be claimed again, so it was not acknowledged

    def to_acknowledge(self, wanted: Collection[str]) -> Sequence[str] | None:
        """Those that are not done yet, in the order in which they were claimed where that matters; None if all are."""
        ours = [location for location in wanted if location in self.held]
        if ours and self._ordered:
            first = [location for location, _ in zip(self.held, ours, strict=False)]
            if early := next((location for location in first if location not in wanted), None):
                raise OutOfTurn(f"{early} was handed out before {ours[-1]} and is not acknowledged yet.")
            return first
        return ours or None

    def to_release(self, wanted: Collection[str]) -> Sequence[str] | None:
        """Those that are still ours, in ordered mode with all that is behind them; None if none is."""
        ours = [location for location in wanted if location in self.held]
        if ours and self._ordered:
            return list(dropwhile(lambda location: location not in wanted, self.held))
        return ours or None

    def settle(self, seen: Stored[ConsumerManifest]) -> None:
        """Find out what became of writes that were left without an answer."""
        acks = seen.manifest.acks
        landed = acks.get(self._who)
        for sent in self.sent:
            if sent.number == landed:
                self.settle_sent(sent)
                return  # the others were to take the place of what it has replaced
        if landed is None:
            for sent in self.sent:
                if not sent.refused and sent.at != seen.at and sent.may_be_forgotten(acks, self._most_collectors):
                    self._forget(sent, seen.manifest)
        self.sent = [sent for sent in self.sent if sent.at == seen.at]

    @property
    def is_in_doubt(self) -> bool:
        """Whether a write was left without an answer, and nothing has told since what became of it."""
        return any(not each.refused for each in self.sent)

    def refuse_sent(self, sent: Sent) -> None:
        """The store says that a write has not landed. It is kept until the next read shows that, too."""
        self.sent = [replace(each, refused=True) if each is sent else each for each in self.sent]

    def settle_sent(self, sent: Sent) -> None:
        """A write has landed."""
        self.sent.clear()
        self._let_go(sent.locations, sent.end)
        if sent.leaves:
            self.epoch = None

    def clear_up(self, pending: Collection[str]) -> bool:
        """Settle what was forgotten, by what is pending now; whether some of it is held again.

        It was not done when it was forgotten. What is done leaves `pending` before it leaves `done`, so what is still
        pending was not acknowledged by us, and is held until somebody sees that it is another's. What is not, was
        acknowledged by us or by another.
        """
        self.held.update(self.forgotten)
        done = [location for location in self.forgotten if location not in pending]
        self._let_go(done, ClaimState.FORGOTTEN)
        is_held = len(done) < len(self.forgotten)
        self.forgotten.clear()
        return is_held

    def _forget(self, sent: Sent, now: ConsumerManifest) -> None:
        """A write may have ended claims though the manifest has no trace of it: all but those that are still ours."""
        gone = [location for location in sent.locations if now.owners.get(location) != self._who]
        if sent.end is ClaimState.ACKNOWLEDGED:
            self._let_go(set(now.done).intersection(gone), ClaimState.FORGOTTEN)
            self.forgotten.update({each: self.held.pop(each) for each in gone if each in self.held})
        else:
            self._let_go(gone, sent.end)

    def _let_go(self, locations: Iterable[str], end: ClaimState) -> None:
        for location in locations:
            if (claim := self.held.pop(location, None)) is not None:
                claim.state = end
                self._counts.acks += end is ClaimState.ACKNOWLEDGED
