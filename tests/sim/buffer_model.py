"""The invariants of queues, checked at every write to their store."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from lakehead.buffer.layout import ManifestKeys, is_batch_key, object_key, quarantine_folder, quarantine_name
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Object, Version
from lakehead.wire.compact import decode_batch
from tests.sim.buffer_pair_model import Json, Limits, WatchedPair
from tests.support.simulation import Violation, World

PREFIX = "ingest"
MANIFEST = "ingest/manifest.json"
PAIR = ManifestKeys.of(MANIFEST)


@dataclass
class History:
    """What has happened to entries, in whichever partition they were."""

    entries: dict[str, list[str]] = field(default_factory=dict)
    """The entries of the object at a key, from before it was damaged."""

    queued: set[str] = field(default_factory=set)
    last: dict[str, int] = field(default_factory=dict)
    """The number of the last entry of each sender that was queued."""

    last_delivered: dict[str, int] = field(default_factory=dict)
    confirmed: set[str] = field(default_factory=set)
    """Entries that were reported to their producer as queued."""

    refused: set[str] = field(default_factory=set)
    """Entries that were reported to their producer as never to be queued."""

    delivered: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    """Deleted objects. One may come back as an orphan, when an abandoned create is applied late."""

    damaged: dict[str, bytes] = field(default_factory=dict)
    """Objects that were damaged, and their content before that."""

    gone: set[str] = field(default_factory=set)
    """Objects that a scenario has deleted."""

    def entries_of(self, keys: Iterable[str]) -> set[str]:
        """Return the entries of some objects, from before they were damaged."""
        return set(chain.from_iterable(self.entries.get(key, ()) for key in keys))


class WatchedStore(MemoryStore):
    """A store that raises `Violation` when a write breaks an invariant of the queues in it."""

    def __init__(
        self,
        world: World,
        *,
        ordered: bool,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        manifests: Sequence[str] = (MANIFEST,),
        most_pairs: int = 1,
    ) -> None:
        super().__init__(clock=world.clock, page_size=2)
        self.history = History()
        self.ordered = ordered
        self.queues = {path: self._watched(path, most_pairs, limits) for path in manifests}
        self.pairs: list[WatchedPair] = list(chain(*self.queues.values()))
        self.pair_of: dict[str, WatchedPair] = {}
        """The partition to which each location was appended."""
        self._world = world
        self._producers = {each.pair.producer: each for each in self.pairs}
        self._consumers = {each.pair.consumer: each for each in self.pairs}
        self._quarantines = tuple(f"{quarantine_folder(path)}/" for path in manifests)

    def _watched(self, path: str, most_pairs: int, limits: Limits) -> list[WatchedPair]:
        queue: list[WatchedPair] = []
        for number in range(most_pairs):
            queue.append(WatchedPair(ManifestKeys.of(path, number), number, self.ordered, limits, queue, self.name))
        return queue

    @property
    def objects(self) -> Mapping[str, Object]:
        """Everything that is stored now."""
        return self._objects

    @property
    def open(self) -> list[str]:
        """What is pending and not done, in any partition."""
        return [location for each in self.pairs for location in each.open]

    def name(self, location: str) -> str:
        return "+".join(self.entries(location))

    def entries(self, location: str) -> list[str]:
        return self.history.entries.get(object_key(location), [location])

    # --- writes

    def _store(self, key: str, body: bytes) -> Version:
        try:
            self._check(key, body)
        except Violation as violation:
            self._tell(violation)  # the writer may be dead, and never get the exception
            raise
        return super()._store(key, body)

    def _check(self, key: str, body: bytes) -> None:
        if (pair := self._producers.get(key)) is not None:
            now: Json = msgspec.json.decode(body)
            for location in pair.new_locations(now):
                self._append(location, pair)
            pair.producer = now
        elif (pair := self._consumers.get(key)) is not None:
            now = msgspec.json.decode(body)
            before = pair.consumer
            for location in pair.newly_done(now):
                self._check_processed(location, pair)
            for location in sorted(set(before["done"]) - set(now["done"])):
                if location in self._objects and location not in self.history.deleted:
                    raise Violation(f"{self.name(location)} is forgotten, and its data is still there")
            pair.consumer = now
        elif key.startswith(self._quarantines):
            self._check_quarantined(key, body)
        elif is_batch_key(key, PREFIX):
            self.history.entries[key] = [entry.value.decode() for entry in decode_batch(body)]

    def _append(self, location: str, pair: WatchedPair) -> None:
        history = self.history
        if location in self.pair_of:
            raise Violation(f"{self.name(location)} is in two pairs")
        if is_batch_key(location, PREFIX):
            if location not in self._objects and location not in history.damaged:
                raise Violation(f"{self.name(location)} is queued and not stored")
            for entry in history.entries[location]:
                if entry in history.queued:
                    raise Violation(f"{entry} is queued twice")
                _follows(history.last, entry, "queued")
        history.queued.update(self.entries(location))
        self.pair_of[location] = pair
        pair.append(location)

    def _check_processed(self, location: str, pair: WatchedPair) -> None:
        """Check that what is done was handed out, or is in quarantine with a note."""
        unread = [entry for entry in self.entries(location) if entry not in self.history.delivered]
        if unread and location not in pair.quarantined:
            raise Violation(f"{unread} are done, and were neither handed out nor quarantined")

    def _check_quarantined(self, key: str, body: bytes) -> None:
        """Check that only unreadable batches go to quarantine, and that a note has the keys of their copies."""
        history = self.history
        if key.endswith(".json"):
            note = json.loads(body)
            source, keys = object_key(note["location"]), note.get("keys", ())
            if source not in history.damaged:
                raise Violation(f"the good batch {self.name(source)} is quarantined: {note['reason']}")
            if (not keys and source not in history.gone) or any(each not in self._objects for each in keys):
                raise Violation(f"the note of {self.name(source)} names no copy that is there: {note}")
            self.pair_of[note["location"]].quarantined.add(note["location"])
            return
        name = key.rpartition("/")[2].removesuffix(".batch")
        [source] = {object_key(each) for each in self.pair_of if quarantine_name(each) == name}
        history.entries[key] = history.entries[source]
        history.damaged[key] = history.damaged.get(source, b"")

    # --- damage by a scenario

    def damage(self, key: str, body: bytes | None) -> None:
        """Damage an object without a write; None deletes it."""
        self.history.damaged[key] = self._objects[key].body
        if body is None:
            del self._objects[key]
            self.history.gone.add(key)
        else:
            super()._store(key, body)

    def mend(self, location: str) -> None:
        """Repair the copy of a quarantined batch."""
        [pair] = [each for each in self.pairs if location in each.places]
        key = f"{quarantine_folder(pair.queue[0].pair.producer)}/{quarantine_name(location)}.batch"
        super()._store(key, self.history.damaged[key])

    async def delete(self, key: str) -> None:
        if (pair := self.pair_of.get(key)) is not None and key in pair.open:
            violation = Violation(f"the live batch {self.name(key)} is deleted")
            self._tell(violation)
            raise violation
        self.history.deleted.add(key)
        await super().delete(key)

    def _tell(self, violation: Violation) -> None:
        if self._world.failure is None:
            self._world.failure = violation
        self._world.changed()

    # --- what collectors hand out and acknowledge

    def hand_out(self, location: str, owner: str, epoch: int) -> None:
        """A collector hands out a batch; in ordered mode the sink compares epochs."""
        pair, history = self.pair_of[location], self.history
        pair.hand_out(location, owner, epoch)
        if self.ordered and is_batch_key(location, PREFIX) and pair.is_held(location, owner, epoch):
            for entry in self.entries(location):
                if entry not in history.delivered:
                    _follows(history.last_delivered, entry, "handed out")
        history.delivered.update(self.entries(location))

    def acknowledge(self, locations: Collection[str], owner: str) -> None:
        """An ack of these has succeeded."""
        if open_ones := [self.name(each) for each in locations if self.pair_of[each].done.get(each) != owner]:
            raise Violation(f"{open_ones} are said to be acknowledged, and are not")

    def undelivered(self) -> set[str]:
        """Return entries that are confirmed or queued, can be read, and were not handed out yet."""
        history = self.history
        return (history.confirmed | history.queued) - history.delivered - history.entries_of(history.damaged)

    def check_end(self) -> None:
        """Check the end of a run, when nothing is running any more."""
        history = self.history
        delivered = history.delivered | history.entries_of(history.gone)
        if lost := history.confirmed - delivered:
            raise Violation(f"{sorted(lost)} were confirmed and never delivered")
        if lost := history.queued - delivered:
            raise Violation(f"{sorted(lost)} were queued and never delivered")
        if phantom := history.refused & history.queued:
            raise Violation(f"{sorted(phantom)} are queued, and their producer was told that they are not")
        self._check_empty(self.pairs)

    def _check_empty(self, pairs: Iterable[WatchedPair]) -> None:
        left = [self.name(key) for key in self._objects if is_batch_key(key, PREFIX)]
        if left and any(each.is_read and each.producer.get("data_path_prefix") for each in pairs):
            raise Violation(f"{sorted(left)} are left behind")
        for each in pairs:
            if each.producer["pending"] or each.consumer["done"] or each.consumer["claimed"]:
                raise Violation(f"the queue is not empty: {each.producer}, {each.consumer}")


def _follows(last: dict[str, int], entry: str, verb: str) -> None:
    sender, _, number = entry.rpartition(".")
    if last.get(sender, -1) > int(number):
        raise Violation(f"{entry} is {verb} after {sender}.{last[sender]}")
    last[sender] = int(number)
