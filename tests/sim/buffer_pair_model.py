"""The invariants of one pair of manifests, and its history."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from lakehead.buffer.layout import ManifestKeys
from tests.support.simulation import Violation

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The maximal lengths of a manifest's lists in a scenario; None means no limit."""

    done: int | None = None
    """Done locations, while no cleanup has failed. Each failed cleanup allows half as many more."""

    producers: int | None = None
    collectors: int | None = None


@dataclass(eq=False)
class WatchedPair:
    """One pair of manifests, as the store sees it."""

    pair: ManifestKeys
    number: int
    ordered: bool
    limits: Limits
    queue: list["WatchedPair"] = field(repr=False)
    """All pairs of its queue. The first has the number of partitions."""

    name: Callable[[str], str]
    """A short name for the batch at a location."""

    producer: Json = field(default_factory=lambda: {"pending": []})
    consumer: Json = field(default_factory=lambda: {"claimed": {}, "done": []})
    appended: list[str] = field(default_factory=list)
    """Every location, in the order of its append."""

    places: dict[str, int] = field(default_factory=dict)
    done: dict[str, str] = field(default_factory=dict)
    """Every location that was ever done, and which collector acknowledged it."""

    handed: dict[int, set[str]] = field(default_factory=dict)
    """What was handed out, by epoch."""

    @property
    def open(self) -> list[str]:
        """What is pending and not done."""
        done = self.consumer["done"]
        return [location for location in self.producer["pending"] if location not in done]

    quarantined: set[str] = field(default_factory=set)
    """Every location that is in quarantine with a note."""

    failed_clean_ups: int = 0

    @property
    def _most_done(self) -> int | None:
        limit = self.limits.done
        return None if limit is None else limit + self.failed_clean_ups * limit // 2

    @property
    def is_read(self) -> bool:
        """Whether collectors read it: the first pair has the number of partitions that are read."""
        return self.number < (self.queue[0].producer.get("partitions") or 1)

    # --- the producer manifest

    def new_locations(self, now: Json) -> list[str]:
        """Check a write of the producer manifest; return what it appends."""
        before = self.producer
        _grows(before, now, "version", "gc", "forgotten", "partitions_version")
        kept = [location for location in now["pending"] if location in self.places]
        if removed := set(before["pending"]) - set(kept) - set(self.consumer["done"]):
            raise Violation(f"{sorted(map(self.name, removed))} are pending no more and nobody has done them")
        if kept != [location for location in before["pending"] if location in kept]:
            raise Violation("what is pending changes its order")
        appended = [location for location in now["pending"] if location not in self.places]
        if now["pending"] != kept + appended:
            raise Violation("something is appended anywhere but at the end, or again")
        if appended:
            self._check_read(before, [self.name(each) for each in appended])
        _within(self.limits.producers, now.get("producers", {}), "producers are remembered")
        if self.number == 0:
            self._check_partitions(before, now)
        return appended

    def append(self, location: str) -> None:
        self.places[location] = len(self.appended)
        self.appended.append(location)

    def _check_read(self, before: Json, names: list[str]) -> None:
        """Raise unless collectors read this pair."""
        if before.get("sealed"):
            raise Violation(f"{names} are appended to {self.pair.producer}, which is sealed")
        if not self.is_read:
            raise Violation(f"{names} are appended to {self.pair.producer}, which no collector reads")

    def _check_partitions(self, before: Json, now: Json) -> None:
        """Check that the number of partitions changes only while the queue is empty and sealed."""
        if before.get("partitions", 0) in (0, now.get("partitions", 0)):
            return
        for each in self.queue:
            state = now if each is self else each.producer
            if state.get("partitions") and not state.get("sealed"):
                raise Violation(f"the number of partitions changes while {each.pair.producer} is open")
            if each.open:
                raise Violation(f"the number of partitions changes while {each.pair.producer} is not drained")

    # --- the consumer manifest

    def newly_done(self, now: Json) -> list[str]:
        """Check a write of the consumer manifest; return what it marks as done."""
        before = self.consumer
        _grows(before, now, "version", "epoch")
        if again := [self.name(each) for each in now["claimed"] if each in self.done and each not in before["claimed"]]:
            raise Violation(f"{again} are claimed after they were done")
        done = [location for location in now["done"] if location not in before["done"]]
        if done:
            self._check_done(before, now, done)
        for location in sorted(set(before["done"]) - set(now["done"])):
            if location in self.producer["pending"]:
                raise Violation(f"{self.name(location)} is done no more and still pending")
        _within(self._most_done, now["done"], "locations wait for a clean-up")
        _within(self.limits.collectors, now.get("acks", {}), "collectors are remembered")
        return done

    def _check_done(self, before: Json, now: Json, done: list[str]) -> None:
        [who] = [name for name, number in now["acks"].items() if number != before.get("acks", {}).get(name)]
        for location in done:
            if before.get("owners", {}).get(location) != who:
                raise Violation(f"{who} marks {self.name(location)} as done, which is not its own")
            if location in self.done:
                raise Violation(f"{self.name(location)} is done twice")
        if self.ordered:
            first = len(self.done)
            if done != self.appended[first : first + len(done)]:
                raise Violation(f"{[self.name(each) for each in done]} are done out of order")
        self.done.update(dict.fromkeys(done, who))

    # --- what collectors hand out and lose

    def is_held(self, location: str, owner: str, epoch: int) -> bool:
        """Return whether a collector holds a location now."""
        if self.ordered:
            return bool(self.consumer.get("owner") == owner and self.consumer.get("epoch") == epoch)
        return bool(self.consumer.get("owners", {}).get(location) == owner)

    def hand_out(self, location: str, owner: str, epoch: int) -> None:
        """A collector hands out a batch; in ordered mode the sink compares epochs."""
        held = self.is_held(location, owner, epoch)
        if held and location in self.done:
            raise Violation(f"{self.name(location)} is handed out though it was acknowledged")
        handed = self.handed.setdefault(epoch, set())
        if held and self.ordered and (skipped := self._open_before(location) - handed - self.quarantined):
            raise Violation(f"{self.name(location)} is handed out before {sorted(map(self.name, skipped))}")
        handed.add(location)

    def _open_before(self, location: str) -> set[str]:
        return set(self.appended[: self.places[location]]) - self.done.keys()

    def fence(self, held: Collection[str], owner: str, epoch: int | None) -> None:
        """A collector was fenced."""
        now = self.consumer
        if self.ordered:
            lost = now.get("owner") != owner or now.get("epoch") != epoch
        else:
            owners, remembered = now.get("owners", {}), owner in now.get("acks", {})
            lost = any(owners.get(each) != owner and not (self.done.get(each) == owner and remembered) for each in held)
        if not lost:
            raise Violation(f"{owner} is fenced for nothing")


def _grows(before: Json, now: Json, *names: str) -> None:
    for name in names:
        if now.get(name, 0) < before.get(name, 0):
            raise Violation(f"{name} goes back from {before[name]} to {now.get(name, 0)}")


def _within(limit: int | None, what: Collection[object], sentence: str) -> None:
    if limit is not None and len(what) > limit:
        raise Violation(f"{len(what)} {sentence}, and {limit} are the limit")
