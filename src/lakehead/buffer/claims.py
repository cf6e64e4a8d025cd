"""Claims, and what the consumer manifest becomes with them. Nothing here does I/O."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from lakehead.buffer.errors import Forgotten
from lakehead.wire.queue_manifests import ConsumerManifest


@dataclass(frozen=True, slots=True)
class SkippedBatch:
    """A batch that was set aside instead of being handed out, for the count of bad ones in a row."""

    bad: bool
    """Whether because it could not be read."""

    begins_row: bool
    """Whether the one that its collector read before it was good. That one may be acknowledged much later."""

    def count(self, before: int) -> int:
        """How many bad ones there are in a row with this one."""
        return (0 if self.begins_row else before) + self.bad


NOTHING: Mapping[str, SkippedBatch] = MappingProxyType({})


class ClaimState(Enum):
    """What has become of a claim."""

    HELD = "held"
    ACKNOWLEDGED = "acknowledged"
    RELEASED = "released"
    FORGOTTEN = "forgotten"
    """It is done, and nobody can tell any more whether by our acknowledgement, which was left without an answer."""


@dataclass(eq=False, slots=True)
class Claim:
    """A location that is ours until we acknowledge it, release it or lose it."""

    location: str
    epoch: int
    """The epoch in which it was claimed, for a sink to compare: a later one has overtaken it."""

    deliveries: int = 1
    """How often the location was claimed, this time included."""

    handed_out: bool = False
    """Whether the application has it, or had it."""

    state: ClaimState = ClaimState.HELD


def check_not_forgotten(claim: Claim) -> None:
    """Raise `Forgotten` for a claim of which nobody can tell any more who acknowledged it."""
    if claim.state is ClaimState.FORGOTTEN:
        raise Forgotten(
            f"{claim.location} is acknowledged. Whether by this collector, whose acknowledgement was left without an "
            "answer, or by one that took over meanwhile, cannot be found out any more. Do not repeat it."
        )


def refreshed(now: ConsumerManifest, held: Iterable[str], at_ms: int, *, ordered: bool) -> ConsumerManifest:
    """With a heartbeat for everything that is held."""
    claimed = {**now.claimed, **{location: at_ms for location in held if location in now.claimed}}
    return replace(now, claimed=claimed, heartbeat=at_ms if ordered else now.heartbeat)


def with_claims(
    now: ConsumerManifest, claims: Sequence[Claim], owner: str, at_ms: int, pending: Collection[str]
) -> ConsumerManifest:
    """With new claims, each counted as a delivery. Counts of what is pending no more are dropped."""
    names = [claim.location for claim in claims]
    counted = {**now.deliveries, **{claim.location: claim.deliveries for claim in claims}}
    return replace(
        now,
        claimed={**now.claimed, **dict.fromkeys(names, at_ms)},
        owners={**now.owners, **dict.fromkeys(names, owner)},
        deliveries={location: count for location, count in counted.items() if location in pending},
    )


def with_done(now: ConsumerManifest, ours: Sequence[str], skipped: Mapping[str, SkippedBatch]) -> ConsumerManifest:
    """With claims turned into done locations; `skipped` has those of them that were set aside."""
    bad = now.bad_in_a_row
    for location in ours:
        bad = skipped[location].count(bad) if location in skipped else 0
    gone = set(ours)
    return replace(
        _without(now, gone),
        done=(*now.done, *ours),
        deliveries={location: count for location, count in now.deliveries.items() if location not in gone},
        bad_in_a_row=bad,
    )


def with_released(now: ConsumerManifest, claims: Sequence[Claim]) -> ConsumerManifest:
    """Without claims. What was never handed out does not count as delivered."""
    deliveries = dict(now.deliveries)
    for claim in claims:
        if not claim.handed_out and deliveries.get(claim.location, 0) > 0:
            deliveries[claim.location] -= 1
    counted = {location: count for location, count in deliveries.items() if count}
    return replace(_without(now, {claim.location for claim in claims}), deliveries=counted)


def _without(now: ConsumerManifest, gone: Collection[str]) -> ConsumerManifest:
    return replace(
        now,
        claimed={location: at for location, at in now.claimed.items() if location not in gone},
        owners={location: owner for location, owner in now.owners.items() if location not in gone},
    )
