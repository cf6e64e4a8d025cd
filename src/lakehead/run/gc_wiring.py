"""Opens garbage collection by its configuration. No Spark is started."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from lakehead.accept.acceptance import Acceptor
from lakehead.accept.authority import Authority
from lakehead.accept.voiding import Voiding
from lakehead.errors import Misconfigured
from lakehead.maintain.blob_references import BlobSource, FullScan, ListedBlobs, TimeIndex
from lakehead.maintain.blob_requests import CountedStore
from lakehead.maintain.garbage_collection import GarbageCollection
from lakehead.maintain.garbage_retention import FrameUser
from lakehead.maintain.garbage_settings import GarbageSettings
from lakehead.run.config.pipeline_config import PipelineConfig
from lakehead.run.gateway_wiring import GatewayWiring, gateway_config
from lakehead.run.gc_spools import http_spools
from lakehead.run.open_inventory import open_report
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.utc_hours import UtcHour

if TYPE_CHECKING:
    from lakehead.run.consume_wiring import ConsumeWiring


@dataclass(frozen=True)
class GcWiring:
    """Garbage collection of a configuration's gateway store."""

    config: PipelineConfig
    environment: Mapping[str, str] = field(repr=False)

    @cached_property
    def gateway(self) -> GatewayWiring:
        """The gateway whose store it is. Raises `Misconfigured` if there is none."""
        return GatewayWiring(gateway_config(self.config), self.environment)

    @property
    def settings(self) -> GarbageSettings:
        """What may be deleted."""
        blobs = self.config.raw_blobs
        return GarbageSettings(
            retry_horizon=timedelta(days=self.config.gc.retry_horizon_days),
            retention=None if blobs.retention_days is None else timedelta(days=blobs.retention_days),
            rollback=timedelta(days=blobs.rollback_days),
        )

    async def source(self, name: str, *, inventory: str | None = None, since: timedelta | None = None) -> BlobSource:
        """Return where candidates come from. Raises `Misconfigured`, and `Unavailable` for a report out of reach."""
        needs_age = self.config.raw_blobs.retention_days is not None
        if name == "scan":
            return FullScan()
        if name == "index":
            gateway = self.gateway
            start = None if since is None else gateway.clock.now_ns() - since // timedelta(microseconds=1) * 1_000
            return TimeIndex(needs_age=needs_age, since=None if start is None else UtcHour.of(max(0, start)))
        if inventory is None:
            raise Misconfigured("Say which report to use: --inventory s3://bucket/…/manifest.json")
        report = await open_report(inventory, self.gateway)
        return ListedBlobs(report.listed, needs_age=needs_age)

    @asynccontextmanager
    async def collection(self) -> AsyncIterator[GarbageCollection]:
        """Open it, until the end. Raises `Misconfigured`, and `Unavailable` if the store does not answer."""
        gateway, gc = self.gateway, self.config.gc
        await gateway.store.ensure_probed()
        store = CountedStore(gateway.store)
        name = f"gc@{gateway.collector_id}"
        async with AsyncExitStack() as opened:
            spools = await opened.enter_async_context(
                http_spools(
                    gc.token.resolve(self.environment) if gc.token else None,
                    seconds=gc.spool_seconds,
                    ca_file=gc.ca_file,
                    cert_file=gc.cert_file,
                    key_file=gc.key_file,
                )
            )
            users, tables = self._users(opened)
            acceptor = Acceptor(
                store=store, clock=gateway.clock, ids=gateway.ids, random=gateway.random, collector_id=name
            )
            authority = Authority(
                store=store,
                clock=gateway.clock,
                ids=gateway.ids,
                random=gateway.random,
                bucket=gateway.authority.bucket,
                prefix=gateway.authority.prefix,
            )
            yield GarbageCollection(
                store=store,
                voiding=Voiding(acceptor=acceptor, authority=authority, spools=spools),
                spools=spools,
                users=users,
                discarding_tables=tables,
                name=name,
                clock=gateway.clock,
                ids=gateway.ids,
                random=gateway.random,
                settings=self.settings,
            )

    def _users(self, opened: AsyncExitStack) -> tuple[Sequence[FrameUser], Sequence[str]]:
        """Who reads frames of accepted batches, and the tables in which they land. None if frames are kept anyway."""
        if self.config.raw_blobs.retention_days is None:
            return (), ()
        # Imported here: slow to load, and without retention nothing of it is needed.
        from lakehead.consume.accepted_units import accepted_unit  # noqa: PLC0415 - see above
        from lakehead.maintain.garbage_landings import LandedFrames  # noqa: PLC0415 - see above
        from lakehead.run.consume_wiring import ConsumeWiring  # noqa: PLC0415 - see above

        wiring = ConsumeWiring(self.config, self.environment)
        wiring.check()

        def tables() -> Mapping[FrameKind, Sequence[str]]:
            return landed_uuids(wiring, self.gateway.config.store)

        if not any((found := tables()).values()):
            return (), ()

        def unit_of(identity: BatchIdentity) -> str:
            return accepted_unit(identity, self.gateway.config.store)

        state = opened.enter_context(wiring.open_state(self.gateway.clock, self.gateway.ids))
        users = [LandedFrames(state=state, ledger=wiring.open_ledger(), tables=tables, unit_of=unit_of)]
        return users, sorted({uuid for uuids in found.values() for uuid in uuids})


def landed_uuids(wiring: "ConsumeWiring", store_url: str) -> Mapping[FrameKind, Sequence[str]]:
    """The uuids of the tables in which each kind of a store's accepted batches lands, by a configuration's pipelines.

    A kind has none if one of its tables does not exist yet: nothing has landed there.
    """
    from lakehead.run.accepted_tables import (  # noqa: PLC0415 - slow to load
        accepted_pipelines,
        accepted_tables,
        table_uuids,
    )

    tables = accepted_tables(wiring, accepted_pipelines(wiring.config, store_url).values())
    uuids = table_uuids(wiring, {each for some in tables.values() for each in some})
    found = {kind: [uuids[each] for each in some] for kind, some in tables.items()}
    return {
        kind: () if None in some else tuple(sorted({uuid for uuid in some if uuid is not None}))
        for kind, some in found.items()
    }
