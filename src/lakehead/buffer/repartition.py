"""Changing the number of partitions, only while nothing is left in the queue, so that the order of a key is kept."""

from dataclasses import dataclass, replace

from lakehead.buffer.compare_and_set import until_written
from lakehead.buffer.config import MAX_PARTITIONS
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import InvalidCall, QueueContended
from lakehead.buffer.inspection import partitions_found
from lakehead.buffer.layout import ManifestKeys
from lakehead.buffer.manifests import ManifestPair
from lakehead.errors import Misconfigured, OutcomeUnknown
from lakehead.wire.queue_manifests import ProducerManifest


@dataclass(frozen=True, kw_only=True)
class Repartition:
    """Seals every drained partition against appends, then opens as many as requested.

    After a crash, run it again; until then ingestors are refused, and nothing is lost. Of two concurrent changes the
    one that began later wins: every partition keeps the number of the last change, and the other change stops where it
    finds a higher number than its own.

    Every write raises the partition's `gc` number. Orphan GC raises only those of the partitions that exist when it
    runs. So a batch that was stored for a partition that is closed, or not open yet, is stored again when the partition
    is opened.
    """

    manifest_path: str
    deps: BufferDeps
    """From `ObjectStoreConfig.deps`."""

    async def run(self, partitions: int) -> None:
        """Give the queue that many partitions.

        Raises `InvalidCall` while something is not acknowledged, and `QueueContended` if another change runs at the
        same time; the queue is then left to that other change. After `Unavailable` or `OutcomeUnknown`, run it again.
        """
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise Misconfigured(f"A queue can have 1 to {MAX_PARTITIONS} partitions, not {partitions}.")
        change, pairs = await self._seal_all()
        pairs += [self._pair(number) for number in range(len(pairs), partitions)]
        # The first partition has the number of partitions: it is updated before any other is opened, and opened last.
        await self._update(pairs[0], change, partitions=partitions, sealed=True)
        for number, pair in reversed(list(enumerate(pairs))):
            await self._update(pair, change, partitions=partitions, sealed=number >= partitions)

    async def _seal_all(self) -> tuple[int, list[ManifestPair]]:
        """Seal every partition, or leave all as they were; return the number of this change, and the partitions."""
        pairs = [self._pair(0)]
        sealed: list[ManifestPair] = []
        change = 0
        for pair in pairs:
            try:
                before = await self._seal(pair, change or None)
            except InvalidCall:
                for each in sealed:
                    await self._update(each, change, sealed=False)
                raise
            change = change or before.partitions_version + 1
            if not before.sealed:
                sealed.append(pair)
            # If the first manifest has no number, it was not written by an ingestor of ours: count what is there.
            partitions = before.partitions
            if pair is pairs[0] and not partitions:
                partitions = 1 + max(await partitions_found(self.manifest_path, self.deps), default=0)
            pairs += [self._pair(number) for number in range(len(pairs), partitions)]
        return change, pairs

    def _pair(self, number: int) -> ManifestPair:
        return ManifestPair.of(ManifestKeys.of(self.manifest_path, number), self.deps)

    async def _seal(self, pair: ManifestPair, change: int | None) -> ProducerManifest:
        """Seal a drained partition under the number of this change, or, at the first partition, under a new number.

        Returns the manifest from before. A partition that an earlier change has sealed is sealed again under the new
        number, so that the earlier change can no longer open it.
        """
        before: ProducerManifest | None = None  # what an attempt of unknown outcome was to replace
        number = 0

        async def attempt() -> ProducerManifest | None:
            nonlocal before, number
            # In this order: what a cleanup removes from `done` between the two reads is not pending in the second.
            done = set((await pair.consumer.read()).manifest.done)
            current = await pair.producer.read()
            now = current.manifest
            if before is not None and now.partitions_version == number:
                if change is not None:
                    return before
                # Another change may have used the same number; under a new one it is certainly ours to undo.
                now = replace(now, sealed=before.sealed)
            self._check_not_overtaken(pair, now, change)
            if waiting := set(now.pending) - done:
                raise InvalidCall(
                    f"{len(waiting)} locations of {pair.producer.key} are not acknowledged yet. Stop the ingestors, "
                    "let the collectors finish, and try again."
                )
            number = now.partitions_version + 1 if change is None else change
            sealed = replace(now, sealed=True, partitions_version=number, gc=now.gc + 1)
            try:
                written = await pair.producer.write(current, sealed)
            except OutcomeUnknown:
                before = now
                raise
            return now if written else None

        return await until_written(attempt, self.deps, self.deps.retries.commands, action=f"seal {pair.producer.key}")

    async def _update(self, pair: ManifestPair, change: int, *, sealed: bool, partitions: int | None = None) -> None:
        def with_settings(now: ProducerManifest) -> ProducerManifest:
            self._check_not_overtaken(pair, now, change)
            changed = replace(
                now,
                sealed=sealed,
                partitions=now.partitions if partitions is None else partitions,
                partitions_version=change,
            )
            return now if changed == now else replace(changed, gc=now.gc + 1)

        await pair.producer.update(with_settings, self.deps.retries.commands, action="change the partitions of")

    def _check_not_overtaken(self, pair: ManifestPair, now: ProducerManifest, change: int | None) -> None:
        if change is not None and now.partitions_version > change:
            raise QueueContended(
                f"Another change of the number of partitions of {self.manifest_path} has started since, and has "
                f"overtaken this one at {pair.producer.key}. Wait for it to finish, then try again if necessary."
            )
