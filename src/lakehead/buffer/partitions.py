"""Changing how many partitions a queue has: only when nothing is left in it, so that no key's order is broken."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from lakehead.buffer.config import MOST_PARTITIONS
from lakehead.buffer.errors import Contended, Refused
from lakehead.buffer.layout import Pair
from lakehead.buffer.manifests import PairFiles, Stored
from lakehead.buffer.means import Means
from lakehead.errors import Misconfigured, OutcomeUnknown
from lakehead.storage.backoff import Backoff
from lakehead.wire.queue_manifests import ProducerManifest

Change = Callable[[ProducerManifest], ProducerManifest]


@dataclass(frozen=True, kw_only=True)
class Repartition:
    """Seals every pair that is drained, then opens those that there are to be.

    A crash between is made up for by running it again; until then ingestors are refused, and nothing is lost.
    """

    manifest_path: str
    means: Means
    backoff: Backoff

    async def run(self, partitions: int) -> None:
        """Give the queue that many partitions. Raises `Refused` while something is not acknowledged yet."""
        if not 1 <= partitions <= MOST_PARTITIONS:
            raise Misconfigured(f"A queue has from 1 to {MOST_PARTITIONS} partitions, not {partitions}.")
        pairs = await self._seal_all()
        pairs += [self._pair(number) for number in range(len(pairs), partitions)]
        # The first pair tells how many there are: it says so before any other is opened, and is opened last.
        await self._replace(pairs[0], _told(partitions, sealed=True))
        for number, pair in reversed(list(enumerate(pairs))):
            await self._replace(pair, _told(partitions, sealed=number >= partitions))

    async def _seal_all(self) -> list[PairFiles]:
        """Seal every pair that the queue has, or leave all as they were."""
        pairs = [self._pair(0)]
        ours: list[PairFiles] = []
        for pair in pairs:
            try:
                was = await self._seal(pair)
            except Refused:
                for each in ours:
                    await self._replace(each, lambda now: replace(now, sealed=False))
                raise
            if not was.sealed:
                ours.append(pair)
            pairs += [self._pair(number) for number in range(len(pairs), was.partitions)]
        return pairs

    def _pair(self, number: int) -> PairFiles:
        return PairFiles.of(Pair.of(self.manifest_path, number), self.means)

    async def _seal(self, pair: PairFiles) -> ProducerManifest:
        """Seal a pair that is drained; what it was."""
        for pause in self.backoff.pauses(self.means.random):
            if pause:
                await self.means.clock.sleep(pause)
            seen = await pair.producer.read()
            now = seen.manifest
            if now.sealed:
                return now
            left = set(now.pending) - set((await pair.consumer.read()).manifest.done)
            if left:
                raise Refused(
                    f"{len(left)} locations of {pair.producer.key} are not acknowledged yet. Stop the ingestors, let "
                    "collectors finish, and try again."
                )
            if await self._written(pair, seen, replace(now, sealed=True)):
                return now
        raise Contended(f"{pair.producer.key} could not be sealed: others write it all the time.")

    async def _replace(self, pair: PairFiles, change: "Change") -> None:
        for pause in self.backoff.pauses(self.means.random):
            if pause:
                await self.means.clock.sleep(pause)
            seen = await pair.producer.read()
            changed = change(seen.manifest)
            if changed == seen.manifest or await self._written(pair, seen, changed):
                return
        raise Contended(f"{pair.producer.key} could not be changed: others write it all the time.")

    async def _written(self, pair: PairFiles, seen: Stored[ProducerManifest], manifest: ProducerManifest) -> bool:
        try:
            return await pair.producer.write(seen, manifest)
        except OutcomeUnknown:
            return False  # the next read tells


def _told(partitions: int, *, sealed: bool) -> Change:
    return lambda now: replace(now, partitions=partitions, sealed=sealed)
