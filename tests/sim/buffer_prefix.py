"""Two queues whose batches lie below one prefix, as when only `manifest_path` was set: neither may harm the other."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from lakehead.buffer.cleanup import CleanUp
from lakehead.buffer.consumer import Mode
from lakehead.buffer.manifests import PairFiles
from lakehead.errors import Misconfigured, Unavailable
from tests.sim.buffer_model import MANIFEST, WatchedStore
from tests.sim.buffer_pipelines import Pipeline, collect, ingest, read_all
from tests.sim.buffer_scene import LATEST_WRITE, QUICK, ROUGH, Variant, come_to_rest, orphans
from tests.sim.buffer_troubles import collect_orphans, crash, pause, trouble
from tests.sim.world import Scenario, World

MANIFESTS = (MANIFEST, "other/manifest.json")


@dataclass
class TwoQueues(Pipeline):
    """Ingestors are of one of two queues, and collectors read both. Who is refused has done no harm."""

    async def produce(self, name: str) -> None:
        await ingest(name, self, manifest_path=self.world.random.choice(MANIFESTS))

    async def collect(self) -> None:
        await asyncio.gather(*(self._collect_one(manifest_path) for manifest_path in MANIFESTS))

    async def _collect_one(self, manifest_path: str) -> None:
        with suppress(Misconfigured):
            await collect(self, manifest_path=manifest_path)

    async def drain(self) -> None:
        means = self.calm_means()
        await means.clock.sleep(LATEST_WRITE)
        for manifest_path in MANIFESTS:
            with suppress(Misconfigured):
                await read_all(self, means, manifest_path=manifest_path)
            files = PairFiles.of(self.shared.queues[manifest_path][0].pair, means)
            await CleanUp(files=files, means=means, backoff=QUICK).run()
            with suppress(Misconfigured, Unavailable):
                await orphans(self.variant.orphans, means, grace=0, manifest_path=manifest_path).run()


async def two_queues(world: World) -> None:
    """Ingestors, collectors and orphan GC of two queues that share a prefix."""
    mode = world.random.choice(list(Mode))
    shared = WatchedStore(world, ordered=mode is Mode.ORDERED, manifests=MANIFESTS)
    scene = TwoQueues(world, Variant(), mode, shared, ROUGH)
    for _ in range(world.random.randint(2, 3)):
        scene.start_producer()
    scene.start_collector()
    await trouble(scene, (collect_orphans, collect_orphans, pause, crash))
    await come_to_rest(scene)


PREFIX_SOUND: dict[str, Scenario] = {"buffer_two_queues": two_queues}
