"""Whether a queue is what it must be: everything that is wrong with it, a sentence each, and nothing changed."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lakehead.buffer.inspection import Notes, Partition, look, missing_objects, notes, stored_batches
from lakehead.buffer.layout import object_key, owner_key
from lakehead.buffer.means import Means
from lakehead.buffer.ownership import PrefixOwner
from lakehead.storage.keys import is_legal
from lakehead.storage.port import Entry
from lakehead.wire.errors import Unreadable


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that must not be."""

    kind: str
    """One word for machines: unreadable, twice, missing, claim, owner, prefix, partitions or quarantine."""

    manifest: str
    """The key of the manifest or note that says so."""

    sentence: str
    location: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found."""

    partitions: int
    waiting: int
    """Locations that are not acknowledged yet."""

    unqueued: int
    """Batches that are stored and neither pending nor done: on their way into the queue, or orphans for `gc`."""

    unqueued_bytes: int
    set_aside: int
    faults: tuple[Fault, ...]


async def verify(manifest_path: str, means: Means) -> Verdict:
    """Check everything that must hold. Raises `Misconfigured` where there is no queue.

    Others go on writing meanwhile, and what is read first may not fit what is read last. So where something is wrong
    all is looked at once more, and only what was wrong both times is a fault.
    """
    verdict = await _judged(manifest_path, means)
    if not verdict.faults:
        return verdict
    earlier = set(verdict.faults)
    verdict = await _judged(manifest_path, means)
    return replace(verdict, faults=tuple(fault for fault in verdict.faults if fault in earlier))


async def _judged(manifest_path: str, means: Means) -> Verdict:
    partitions = await look(manifest_path, means, search=True)
    stored = await stored_batches(partitions, means)
    elsewhere = {location for each in partitions for location in each.waiting if location not in stored}
    missing = await missing_objects(elsewhere, means)
    aside = await notes(manifest_path, means)
    unqueued = _unqueued(partitions, stored)
    faults = [
        *_settings(partitions),
        *await _whose_prefix(partitions, manifest_path, means),
        *_twice_in_queue(partitions),
        *(fault for each in partitions for fault in _in_partition(each, missing)),
        *_in_quarantine(aside),
    ]
    return Verdict(
        partitions=len(partitions),
        waiting=sum(len(each.waiting) for each in partitions),
        unqueued=len(unqueued),
        unqueued_bytes=sum(each.size for each in unqueued),
        set_aside=len(aside.read),
        faults=tuple(faults),
    )


def _unqueued(partitions: Sequence[Partition], stored: Mapping[str, Entry]) -> list[Entry]:
    queued = {location for each in partitions for location in (*each.pending, *each.done)}
    return [entry for location, entry in stored.items() if location not in queued]


def _in_partition(partition: Partition, missing: Collection[str]) -> Iterator[Fault]:
    keys = partition.pair
    yield from (Fault("unreadable", key, why) for key, why in partition.unreadable.items())
    for location in partition.waiting:
        if not is_legal(object_key(location)):
            what = "is no key that a store takes"
        elif location in missing:
            what = "is not in the store"
        else:
            continue
        yield Fault(
            "missing",
            keys.producer,
            f"{location} is pending in {keys.producer} and {what}: its entries are lost to "
            "readers, and a collector will set it aside.",
            location,
        )
    for name, locations in (("pending", partition.pending), ("done", partition.done)):
        key = keys.producer if name == "pending" else keys.consumer
        for location in _repeated(locations):
            yield Fault("twice", key, f"{location} stands more than once in the {name!r} of {key}.", location)
    yield from _claims(partition)


def _claims(partition: Partition) -> Iterator[Fault]:
    key, now = partition.pair.consumer, partition.consumer
    if now is None:
        return
    known = {*partition.pending, *partition.done}
    for location in now.claimed:
        owner = now.owners.get(location)
        if partition.producer is not None and location not in known:
            yield Fault("claim", key, f"{location} is claimed in {key} and is neither pending nor done.", location)
        # Who writes manifests without a version knows of no owners either.
        if owner is None and now.version:
            yield Fault(
                "owner",
                key,
                f"The claim on {location} in {key} has no owner: a collector wrote it that does not know "
                "of owners, and it can neither be fenced nor fence others.",
                location,
            )
        if owner is not None and now.owner is not None and owner != now.owner:
            yield Fault(
                "owner",
                key,
                f"The claim on {location} in {key} is that of {owner}, and the queue is read in order by "
                f"{now.owner}, who alone may claim.",
                location,
            )
    for location in sorted(now.owners.keys() - now.claimed.keys()):
        yield Fault("owner", key, f"{location} has an owner in {key} and is not claimed.", location)


def _twice_in_queue(partitions: Sequence[Partition]) -> Iterator[Fault]:
    """A location in two partitions is handed out twice."""
    first: dict[str, str] = {}
    for each in partitions:
        for location in dict.fromkeys(each.pending):
            other = first.setdefault(location, each.pair.producer)
            if other != each.pair.producer:
                yield Fault(
                    "twice",
                    each.pair.producer,
                    f"{location} is pending in {other} and in {each.pair.producer}, and is handed out by both.",
                    location,
                )


def _settings(partitions: Sequence[Partition]) -> Iterator[Fault]:
    """Whether all pairs say the same of the queue that they are parts of."""
    root = partitions[0].producer
    if root is None:
        return
    first, count = partitions[0].pair.producer, root.partitions or 1
    for each in partitions:
        now, key = each.producer, each.pair.producer
        if now is None:
            continue
        if each.number and now.data_path_prefix not in (None, root.data_path_prefix):
            yield Fault(
                "prefix",
                key,
                f"{key} keeps its batches below {now.data_path_prefix!r}, and {first} below "
                f"{root.data_path_prefix!r}: a queue has one prefix.",
            )
        if now.partitions not in (0, count):
            yield Fault(
                "partitions",
                key,
                f"{key} says that the queue has {now.partitions} partitions, and {first} says {count}.",
            )
        if now.sealed and each.number < count:
            yield Fault(
                "partitions",
                key,
                f"{key} is sealed, so ingestors are refused: a change of the number of partitions was "
                "not finished. Make it once more.",
            )
        if each.number >= count and each.waiting:
            yield Fault(
                "partitions",
                key,
                f"Locations wait in {key}, which is none of the {count} partitions of {first}: no collector reads it.",
            )


async def _whose_prefix(partitions: Sequence[Partition], manifest_path: str, means: Means) -> list[Fault]:
    """Whether the batches lie below a prefix that is this queue's."""
    root = partitions[0].producer
    prefix = root.data_path_prefix if root else None
    if prefix is None or not is_legal(owner_key(prefix)):
        return []
    try:
        owner = await PrefixOwner(prefix, manifest_path, means).stored()
    except Unreadable as error:
        return [Fault("unreadable", owner_key(prefix), str(error))]
    if owner is None or owner.manifest_path == manifest_path:
        return []
    sentence = (
        f"{manifest_path} keeps its batches below {prefix!r}, which {owner_key(prefix)} says is the prefix of "
        f"{owner.manifest_path}: a prefix belongs to one queue."
    )
    return [Fault("prefix", manifest_path, sentence)]


def _in_quarantine(aside: Notes) -> Iterator[Fault]:
    yield from (Fault("unreadable", key, why) for key, why in aside.unreadable.items())
    for key, note in aside.read.items():
        if gone := [part for part in note.keys if part not in aside.there]:
            yield Fault(
                "quarantine",
                key,
                f"What was set aside of {note.location} is not at {gone[0]}, where its note says that it is.",
                note.location,
            )


def _repeated(locations: Sequence[str]) -> list[str]:
    return [location for location, times in Counter(locations).items() if times > 1]
