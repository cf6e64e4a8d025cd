"""Changing how many partitions a queue has: only when nothing is left in it, so that no key's order is broken."""

from dataclasses import dataclass, replace

from lakehead.buffer.config import MOST_PARTITIONS
from lakehead.buffer.errors import Contended, Refused
from lakehead.buffer.inspection import partitions_found
from lakehead.buffer.layout import Pair
from lakehead.buffer.manifests import PairFiles, Stored
from lakehead.buffer.means import Means
from lakehead.buffer.producer import APPENDS
from lakehead.errors import Misconfigured, OutcomeUnknown
from lakehead.storage.backoff import Backoff
from lakehead.wire.queue_manifests import ProducerManifest


@dataclass(frozen=True, kw_only=True)
class Repartition:
    """Seals every pair that is drained, then opens those that there are to be.

    A crash between is made up for by running it again; until then ingestors are refused, and nothing is lost. Of two
    at once the one that began later stands: every pair keeps the number of the last change, and the other one stops
    where it meets a higher number than its own.

    Every write raises the pair's `gc` number. Orphan GC raises only those of the pairs that there are when it runs, so
    a batch that was stored for a pair which is closed, or not open yet, is stored again when the pair is opened.
    """

    manifest_path: str
    means: Means
    """Of `ObjectStoreConfig.means`."""

    backoff: Backoff = APPENDS

    async def run(self, partitions: int) -> None:
        """Give the queue that many partitions.

        Raises `Refused` while something is not acknowledged yet, and `Contended` if somebody else changes the number
        at the same time; then the queue is as that other change leaves it.
        """
        if not 1 <= partitions <= MOST_PARTITIONS:
            raise Misconfigured(f"A queue has from 1 to {MOST_PARTITIONS} partitions, not {partitions}.")
        change, pairs = await self._seal_all()
        pairs += [self._pair(number) for number in range(len(pairs), partitions)]
        # The first pair tells how many there are: it says so before any other is opened, and is opened last.
        await self._replace(pairs[0], change, partitions=partitions, sealed=True)
        for number, pair in reversed(list(enumerate(pairs))):
            await self._replace(pair, change, partitions=partitions, sealed=number >= partitions)

    async def _seal_all(self) -> tuple[int, list[PairFiles]]:
        """Seal every pair that the queue has, or leave all as they were; the number of this change, and the pairs."""
        pairs = [self._pair(0)]
        sealed: list[PairFiles] = []
        change = 0
        for pair in pairs:
            try:
                was = await self._seal(pair, change or None)
            except Refused:
                for each in sealed:
                    await self._replace(each, change, sealed=False)
                raise
            change = change or was.partitions_version + 1
            if not was.sealed:
                sealed.append(pair)
            # A first manifest that does not tell was never written by us, or by others since: what is there counts.
            partitions = was.partitions
            if pair is pairs[0] and not partitions:
                partitions = 1 + max(await partitions_found(self.manifest_path, self.means), default=0)
            pairs += [self._pair(number) for number in range(len(pairs), partitions)]
        return change, pairs

    def _pair(self, number: int) -> PairFiles:
        return PairFiles.of(Pair.of(self.manifest_path, number), self.means)

    async def _seal(self, pair: PairFiles, change: int | None) -> ProducerManifest:
        """Seal a pair that is drained, under the number of this change, or at the first pair under a new one.

        Returns what the manifest was before. A pair that an earlier change has sealed is sealed again, under the new
        number, so that the earlier one cannot open it any more.
        """
        before: ProducerManifest | None = None  # what a try of ours without an answer was to take the place of
        number = 0
        for pause in self.backoff.pauses(self.means.random):
            if pause:
                await self.means.clock.sleep(pause)
            # In this order: what a clean-up between the two has taken from `done` is not pending in the second.
            done = set((await pair.consumer.read()).manifest.done)
            seen = await pair.producer.read()
            now = seen.manifest
            if before is not None and now.partitions_version == number:
                if change is not None:
                    return before
                # Perhaps another change has drawn the same number; under a new one it is surely ours to undo.
                now = replace(now, sealed=before.sealed)
            self._check_not_overtaken(pair, now, change)
            if left := set(now.pending) - done:
                raise Refused(
                    f"{len(left)} locations of {pair.producer.key} are not acknowledged yet. Stop the ingestors, let "
                    "collectors finish, and try again."
                )
            number = now.partitions_version + 1 if change is None else change
            written = await self._written(pair, seen, replace(now, sealed=True, partitions_version=number))
            if written:
                return now
            if written is None:
                before = now
        raise Contended(f"{pair.producer.key} could not be sealed: others write it all the time.")

    async def _replace(self, pair: PairFiles, change: int, *, sealed: bool, partitions: int | None = None) -> None:
        for pause in self.backoff.pauses(self.means.random):
            if pause:
                await self.means.clock.sleep(pause)
            seen = await pair.producer.read()
            now = seen.manifest
            self._check_not_overtaken(pair, now, change)
            wanted = replace(
                now,
                sealed=sealed,
                partitions=now.partitions if partitions is None else partitions,
                partitions_version=change,
            )
            if wanted == now or await self._written(pair, seen, wanted):
                return
        raise Contended(f"{pair.producer.key} could not be changed: others write it all the time.")

    def _check_not_overtaken(self, pair: PairFiles, now: ProducerManifest, change: int | None) -> None:
        if change is not None and now.partitions_version > change:
            raise Contended(
                f"Somebody else has begun to change the number of partitions of {self.manifest_path} since, and "
                f"{pair.producer.key} is theirs now. See what they made of it, and try again if that is not it."
            )

    async def _written(
        self, pair: PairFiles, seen: Stored[ProducerManifest], manifest: ProducerManifest
    ) -> bool | None:
        """Whether the manifest was written, under the next `gc` number; None if nobody can tell: the next read does."""
        try:
            return await pair.producer.write(seen, replace(manifest, gc=manifest.gc + 1))
        except OutcomeUnknown:
            return None
