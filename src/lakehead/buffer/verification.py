"""Checking the consistency of a queue: every fault with an explanation. Nothing is changed."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.inspection import (
    PartitionStatus,
    QuarantineNotes,
    inspect_partitions,
    missing_objects,
    quarantine_notes,
    stored_batches,
)
from lakehead.buffer.layout import object_key, owner_key
from lakehead.buffer.ownership import PrefixOwner
from lakehead.storage.object_keys import is_valid_key
from lakehead.storage.port import ListedObject
from lakehead.wire.errors import Unreadable


@dataclass(frozen=True, slots=True)
class QueueFault:
    """An inconsistency of a queue."""

    kind: str
    """unreadable, twice, missing, claim, owner, prefix, partitions or quarantine."""

    manifest: str
    """The key of the manifest or note where it was found."""

    sentence: str
    """The explanation, for people."""

    location: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationReport:
    """The result of a verification."""

    partitions: int
    waiting: int
    """Locations that are not acknowledged yet."""

    unqueued: int
    """Stored batches that are neither pending nor done: they are about to be queued, or are orphans for `gc`."""

    unqueued_bytes: int
    set_aside: int
    """Batches in quarantine."""

    faults: tuple[QueueFault, ...]


async def verify(manifest_path: str, deps: BufferDeps) -> VerificationReport:
    """Check a queue. Raises `Misconfigured` if it does not exist.

    Others may write while it is read, so that parts of it do not match. If a check fails, everything is read a second
    time, and only faults that were found both times are reported.
    """
    report = await _checked(manifest_path, deps)
    if not report.faults:
        return report
    earlier = set(report.faults)
    report = await _checked(manifest_path, deps)
    return replace(report, faults=tuple(fault for fault in report.faults if fault in earlier))


async def _checked(manifest_path: str, deps: BufferDeps) -> VerificationReport:
    partitions = await inspect_partitions(manifest_path, deps, search=True)
    stored = await stored_batches(partitions, deps)
    not_listed = {location for each in partitions for location in each.waiting if location not in stored}
    missing = await missing_objects(not_listed, deps)
    quarantined = await quarantine_notes(manifest_path, deps)
    unqueued = _unqueued(partitions, stored)
    faults = [
        *_settings(partitions),
        *await _prefix_owner(partitions, manifest_path, deps),
        *_in_two_partitions(partitions),
        *(fault for each in partitions for fault in _in_partition(each, missing)),
        *_in_quarantine(quarantined),
    ]
    return VerificationReport(
        partitions=len(partitions),
        waiting=sum(len(each.waiting) for each in partitions),
        unqueued=len(unqueued),
        unqueued_bytes=sum(each.size for each in unqueued),
        set_aside=len(quarantined.readable),
        faults=tuple(faults),
    )


def _unqueued(partitions: Sequence[PartitionStatus], stored: Mapping[str, ListedObject]) -> list[ListedObject]:
    queued = {location for each in partitions for location in (*each.pending, *each.done)}
    return [batch for location, batch in stored.items() if location not in queued]


def _in_partition(partition: PartitionStatus, missing: Collection[str]) -> Iterator[QueueFault]:
    keys = partition.keys
    yield from (QueueFault("unreadable", key, error) for key, error in partition.unreadable.items())
    for location in partition.waiting:
        if not is_valid_key(object_key(location)):
            problem = "is not a valid key"
        elif location in missing:
            problem = "is not in the store"
        else:
            continue
        yield QueueFault(
            "missing",
            keys.producer,
            f"{location} is pending in {keys.producer} and {problem}: its entries cannot be read, and a collector will "
            "move it to quarantine.",
            location,
        )
    for name, locations in (("pending", partition.pending), ("done", partition.done)):
        key = keys.producer if name == "pending" else keys.consumer
        for location in _duplicates(locations):
            yield QueueFault("twice", key, f"{location} is duplicated in {name!r} of {key}.", location)
    yield from _claims(partition)


def _claims(partition: PartitionStatus) -> Iterator[QueueFault]:
    key, now = partition.keys.consumer, partition.consumer
    if now is None:
        return
    known = {*partition.pending, *partition.done}
    for location in now.claimed:
        owner = now.owners.get(location)
        if partition.producer is not None and location not in known:
            yield QueueFault("claim", key, f"{location} is claimed in {key} but neither pending nor done.", location)
        # A writer that knows no versions knows no owners either.
        if owner is None and now.version:
            yield QueueFault(
                "owner",
                key,
                f"The claim on {location} in {key} has no owner: a collector wrote it that does not support owners, so "
                "it can neither be fenced nor fence others.",
                location,
            )
        if owner is not None and now.owner is not None and owner != now.owner:
            yield QueueFault(
                "owner",
                key,
                f"The claim on {location} in {key} belongs to {owner}, but only {now.owner}, which reads the queue in "
                "order, may claim.",
                location,
            )
    for location in sorted(now.owners.keys() - now.claimed.keys()):
        yield QueueFault("owner", key, f"{location} has an owner in {key} but is not claimed.", location)


def _in_two_partitions(partitions: Sequence[PartitionStatus]) -> Iterator[QueueFault]:
    """Find locations in two partitions: they are handed out twice."""
    first: dict[str, str] = {}
    for each in partitions:
        for location in dict.fromkeys(each.pending):
            other = first.setdefault(location, each.keys.producer)
            if other != each.keys.producer:
                yield QueueFault(
                    "twice",
                    each.keys.producer,
                    f"{location} is pending in {other} and in {each.keys.producer}, and is handed out by both.",
                    location,
                )


def _settings(partitions: Sequence[PartitionStatus]) -> Iterator[QueueFault]:
    """Check that all partitions agree on the settings of the queue."""
    root = partitions[0].producer
    if root is None:
        return
    first, count = partitions[0].keys.producer, root.partitions or 1
    for each in partitions:
        now, key = each.producer, each.keys.producer
        if now is None:
            continue
        if each.number and now.data_path_prefix not in (None, root.data_path_prefix):
            yield QueueFault(
                "prefix",
                key,
                f"{key} has its batches under {now.data_path_prefix!r}, but {first} under {root.data_path_prefix!r}: "
                "a queue has one prefix.",
            )
        if now.partitions not in (0, count):
            yield QueueFault(
                "partitions",
                key,
                f"According to {key} the queue has {now.partitions} partitions, according to {first} {count}.",
            )
        if now.sealed and each.number < count:
            yield QueueFault(
                "partitions",
                key,
                f"{key} is sealed, so ingestors are refused: a repartitioning was not finished. "
                "Finish it: run the `repartition` command again with the same number.",
            )
        if each.number >= count and each.waiting:
            yield QueueFault(
                "partitions",
                key,
                f"{key} has unacknowledged locations but is not one of the {count} partitions of {first}: "
                "no collector reads it.",
            )


async def _prefix_owner(
    partitions: Sequence[PartitionStatus], manifest_path: str, deps: BufferDeps
) -> list[QueueFault]:
    """Check that the prefix of the batches belongs to this queue."""
    root = partitions[0].producer
    prefix = root.data_path_prefix if root else None
    if prefix is None or not is_valid_key(owner_key(prefix)):
        return []
    try:
        owner = await PrefixOwner(prefix, manifest_path, deps).stored()
    except Unreadable as error:
        return [QueueFault("unreadable", owner_key(prefix), str(error))]
    if owner is None or owner.manifest_path == manifest_path:
        return []
    sentence = (
        f"{manifest_path} has its batches under {prefix!r}, which belongs to {owner.manifest_path} according to "
        f"{owner_key(prefix)}: a prefix belongs to one queue."
    )
    return [QueueFault("prefix", manifest_path, sentence)]


def _in_quarantine(quarantined: QuarantineNotes) -> Iterator[QueueFault]:
    yield from (QueueFault("unreadable", key, error) for key, error in quarantined.unreadable.items())
    for key, note in quarantined.readable.items():
        if gone := [part for part in note.keys if part not in quarantined.stored_keys]:
            yield QueueFault(
                "quarantine",
                key,
                f"The copy of {note.location} in quarantine is missing: {gone[0]} is not in the store.",
                note.location,
            )


def _duplicates(locations: Sequence[str]) -> list[str]:
    return [location for location, times in Counter(locations).items() if times > 1]
