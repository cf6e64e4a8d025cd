"""The claims that a collector holds in one partition, and its unconfirmed writes. Nothing here does I/O."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile

from lakehead.buffer.claims import Claim, ClaimState
from lakehead.buffer.counts import BufferCounts
from lakehead.buffer.errors import AckOutOfOrder
from lakehead.buffer.manifests import StoredManifest
from lakehead.storage.port import Version
from lakehead.wire.queue_manifests import ConsumerManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class UnconfirmedWrite:
    """A write that ends claims and was sent. It may have been applied, or may be applied later."""

    number: int
    """Our number in `acks` once it has been applied."""

    locations: frozenset[str]
    end_state: ClaimState
    """The state of the claims once it has been applied."""

    gives_up_queue: bool
    """Whether it also gives up ownership of the queue."""

    base: ConsumerManifest
    """The manifest that it replaces."""

    base_version: Version | None
    """The object version of that manifest."""

    refused: bool = False
    """Whether the store refused it. It may have been applied all the same, if the network sent the request twice."""

    def may_be_evicted(self, acks: Mapping[str, int], max_collectors: int) -> bool:
        """Return whether it may have been applied and then evicted from `acks` by the writes of others.

        The oldest entries are evicted first. So if an entry that is older than ours is still there unchanged, ours
        was not evicted.
        """
        return len(acks) >= max_collectors and not any(
            acks.get(name) == number for name, number in self.base.acks.items()
        )


class HeldClaims:
    """The claims of one collector, and its writes that end some of them and are not confirmed yet."""

    def __init__(self, owner: str, counts: BufferCounts, *, ordered: bool, max_collectors: int) -> None:
        self.held: dict[str, Claim] = {}
        """In the order in which they were claimed."""
        self.lost_acks: dict[str, Claim] = {}
        """Claims whose ack got no response, and of which the manifest has no trace any more."""
        self.epoch: int | None = None
        """In ordered mode, the epoch in which we own the queue."""
        self.unconfirmed: list[UnconfirmedWrite] = []
        self._owner = owner
        self._counts = counts
        self._ordered = ordered
        self._max_collectors = max_collectors

    @property
    def is_empty(self) -> bool:
        """Whether we hold no claims and do not own the queue."""
        return not self.held and self.epoch is None

    def hold(self, claims: Sequence[Claim], epoch: int) -> None:
        """Add new claims."""
        if self._ordered:
            self.epoch = epoch
        for claim in claims:
            self.held[claim.location] = claim
            if (before := self.lost_acks.pop(claim.location, None)) is not None:
                before.state = ClaimState.RELEASED  # it could be claimed again, so it was not acknowledged

    def to_acknowledge(self, requested: Collection[str]) -> Sequence[str] | None:
        """Return the locations that are still to be marked as done; None if there are none.

        In ordered mode they are the first that are held. Raises `AckOutOfOrder` if an earlier one is not requested.
        """
        ours = [location for location in requested if location in self.held]
        if ours and self._ordered:
            first = [location for location, _ in zip(self.held, ours, strict=False)]
            if early := next((location for location in first if location not in requested), None):
                raise AckOutOfOrder(
                    f"{early} was handed out before {ours[-1]} and is not acknowledged yet. Acknowledge it first."
                )
            return first
        return ours or None

    def to_release(self, requested: Collection[str]) -> Sequence[str] | None:
        """Return the locations that are still held, in ordered mode with all behind the first; None if none is."""
        ours = [location for location in requested if location in self.held]
        if ours and self._ordered:
            return list(dropwhile(lambda location: location not in requested, self.held))
        return ours or None

    def resolve(self, current: StoredManifest[ConsumerManifest]) -> None:
        """Find out from the current manifest which unconfirmed writes were applied."""
        acks = current.manifest.acks
        applied = acks.get(self._owner)
        for write in self.unconfirmed:
            if write.number == applied:
                self.confirm(write)
                return  # the others would have replaced the version that this one has replaced
        if applied is None:
            for write in self.unconfirmed:
                if (
                    not write.refused
                    and write.base_version != current.object_version
                    and write.may_be_evicted(acks, self._max_collectors)
                ):
                    self._lose_track(write, current.manifest)
        self.unconfirmed = [write for write in self.unconfirmed if write.base_version == current.object_version]

    @property
    def is_in_doubt(self) -> bool:
        """Whether the outcome of a write is unknown."""
        return any(not each.refused for each in self.unconfirmed)

    def mark_refused(self, write: UnconfirmedWrite) -> None:
        """Note that the store refused a write. It is kept until the next read shows that it was not applied."""
        self.unconfirmed = [replace(each, refused=True) if each is write else each for each in self.unconfirmed]

    def confirm(self, write: UnconfirmedWrite) -> None:
        """Note that a write was applied."""
        self.unconfirmed.clear()
        self._end(write.locations, write.end_state)
        if write.gives_up_queue:
            self.epoch = None

    def resolve_lost_acks(self, pending: Collection[str]) -> bool:
        """Resolve lost acks by what is pending now; return whether some of them are held again.

        They were not done when their trace was lost. Cleanup removes a location from `pending` before it removes it
        from `done`. So a location that is still pending was not acknowledged by us: it is held again, until a check
        shows that it belongs to another collector. One that is not pending was acknowledged by us or by another.
        """
        self.held.update(self.lost_acks)
        done = [location for location in self.lost_acks if location not in pending]
        self._end(done, ClaimState.OUTCOME_LOST)
        is_held = len(done) < len(self.lost_acks)
        self.lost_acks.clear()
        return is_held

    def _lose_track(self, write: UnconfirmedWrite, now: ConsumerManifest) -> None:
        """Handle a write that may have ended its claims although the manifest has no trace of it."""
        gone = [location for location in write.locations if now.owners.get(location) != self._owner]
        if write.end_state is ClaimState.ACKNOWLEDGED:
            self._end(set(now.done).intersection(gone), ClaimState.OUTCOME_LOST)
            self.lost_acks.update({each: self.held.pop(each) for each in gone if each in self.held})
        else:
            self._end(gone, write.end_state)

    def _end(self, locations: Iterable[str], state: ClaimState) -> None:
        for location in locations:
            if (claim := self.held.pop(location, None)) is not None:
                claim.state = state
                self._counts.acks += state is ClaimState.ACKNOWLEDGED
