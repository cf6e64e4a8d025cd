"""What must always hold of a queue: checked at every write to its store, by somebody who sees everything."""

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from lakehead.buffer.layout import Pair, is_batch, quarantine_folder
from lakehead.storage.memory import MemoryStore
from lakehead.storage.port import Version
from lakehead.wire.compact import decode_batch
from tests.sim.world import Violation, World

PREFIX = "ingest"
PAIR = Pair.of("ingest/manifest.json")

Json = dict[str, Any]


@dataclass
class History:
    """All that was ever in the queue."""

    appended: list[str] = field(default_factory=list)
    """Every location, in the order of its append."""

    places: dict[str, int] = field(default_factory=dict)
    done: dict[str, str] = field(default_factory=dict)
    """Every location that was ever done, and who has done it."""

    entries: dict[str, list[str]] = field(default_factory=dict)
    """What the batch at a location holds."""

    queued: set[str] = field(default_factory=set)
    last: dict[str, int] = field(default_factory=dict)
    """The number of the last entry of each sender that was queued."""

    confirmed: set[str] = field(default_factory=set)
    """Entries whose producer was told that they are queued."""

    refused: set[str] = field(default_factory=set)
    """Entries whose producer was told that they are not queued and never will be."""

    delivered: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    """What was deleted once may come back, when a create lands that was given up long ago: an orphan then."""


