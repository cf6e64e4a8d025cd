"""Claims, and how they change the consumer manifest. Nothing here does I/O."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from lakehead.buffer.errors import OutcomeLost
from lakehead.wire.queue_manifests import ConsumerManifest


@dataclass(frozen=True, slots=True)
class SkippedBatch:
    """A batch that went to quarantine instead of being handed out, for counting bad batches in a row."""

    bad: bool
    """Whether it went there because it could not be read."""

    starts_row: bool
    """Whether the batch that its collector read before it was good. That one may be acknowledged much later."""

    def count(self, before: int) -> int:
        """Return the number of bad batches in a row including this one."""
        return (0 if self.starts_row else before) + self.bad


NONE_SKIPPED: Mapping[str, SkippedBatch] = MappingProxyType({})


class ClaimState(Enum):
    """The state of a claim."""

    HELD = "held"
    ACKNOWLEDGED = "acknowledged"
    RELEASED = "released"
    OUTCOME_LOST = "outcome lost"
    """It is acknowledged, but it can no longer be found out whether by us: the response to our own ack was lost."""


@dataclass(eq=False, slots=True)
class Claim:
    """A location that belongs to one collector until it is acknowledged, released or taken over."""

    location: str
    epoch: int
    """The epoch in which it was claimed. A sink may compare epochs: a collector with a later one has taken over."""

    deliveries: int = 1
    """How often the location was claimed, including this time."""

    handed_out: bool = False
    """Whether the batch was given to the application."""

    state: ClaimState = ClaimState.HELD


def check_outcome_known(claim: Claim) -> None:
    """Raise `OutcomeLost` for a claim whose acknowledgement can no longer be attributed."""
    if claim.state is ClaimState.OUTCOME_LOST:
        raise OutcomeLost(
            f"{claim.location} is acknowledged, but it cannot be found out whether by this collector, which got no "
            "response, or by one that took over meanwhile. Do not repeat the call."
        )


def with_heartbeat(now: ConsumerManifest, held: Iterable[str], at_ms: int, *, ordered: bool) -> ConsumerManifest:
    """Return the manifest with new timestamps for everything that is held."""
    claimed = {**now.claimed, **{location: at_ms for location in held if location in now.claimed}}
    return replace(now, claimed=claimed, heartbeat=at_ms if ordered else now.heartbeat)


def with_claims(
    now: ConsumerManifest, claims: Sequence[Claim], owner: str, at_ms: int, pending: Collection[str]
) -> ConsumerManifest:
    """Return the manifest with new claims and their delivery counts; counts of locations not pending are dropped."""
    names = [claim.location for claim in claims]
    counted = {**now.deliveries, **{claim.location: claim.deliveries for claim in claims}}
    return replace(
        now,
        claimed={**now.claimed, **dict.fromkeys(names, at_ms)},
        owners={**now.owners, **dict.fromkeys(names, owner)},
        deliveries={location: count for location, count in counted.items() if location in pending},
    )


def with_done(now: ConsumerManifest, locations: Sequence[str], skipped: Mapping[str, SkippedBatch]) -> ConsumerManifest:
    """Return the manifest with claimed locations moved to `done`; `skipped` has those that went to quarantine."""
    bad = now.bad_in_a_row
    for location in locations:
        bad = skipped[location].count(bad) if location in skipped else 0
    gone = set(locations)
    return replace(
        _without(now, gone),
        done=(*now.done, *locations),
        deliveries={location: count for location, count in now.deliveries.items() if location not in gone},
        bad_in_a_row=bad,
    )


def with_released(now: ConsumerManifest, claims: Sequence[Claim]) -> ConsumerManifest:
    """Return the manifest without these claims. What was not handed out does not count as a delivery."""
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
