"""Emptying a queue: everything that waits is marked as done and removed, read or not."""

from dataclasses import dataclass, replace

from lakehead.buffer.cleanup import CleanUp
from lakehead.buffer.errors import Contended
from lakehead.buffer.manifests import PairFiles, all_pairs
from lakehead.buffer.means import Means
from lakehead.buffer.producer import APPENDS
from lakehead.errors import OutcomeUnknown
from lakehead.storage.backoff import Backoff


@dataclass(frozen=True, kw_only=True)
class Purge:
    """Takes a queue over from its collectors, marks what waits as done, and cleans up.

    Collectors that hold something are fenced. What is appended meanwhile stays. A crash between is made up for by
    running it again: what was marked is never handed out.
    """

    manifest_path: str
    means: Means
    """Of `ObjectStoreConfig.means`."""

    backoff: Backoff = APPENDS

    async def run(self, *, dry_run: bool = False) -> int:
        """Remove everything that waits; how many locations that were. With `dry_run`, only count them."""
        purged = 0
        for pair in await all_pairs(self.manifest_path, self.means):
            purged += await self._waiting(pair) if dry_run else await self._purge(pair)
        return purged

    async def _waiting(self, pair: PairFiles) -> int:
        done = (await pair.consumer.read()).manifest.done
        return len(set((await pair.producer.read()).manifest.pending).difference(done))

    async def _purge(self, pair: PairFiles) -> int:
        purged = await self._mark_all(pair)
        await CleanUp(files=pair, means=self.means, backoff=self.backoff).run()
        return purged

    async def _mark_all(self, pair: PairFiles) -> int:
        """Mark what waits in one pair as done, nobody's any more; how many locations that were."""
        in_doubt: set[str] = set()
        for pause in self.backoff.pauses(self.means.random):
            if pause:
                await self.means.clock.sleep(pause)
            # In this order, as for a claim: what is pending in the second read is done in the first, or waits.
            seen = await pair.consumer.read()
            now = seen.manifest
            done = set(now.done)
            pending = dict.fromkeys((await pair.producer.read()).manifest.pending)
            waiting = [location for location in pending if location not in done]
            if not waiting:
                return len(in_doubt & done)
            marked = replace(
                now,
                claimed={},
                owners={},
                owner=None,
                epoch=now.epoch + 1,
                done=(*now.done, *waiting),
                deliveries={},
                bad_in_a_row=0,
            )
            try:
                if await pair.consumer.write(seen, marked):
                    return len(in_doubt & done) + len(waiting)
            except OutcomeUnknown:
                in_doubt.update(waiting)  # the next read tells
        raise Contended(f"{pair.consumer.key} could not be purged: others write it all the time. Stop the collectors.")
