"""Two queues with the same prefix, as when only `manifest_path` was set: neither may harm the other."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from lakehead.buffer.config import CollectorMode
from lakehead.buffer.manifests import ManifestPair
from lakehead.buffer.queue_cleanup import QueueCleanup
from lakehead.errors import Misconfigured, Unavailable
from tests.sim.buffer_disruptions import collect_orphans, crash, disrupt, pause
from tests.sim.buffer_model import MANIFEST, WatchedStore
from tests.sim.buffer_pipelines import Pipeline, collect, ingest, read_all
from tests.sim.buffer_support import LATEST_WRITE, QUICK, ROUGH, Variant, finish, orphans
from tests.support.simulation import Scenario, World

MANIFESTS = (MANIFEST, "other/manifest.json")


@dataclass
class TwoQueues(Pipeline):
    """Ingestors write to one of two queues, and collectors read both. A refused one has done no harm."""

    async def produce(self, name: str) -> None:
        await ingest(name, self, manifest_path=self.world.random.choice(MANIFESTS))

    async def collect(self) -> None:
        await asyncio.gather(*(self._collect_one(manifest_path) for manifest_path in MANIFESTS))

    async def _collect_one(self, manifest_path: str) -> None:
        with suppress(Misconfigured):
            await collect(self, manifest_path=manifest_path)

    async def drain(self) -> None:
        deps = self.calm_deps()
        await deps.clock.sleep(LATEST_WRITE)
        for manifest_path in MANIFESTS:
            with suppress(Misconfigured):
                await read_all(self, deps, manifest_path=manifest_path)
            files = ManifestPair.of(self.shared.queues[manifest_path][0].pair, deps)
            await QueueCleanup(pair=files, deps=deps, backoff=QUICK).run()
            with suppress(Misconfigured, Unavailable):
                await orphans(self.variant.orphans, deps, grace=0, manifest_path=manifest_path).run()


async def two_queues(world: World) -> None:
    """Ingestors, collectors and orphan GC of two queues that share a prefix."""
    mode = world.random.choice(list(CollectorMode))
    shared = WatchedStore(world, ordered=mode is CollectorMode.ORDERED, manifests=MANIFESTS)
    sim = TwoQueues(world, Variant(), mode, shared, ROUGH)
    for _ in range(world.random.randint(2, 3)):
        sim.start_producer()
    sim.start_collector()
    await disrupt(sim, (collect_orphans, collect_orphans, pause, crash))
    await finish(sim)


PREFIX_SOUND: dict[str, Scenario] = {"buffer_two_queues": two_queues}
