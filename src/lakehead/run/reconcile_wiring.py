"""Opens the reconciler of a configuration: the gateway's store, and the pipelines that land what it accepts."""

import asyncio
import platform
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

from lakehead.buffer.deps import BufferDeps
from lakehead.clock import Clock, SystemClock
from lakehead.errors import Misconfigured
from lakehead.gateway.landing_queue import BufferedLandingQueue
from lakehead.ids import Ids, Random, RandomIds, system_random
from lakehead.maintain.accepted_events import AcceptedEvents
from lakehead.maintain.blob_check import BlobCheck
from lakehead.maintain.hour_indexes import HourIndexes
from lakehead.maintain.landed_batches import StateRanges
from lakehead.maintain.open_repairs import OpenRepairs
from lakehead.maintain.queued_batches import QueuedBatches
from lakehead.maintain.reconcile_batch import BatchReconciler
from lakehead.maintain.reconcile_cold import ColdScanner
from lakehead.maintain.reconcile_hours import SteadyScan
from lakehead.maintain.reconcile_landings import LandingTable, MissingLandings
from lakehead.maintain.reconciler import Reconciler
from lakehead.maintain.reconciler_records import ReconcilerRecords
from lakehead.run.config.consume_config import ConsumeConfig, ManifestQueueConfig
from lakehead.run.config.pipeline_config import PipelineConfig
from lakehead.run.environment import store_settings
from lakehead.run.gateway_wiring import GatewayWiring, gateway_config
from lakehead.run.open_inventory import open_report
from lakehead.storage.probed_store import ProbedStore
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.record_schemas import FrameKind

if TYPE_CHECKING:
    from lakehead.accept.after_acceptance import LandingQueue
    from lakehead.maintain.inventory import AcceptedInventory
    from lakehead.run.accepted_tables import PipelineTable
    from lakehead.run.consume_wiring import ConsumeWiring

TABLES_SECONDS = 60.0
"""How long it is believed which tables there are."""


@dataclass(frozen=True)
class ReconcileWiring:
    """A reconciler by its configuration."""

    config: PipelineConfig
    environment: Mapping[str, str] = field(repr=False)
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    random: Random = field(default_factory=system_random)

    @cached_property
    def gateway(self) -> GatewayWiring:
        """The gateway whose store is reconciled. Raises `Misconfigured` if there is none."""
        return GatewayWiring(gateway_config(self.config), self.environment, self.clock, self.ids, self.random)

    @property
    def store(self) -> ProbedStore:
        """The store of the authority."""
        return self.gateway.store

    @property
    def reconciler_id(self) -> str:
        """The reconciler's own name."""
        return self.config.reconcile.reconciler_id or platform.node() or "reconciler"

    def pipelines(self) -> dict[str, ConsumeConfig]:
        """Return the pipelines that land what the gateways have accepted, by name."""
        from lakehead.run.accepted_tables import accepted_pipelines  # noqa: PLC0415 - slow to load

        return {
            name: each
            for name, each in accepted_pipelines(self.config, self.gateway.config.store).items()
            if isinstance(each.queue, ManifestQueueConfig) and each.queue.manifest_path == self.gateway.queue_manifest
        }

    @asynccontextmanager
    async def opened(self, *, is_dry_run: bool = False, stop: asyncio.Event | None = None) -> AsyncIterator[Reconciler]:
        """Open the reconciler. Raises `Misconfigured` if the store is no authority, and `Unavailable`."""
        await self.gateway.authority.read()
        settings = self.config.reconcile.settings()
        async with AsyncExitStack() as opened:
            landings = await self._landings(opened, is_dry_run=is_dry_run)
            repairs = OpenRepairs(self.store)
            records = ReconcilerRecords(
                store=self.store,
                clock=self.clock,
                ids=self.ids,
                random=self.random,
                reconciler_id=self.reconciler_id,
            )

            def batches() -> BatchReconciler:
                return BatchReconciler(
                    store=self.store,
                    clock=self.clock,
                    ids=self.ids,
                    random=self.random,
                    reconciler_id=self.reconciler_id,
                    blobs=BlobCheck(self.store, settings.verify),
                    hours=HourIndexes(self.store),
                    repairs=repairs,
                    is_dry_run=is_dry_run,
                )

            yield Reconciler(
                steady=SteadyScan(batches=batches(), landings=landings, settings=settings, stop=stop),
                cold=ColdScanner(batches=batches(), landings=landings, records=records, settings=settings, stop=stop),
                repairs=repairs,
                records=records,
                settings=settings,
                clock=self.clock,
                is_dry_run=is_dry_run,
            )

    @asynccontextmanager
    async def events(self) -> AsyncIterator[AcceptedEvents | None]:
        """Open the queue of events; None if none is configured. Raises `Misconfigured` and `Unavailable`."""
        config = self.config.reconcile.events
        if config is None:
            yield None
            return
        # Only with events: slow to load, and they need lakehead[sqs].
        from lakehead.consume.queues.sqs_queue import SqsQueue  # noqa: PLC0415 - see above
        from lakehead.consume.queues.sqs_settings import SqsSettings  # noqa: PLC0415 - see above
        from lakehead.run.reconcile_events import QueuedEvents  # noqa: PLC0415 - see above

        credentials = store_settings("s3://", self.environment).credentials
        settings = SqsSettings(
            queue=config.queue_url,
            region=config.region or "",
            endpoint=config.endpoint or "",
            credentials=credentials,
        )
        queue = await SqsQueue.open(settings, self.clock, self.ids)
        try:
            yield QueuedEvents(queue, self.gateway.config.store)
        finally:
            await queue.close()

    async def open_inventory(self, url: str) -> "AcceptedInventory":
        """Open the report whose `manifest.json` a URL names. Raises `Misconfigured` and `Unavailable`."""
        from lakehead.maintain.inventory import AcceptedInventory  # noqa: PLC0415 - slow to load

        return AcceptedInventory(await open_report(url, self.gateway))

    async def _landings(self, opened: AsyncExitStack, *, is_dry_run: bool) -> MissingLandings | None:
        pipelines = self.pipelines()
        if not pipelines:
            return None
        # Only with pipelines: slow to load.
        from lakehead.consume.messages import uri_in_store  # noqa: PLC0415 - see above
        from lakehead.lake.dead_letters import DeadLetters  # noqa: PLC0415 - see above
        from lakehead.run.consume_wiring import ConsumeWiring  # noqa: PLC0415 - see above

        wiring = ConsumeWiring(self.config, self.environment)
        tables = _tables(wiring, pipelines)
        state = opened.enter_context(wiring.open_state(self.clock, self.ids))
        queue: LandingQueue = _NoQueue()
        if not is_dry_run:
            ingestor = self.gateway.landing_ingestor()
            opened.push_async_callback(ingestor.close)
            queue = BufferedLandingQueue(ingestor)
        deps = BufferDeps(store=self.store, clock=self.clock, ids=self.ids, random=self.random)
        first = next(iter(pipelines.values())).queue
        store_url = first.store if isinstance(first, ManifestQueueConfig) else self.gateway.config.store
        return MissingLandings(
            store=self.store,
            landed=StateRanges(state),
            letters=DeadLetters(wiring.open_ledger().store),
            tables=CatalogTables(wiring=wiring, tables_by_kind=tables, clock=self.clock),
            pending=QueuedBatches(self.gateway.queue_manifest, deps),
            queue=queue,
            unit_of=partial(uri_in_store, store_url),
            clock=self.clock,
            grace_seconds=self.config.reconcile.grace_seconds,
            is_dry_run=is_dry_run,
        )