class WatchedStore(MemoryStore):
    """A store that raises where a write breaks what must always hold."""

    def __init__(self, world: World, *, ordered: bool, most_done: int) -> None:
        super().__init__(clock=world.clock, page_size=2)
        self._world = world
        self.history = History()
        self.most_done = most_done
        self._ordered = ordered
        self._handed: dict[int, set[str]] = {}
        self._producer: Json = {"pending": []}
        self._consumer: Json = {"claimed": {}, "done": []}

    @property
    def pending(self) -> list[str]:
        return list(self._producer["pending"])

    @property
    def consumer(self) -> Json:
        return self._consumer

    def _store(self, key: str, body: bytes) -> Version:
        try:
            self._check(key, body)
        except Violation as violation:
            self._tell(violation)  # whoever wrote may be dead, and never hear of it
            raise
        return super()._store(key, body)

    def _check(self, key: str, body: bytes) -> None:
        if key == PAIR.producer:
            self._producer = self._checked_producer(json.loads(body))
        elif key == PAIR.consumer:
            self._consumer = self._checked_consumer(json.loads(body))
        elif key.startswith(quarantine_folder(PAIR.producer)):
            raise Violation(f"a good batch is set aside: {body!r}")
        elif is_batch(key, PREFIX):
            self.history.entries[key] = [entry.value.decode() for entry in decode_batch(body)]

    async def delete(self, key: str) -> None:
        if key in self._producer["pending"] and key not in self._consumer["done"]:
            violation = Violation(f"the live batch {self.name(key)} is deleted")
            self._tell(violation)
            raise violation
        self.history.deleted.add(key)
        await super().delete(key)

    def _tell(self, violation: Violation) -> None:
        if self._world.failure is None:
            self._world.failure = violation
        self._world.changed()

    def name(self, location: str) -> str:
        return "+".join(self.entries(location))

    def entries(self, location: str) -> list[str]:
        return self.history.entries.get(location, [location])

    # --- what a write may change

    def _checked_producer(self, now: Json) -> Json:
        before, history = self._producer, self.history
        _grows(before, now, "version", "gc", "forgotten")
        kept = [location for location in now["pending"] if location in history.places]
        if removed := set(before["pending"]) - set(kept) - set(self._consumer["done"]):
            raise Violation(f"{sorted(map(self.name, removed))} are pending no more and nobody has done them")
        if kept != [location for location in before["pending"] if location in kept]:
            raise Violation("what is pending changes its order")
        appended = [location for location in now["pending"] if location not in history.places]
        if now["pending"] != kept + appended:
            raise Violation("something is appended anywhere but at the end, or again")
        for location in appended:
            self._append(location)
        return now

    def _append(self, location: str) -> None:
        history = self.history
        if is_batch(location, PREFIX):
            if location not in self._objects:
                raise Violation(f"{self.name(location)} is queued and not stored")
            for entry in history.entries[location]:
                sender, _, number = entry.rpartition(".")
                if entry in history.queued:
                    raise Violation(f"{entry} is queued twice")
                if history.last.get(sender, -1) > int(number):
                    raise Violation(f"{entry} is queued after {sender}.{history.last[sender]}")
                history.last[sender] = int(number)
        history.queued.update(self.entries(location))
        history.places[location] = len(history.appended)
        history.appended.append(location)

    def _checked_consumer(self, now: Json) -> Json:
        before, history = self._consumer, self.history
        _grows(before, now, "version", "epoch")
        if again := [
            self.name(each) for each in now["claimed"] if each in history.done and each not in before["claimed"]
        ]:
            raise Violation(f"{again} are claimed after they were done")
        done = [location for location in now["done"] if location not in before["done"]]
        self._check_done(before, now, done)
        for location in sorted(set(before["done"]) - set(now["done"])):
            if location in self._producer["pending"]:
                raise Violation(f"{self.name(location)} is done no more and still pending")
            if location in self._objects and location not in self.history.deleted:
                raise Violation(f"{self.name(location)} is forgotten, and its data is still there")
        if len(now["done"]) > self.most_done:
            raise Violation(f"{len(now['done'])} locations wait for a clean-up")
        return now

    def _check_done(self, before: Json, now: Json, done: list[str]) -> None:
        if not done:
            return
        acks = now.get("acks", {})
        [who] = [name for name, number in acks.items() if number != before.get("acks", {}).get(name)]
        done_by = {}
        for location in done:
            if before.get("owners", {}).get(location) != who:
                raise Violation(f"{who} marks {self.name(location)} as done, which is not its own")
            if location in self.history.done:
                raise Violation(f"{self.name(location)} is done twice")
            done_by[location] = who
        if self._ordered:
            first = len(self.history.done)
            if done != self.history.appended[first : first + len(done)]:
                raise Violation(f"{[self.name(each) for each in done]} are done out of order")
        self.history.done.update(done_by)

    # --- what is handed out, and what everybody has been told

    def hand_out(self, location: str, owner: str, epoch: int) -> None:
        """A collector gives a batch to whoever processes it, who compares epochs where order matters."""
        now = self._consumer
        held = now.get("owners", {}).get(location) == owner
        if self._ordered:
            held = now.get("owner") == owner and now.get("epoch") == epoch
        if held and location in self.history.done:
            raise Violation(f"{self.name(location)} is handed out though it was acknowledged")
        handed = self._handed.setdefault(epoch, set())
        if held and self._ordered and (skipped := self._open_before(location) - handed):
            raise Violation(f"{self.name(location)} is handed out before {sorted(map(self.name, skipped))}")
        handed.add(location)
        self.history.delivered.update(self.entries(location))

    def _open_before(self, location: str) -> set[str]:
        return set(self.history.appended[: self.history.places[location]]) - self.history.done.keys()

    def acknowledge(self, locations: Collection[str], owner: str) -> None:
        """A collector was told that these are acknowledged."""
        if open_ones := [self.name(each) for each in locations if self.history.done.get(each) != owner]:
            raise Violation(f"{open_ones} are said to be acknowledged, and are not")

    def fence(self, held: Collection[str], owner: str, epoch: int | None) -> None:
        """A collector was told that it has lost what it holds."""
        now = self._consumer
        if self._ordered:
            lost = now.get("owner") != owner or now.get("epoch") != epoch
        else:
            owners = now.get("owners", {})
            lost = any(owners.get(each) != owner and self.history.done.get(each) != owner for each in held)
        if not lost:
            raise Violation(f"{owner} is fenced for nothing")

    def check_end(self) -> None:
        """After everything has come to rest."""
        history = self.history
        if lost := history.confirmed - history.delivered:
            raise Violation(f"{sorted(lost)} were confirmed and never delivered")
        if lost := history.queued - history.delivered:
            raise Violation(f"{sorted(lost)} were queued and never delivered")
        if phantom := history.refused & history.queued:
            raise Violation(f"{sorted(phantom)} are queued, and their producer was told that they are not")
        left = [self.name(key) for key in self._objects if is_batch(key, PREFIX)]
        if left and self._producer.get("data_path_prefix"):
            raise Violation(f"{sorted(left)} are left behind")
        if self.pending or self._consumer["done"] or self._consumer["claimed"]:
            raise Violation(f"the queue is not empty: {self._producer}, {self._consumer}")


def _grows(before: Json, now: Json, *names: str) -> None:
    for name in names:
        if now.get(name, 0) < before.get(name, 0):
            raise Violation(f"{name} goes back from {before[name]} to {now.get(name, 0)}")
