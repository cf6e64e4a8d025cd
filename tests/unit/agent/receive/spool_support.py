"""The receivers over a real spool, on loopback."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lakehead.agent.metrics import AgentMetrics
from lakehead.agent.receive.http_app import ReceiverApp
from lakehead.agent.receive.http_server import ReceiverServer
from lakehead.agent.receive.ports import Recorder
from lakehead.agent.receive.receiver_settings import ListenerSettings, ReceiverSettings
from lakehead.agent.spool import Spool
from lakehead.agent.spool_disk import open_local_spool_disk
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.wire.frame import decode_frame
from lakehead.wire.record_schemas import FrameKind
from tests.unit.agent.receive.app_support import ScriptedAgent

MIB = 1 << 20


@dataclass(frozen=True)
class SpoolReceivers:
    spool: Spool
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def records(self, kind: FrameKind) -> pa.Table:
        """All records of a kind that are in the spool, in the order of their numbers."""
        await self.spool.seal_now()
        found = [await self.spool.read(entry) for entry in self.spool.waiting(kind)]
        return pa.Table.from_batches([decode_frame(batch.body).records for batch in found if batch])


@asynccontextmanager
async def spool_receivers(
    folder: Path,
    *,
    spool_bytes: int = 100 * MIB,
    recorder: Callable[[Spool], Recorder] = lambda spool: spool,
    settings: ReceiverSettings | None = None,
    port: int = 0,
) -> AsyncIterator[SpoolReceivers]:
    clock = SystemClock()
    kept = SpoolSettings(spool_bytes=spool_bytes, reserve_bytes=1, batch_seconds=60.0)
    with open_local_spool_disk(folder) as disk:
        async with Spool(disk, agent_id="agent-a", clock=clock, ids=RandomIds(), settings=kept) as spool:
            app = ReceiverApp(
                recorder=recorder(spool),
                agent=ScriptedAgent(),
                metrics=AgentMetrics(),
                clock=clock,
                settings=settings or ReceiverSettings(),
            )
            async with ReceiverServer(app, ListenerSettings(port=port)) as server:
                assert server.port is not None
                yield SpoolReceivers(spool, server.port)
            app.close()