class _NoQueue:
    """The queue of a dry run, on which nothing is put."""

    async def put(self, manifests: Sequence[IdentityManifest]) -> None:
        raise Misconfigured(f"A dry run queues nothing, and {len(manifests)} batches were to be queued.")


def _tables(wiring: "ConsumeWiring", pipelines: Mapping[str, ConsumeConfig]) -> "dict[FrameKind, PipelineTable]":
    """The table of each kind. Raises `Misconfigured` if pipelines land the same kind in different tables."""
    from lakehead.run.accepted_tables import accepted_tables  # noqa: PLC0415 - slow to load

    found = accepted_tables(wiring, pipelines.values())
    for kind, tables in found.items():
        if len(tables) > 1:
            names = " and ".join(f"{each.catalog}.{each.name}" for each in tables)
            raise Misconfigured(
                f"Pipelines land {kind.word} of the same queue in different tables, {names}: each batch would land in "
                "one of the two. Use one table."
            )
    return {kind: table for kind, (table,) in found.items()}


@dataclass(slots=True, kw_only=True)
class CatalogTables:
    """Looks up the tables of pipelines in their catalogs, now and then."""

    wiring: "ConsumeWiring"
    tables_by_kind: "Mapping[FrameKind, PipelineTable]"
    clock: Clock
    _found: Mapping[FrameKind, LandingTable] = field(default_factory=dict)
    _found_at: float | None = None

    async def tables(self) -> Mapping[FrameKind, LandingTable]:
        """Return the tables of all kinds. Raises `CannotOpen` if a catalog or a table cannot be opened."""
        now = self.clock.monotonic()
        if self._found_at is None or now - self._found_at >= TABLES_SECONDS:
            self._found = await asyncio.to_thread(self._look_up)
            self._found_at = now
        return self._found

    def _look_up(self) -> dict[FrameKind, LandingTable]:
        from lakehead.run.accepted_tables import table_uuids  # noqa: PLC0415 - slow to load

        uuids = table_uuids(self.wiring, set(self.tables_by_kind.values()))
        return {kind: LandingTable(table.name, uuids[table]) for kind, table in self.tables_by_kind.items()}
