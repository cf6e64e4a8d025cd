"""How a queue stands: for operators, and for the metrics that only a look at the store can tell."""

from dataclasses import dataclass

from lakehead.buffer.layout import is_batch, object_key
from lakehead.buffer.manifests import PairFiles, all_pairs
from lakehead.buffer.means import Means
from lakehead.storage.keys import is_legal


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    """A claim as it stands in the consumer manifest."""

    location: str
    owner: str | None
    age_seconds: float
    """Since its last heartbeat, by our clock."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """How one partition stands."""

    manifest: str
    waiting: tuple[str, ...]
    """Locations that are not acknowledged yet, in the order of the queue; claimed ones among them."""

    claims: tuple[ClaimStatus, ...]
    done: tuple[str, ...]
    """Acknowledged locations that wait for a clean-up."""

    owner: str | None
    epoch: int
    batch_bytes: int
    """Bytes of the queue's own batches that wait."""

    oldest_seconds: float | None
    """How long ago the first that waits was stored, by the store's clock against ours; None where nothing waits."""


async def status(manifest_path: str, means: Means) -> list[PartitionStatus]:
    """How each partition of a queue stands now. It only reads, and notes length and age in the counts."""
    found = [await _partition(pair, means) for pair in await all_pairs(manifest_path, means)]
    for each in found:
        means.counts.queue_length[each.manifest] = len(each.waiting)
        means.counts.queue_bytes[each.manifest] = each.batch_bytes
        means.counts.oldest_seconds[each.manifest] = each.oldest_seconds or 0.0
    return found


async def _partition(pair: PairFiles, means: Means) -> PartitionStatus:
    # The consumer manifest first, as for a claim: what is done in it was never waiting in the other.
    consumer = (await pair.consumer.read()).manifest
    producer = (await pair.producer.read()).manifest
    done = set(consumer.done)
    waiting = tuple(location for location in dict.fromkeys(producer.pending) if location not in done)
    now_ns = means.clock.now_ns()
    heads = [await means.store.head(object_key(waiting[0]))] if waiting and is_legal(object_key(waiting[0])) else []
    ages = [max(0.0, (now_ns - head.modified_ns) / 1e9) for head in heads if head is not None]
    return PartitionStatus(
        manifest=pair.producer.key,
        waiting=waiting,
        claims=tuple(
            ClaimStatus(location, consumer.owners.get(location), now_ns / 1e9 - at / 1000)
            for location, at in consumer.claimed.items()
        ),
        done=consumer.done,
        owner=consumer.owner,
        epoch=consumer.epoch,
        batch_bytes=await _bytes(waiting, producer.data_path_prefix, means),
        oldest_seconds=ages[0] if ages else None,
    )


async def _bytes(waiting: tuple[str, ...], data_path_prefix: str | None, means: Means) -> int:
    batches = {location for location in waiting if is_batch(location, data_path_prefix)}
    if not batches or data_path_prefix is None:
        return 0
    return sum([each.size async for page in means.store.list(data_path_prefix) for each in page if each.key in batches])
