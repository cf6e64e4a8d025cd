"""What a spool knows of the boots of agents, so that it need not ask the object store about each batch.

Of a boot that it does not know, the spool asks the object store once for everything that was accepted under it, or is
void, or is about to become so. From then on only the spool itself adds to that: what it lands, and what garbage
collection makes void in it first. Whatever is known is too much rather than too little: it only makes the spool ask.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from lakehead.errors import LakeheadError, Unavailable
from lakehead.storage.port import Store
from lakehead.to_its_end import to_its_end
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import Unreadable
from lakehead.wire.spans import merged
from lakehead.wire.spool_records import BOOTS, KnownBoot, parse_known_boot

LOG = logging.getLogger(__name__)
MOST_SPANS = 256
"""Spans of one boot; with more, the lowest are joined, and the store is asked about what lies between."""

ASKED_AT_ONCE = 64
"""Boots about which the store is asked at the same time."""

MOST_WAITING = 1_000
"""Boots about which the store is to be asked. Batches of more are refused until it has answered."""

Boot = tuple[str, str]


@dataclass(slots=True, kw_only=True)
class KnownBoots:
    """The boots that one spool knows, in memory and on its disk."""

    disk: Store
    store: Store
    """The object store of the authority."""

    most: int = 5_000
    """Boots that are remembered. The one that was used least recently is forgotten, and asked for again."""

    most_recent: int = 16
    """Landed batches of each boot that are remembered whole: as many as an agent may have under way."""

    _boots: dict[Boot, KnownBoot] = field(default_factory=dict, init=False)
    """The least recently used first."""

    _learning: dict[Boot, list[IdentityManifest]] = field(default_factory=dict, init=False)
    """What was landed of a boot since the store was asked about it."""

    _asking: dict[Boot, "asyncio.Task[KnownBoot]"] = field(default_factory=dict, init=False)
    """The store is asked once however many batches of a boot come, and goes on when the first one waits no longer: to
    list a boot with millions of batches may take longer than a request."""

    _asked: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(ASKED_AT_ONCE), init=False)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def load(self) -> None:
        """Read from the disk what was known before a restart."""
        found = [each async for page in self.disk.list(BOOTS) for each in page]
        for each in sorted(found, key=lambda one: one.modified_ns):
            boot, stored = parse_known_boot(each.key), await self.disk.get(each.key)
            if boot is None or stored is None:
                continue
            try:
                self._boots[boot] = KnownBoot.decode(stored.body, each.key)
            except Unreadable as error:
                LOG.warning("The store is asked again about a boot. %s", error)
                await self.disk.delete(each.key)

    async def forget_all(self) -> None:
        """Forget every boot, on the disk too: others may have changed the store since."""
        async with self._writing:
            async for page in self.disk.list(BOOTS):
                for each in page:
                    await self.disk.delete(each.key)
            self._boots.clear()

    async def of(self, identity: BatchIdentity) -> KnownBoot:
        """Return what is known of the boot of an identity; ask the store first if that is nothing.

        Raises `Unavailable` if the store cannot be asked, or the disk cannot be written.
        """
        boot = (identity.agent_id, identity.boot_id)
        if (found := self._boots.pop(boot, None)) is not None:
            self._boots[boot] = found
            return found
        if (asking := self._asking.get(boot)) is None:
            if len(self._asking) >= MOST_WAITING:
                raise Unavailable(f"The store is being asked about {len(self._asking):,} boots. Try again later.")
            asking = self._asking[boot] = asyncio.ensure_future(self._learn(boot))
            asking.add_done_callback(lambda task: self._answered(boot, task))
        return await asyncio.shield(asking)

    def _answered(self, boot: Boot, task: "asyncio.Task[KnownBoot]") -> None:
        del self._asking[boot]
        if not task.cancelled():
            task.exception()  # told to whoever waits, if anybody still does

    async def close(self) -> None:
        """Ask the store for nothing more, and let what is being written end."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def landed(self, manifests: Sequence[IdentityManifest]) -> None:
        """Remember on the disk that batches are in the store. Only then may they leave the spool."""
        by_boot: dict[Boot, list[IdentityManifest]] = {}
        for each in manifests:
            by_boot.setdefault((each.agent_id, each.boot_id), []).append(each)
        async with self._writing:
            for boot, some in by_boot.items():
                if boot in self._learning:
                    self._learning[boot].extend(some)
                if (known := self._boots.get(boot)) is not None:
                    await self._remember(boot, self._with(known, some))

    async def _remember(self, boot: Boot, after: KnownBoot) -> None:
        """Write down what is known of a boot. If there is no room, the boot is forgotten: to remove a file needs none,
        and batches that have landed must be able to leave a full disk.
        """
        try:
            await self.disk.put(after.key, after.encode())
            self._boots[boot] = after
        except LakeheadError as error:
            LOG.warning("The store is asked again about a boot, which could not be written down: %s", error)
            await self.disk.delete(after.key)
            self._boots.pop(boot, None)

    async def _learn(self, boot: Boot) -> KnownBoot:
        async with self._asked:
            landed = self._learning[boot] = []
            try:
                found = await self._in_store(boot)
            finally:
                del self._learning[boot]
            known = self._boots[boot] = self._with(found, landed)
            await to_its_end(self._write_down(boot))
        return known

    async def _write_down(self, boot: Boot) -> None:
        async with self._writing:
            await self._forget_old_ones()
            if (known := self._boots.get(boot)) is not None:
                await self.disk.put(known.key, known.encode())

    async def _in_store(self, boot: Boot) -> KnownBoot:
        """Ask the store. What is to become void is listed first: what has become so meanwhile is listed after it."""
        voiding: set[tuple[int, int]] = set()
        spans: tuple[tuple[int, int], ...] = ()
        async for page in self.store.list(keys.voiding_folder(*boot)):
            voiding.update((found.seq_start, found.seq_end) for each in page if (found := keys.parse_voiding(each.key)))
        async for page in self.store.list(keys.accepted_folder(*boot)):
            here = [found for each in page if (found := keys.parse_accepted(each.key))]
            voiding.difference_update((each.seq_start, each.seq_end) for each in here)
            spans = _bounded([*spans, *((each.seq_start, each.seq_end + 1) for each in here)])
        return KnownBoot(agent_id=boot[0], boot_id=boot[1], spans=spans, voiding=tuple(sorted(voiding)))

    async def _forget_old_ones(self) -> None:
        while len(self._boots) > self.most:
            oldest = next(iter(self._boots))
            try:
                await self.disk.delete(self._boots[oldest].key)
            except LakeheadError as error:
                LOG.warning("A boot that was not used for long cannot be forgotten: %s", error)
                return
            self._boots.pop(oldest, None)

    def _with(self, known: KnownBoot, landed: Sequence[IdentityManifest]) -> KnownBoot:
        spans = [*known.spans, *((each.seq_start, each.seq_end + 1) for each in landed)]
        news = {each.identity for each in landed}
        recent = (*(each for each in known.recent if each.identity not in news), *landed)
        return msgspec.structs.replace(known, spans=_bounded(spans), recent=recent[-self.most_recent :])


def _bounded(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    whole = merged(spans)
    too_many = len(whole) - MOST_SPANS
    return whole if too_many <= 0 else ((whole[0][0], whole[too_many][1]), *whole[too_many + 1 :])
