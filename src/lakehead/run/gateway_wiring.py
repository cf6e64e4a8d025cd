"""Opens a gateway and what operators change of its authority. Nothing here starts a JVM."""

import asyncio
import logging
import platform
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

from lakehead.accept.acceptance import Acceptor
from lakehead.accept.accepted_overlaps import AcceptedOverlaps
from lakehead.accept.after_acceptance import AfterAcceptance
from lakehead.accept.authority import Authority
from lakehead.accept.authority_watch import AuthorityWatch
from lakehead.accept.bucket_watch import BucketWatch
from lakehead.accept.conflict_decisions import ConflictDecisions, NotQuarantined
from lakehead.accept.conflicts import Conflicts, NoSuchConflict
from lakehead.accept.quarantined_boots import QuarantinedBoots
from lakehead.accept.record_file import read_record
from lakehead.accept.repairs import Repairs
from lakehead.accept.tokens import TokenCache, Tokens
from lakehead.buffer.config import IngestorConfig, ObjectStoreConfig
from lakehead.buffer.ingestor import Ingestor
from lakehead.clock import Clock, SystemClock
from lakehead.errors import LakeheadError, Misconfigured
from lakehead.gateway.error_codes import ErrorCode
from lakehead.gateway.ingest_app import ingest_app
from lakehead.gateway.landing_queue import BufferedLandingQueue
from lakehead.gateway.measured_store import MeasuredStore
from lakehead.gateway.metrics import GatewayMetrics
from lakehead.gateway.private_app import PrivateListener, private_app
from lakehead.gateway.readiness import Readiness
from lakehead.gateway.server import GatewayServer
from lakehead.gateway.settings import GatewaySettings, IngestSettings, ListenerSettings, TlsSettings
from lakehead.gateway.uploads import Uploads
from lakehead.ids import Ids, Random, RandomIds, system_bytes, system_random
from lakehead.run.bucket_checks import bucket_check, watch_bucket
from lakehead.run.config.gateway_config import GatewayConfig, ListenerConfig, is_multi_region
from lakehead.run.config.pipeline_config import PipelineConfig
from lakehead.run.environment import store_settings
from lakehead.run.spool_wiring import TOLERATED, opened_spool
from lakehead.storage.port import Store
from lakehead.storage.probed_store import ProbedStore, open_probed_store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.authority_records import ReconcilerHeartbeat
from lakehead.wire.errors import InvalidRecord

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredHeartbeats:
    """The reconciler's signs of life, as the store has them."""

    store: Store
    clock: Clock

    async def age_seconds(self) -> float | None:
        """Return how old the last one is, negative if it is of the future; None if there was never one.

        Raises `Unavailable`.
        """
        found = await read_record(ReconcilerHeartbeat, keys.RECONCILER_HEARTBEAT, self.store)
        return None if found is None else (self.clock.now_ns() - found.beat_at_unix_ns) / 1e9


def gateway_config(config: PipelineConfig) -> GatewayConfig:
    """Return the gateway of a configuration. Raises `Misconfigured` if it has none."""
    if config.gateway is None:
        raise Misconfigured("The configuration has no gateway. Add one under gateway: see docs/gateway.md.")
    return config.gateway


@dataclass(frozen=True)
class GatewayWiring:
    """A gateway by its configuration."""

    config: GatewayConfig
    environment: Mapping[str, str] = field(repr=False)
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    random: Random = field(default_factory=system_random)

    @property
    def collector_id(self) -> str:
        """The gateway's own name."""
        return self.config.collector_id or platform.node() or "gateway"

    @cached_property
    def store(self) -> ProbedStore:
        """The store of the authority, probed before the first write."""
        url = self.config.store
        settings = replace(store_settings(url, self.environment), request_timeout=self.config.store_seconds)
        if not self.config.allow_multi_region_access_point and is_multi_region(url, settings.endpoint):
            raise Misconfigured(
                "The endpoint of the store is a Multi-Region Access Point, which is no lock. Name one bucket, or set "
                "allow_multi_region_access_point."
            )
        return open_probed_store(url, settings, clock=self.clock, ids=self.ids, random=self.random)

    @property
    def authority(self) -> Authority:
        """The authority that the store is, or shall be."""
        parts = urlsplit(self.config.store)
        return Authority(
            store=self.store,
            clock=self.clock,
            ids=self.ids,
            random=self.random,
            bucket=f"{parts.scheme}://{parts.netloc}",
            prefix=unquote(parts.path).strip("/"),
        )

    @property
    def tokens(self) -> Tokens:
        """The tokens of agents and operators."""
        return Tokens(store=self.store, clock=self.clock, ids=self.ids, random=self.random, random_bytes=system_bytes)

    @property
    def conflicts(self) -> Conflicts:
        """The conflicts of the authority."""
        return Conflicts(store=self.store, clock=self.clock, ids=self.ids, collector_id=self.collector_id)

    @property
    def decisions(self) -> ConflictDecisions:
        """What operators decide about conflicts."""
        return ConflictDecisions(conflicts=self.conflicts, random=self.random)

    @property
    def overlaps(self) -> AcceptedOverlaps:
        """The authority's accepted batches with common sequence numbers."""
        return AcceptedOverlaps(store=self.store)

    @property
    def repairs(self) -> Repairs:
        """The authority's frames that are missing or corrupt."""
        return Repairs(self.store)

    async def serve(self, stop: asyncio.Event, ready: Callable[[GatewayServer], None]) -> None:
        """Accept batches until `stop` is set; `ready` is called when both listeners listen. If `stop` is set before
        that, the start is given up at once, whatever the store is asked for just then.

        Raises `Misconfigured` for a store that does not honour preconditions, another authority or an address that is
        taken, and `Unavailable` if the store does not answer at the start.
        """
        is_ready = asyncio.Event()

        def now_ready(server: GatewayServer) -> None:
            is_ready.set()
            ready(server)

        serving, stopping = asyncio.create_task(self._serve(stop, now_ready)), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not is_ready.is_set() and not serving.done():
                serving.cancel()
                await asyncio.wait((serving,))
            if not serving.cancelled():
                await serving
        finally:
            await _cancelled(stopping)
            await _cancelled(serving)

    async def _serve(self, stop: asyncio.Event, ready: Callable[[GatewayServer], None]) -> None:
        await self.store.ensure_probed()
        record = await self.authority.check(self.config.ingest.acceptance)
        tokens, boots = TokenCache(self.store, self.clock), QuarantinedBoots(self.store, self.clock)
        authority = AuthorityWatch(self.authority, record, self.clock)
        await asyncio.gather(tokens.refresh(), boots.refresh(), authority.refresh())
        metrics, settings = GatewayMetrics(), self.settings()
        store = MeasuredStore(self.store, metrics.store_seconds, self.clock)
        async with AsyncExitStack() as opened:
            effects = await opened.enter_async_context(self.side_effects())
            metrics.watch_side_effects(effects.counts)
            acceptor = self.acceptor(store)
            local, address = None, ""
            if self.config.ingest.acceptance == "local_spool":
                address = self.config.ingest.spool_address or listener_url(
                    self.config.private_listener, self.config.private_listener.port
                )
                local = await opened.enter_async_context(opened_spool(self, acceptor, effects, address=address))
                metrics.watch_spool(local.spool, local.uploads.counts)
                local.uploads.run_in_background()
            readiness = Readiness(
                store=self.store,
                ids=self.ids,
                clock=self.clock,
                reconciler=None if self.config.reconciler_mode == "none" else StoredHeartbeats(self.store, self.clock),
                needs_reconciler=self.config.reconciler_mode == "required",
                copies={
                    "authority": authority,
                    "tokens": tokens,
                    "quarantine": boots,
                    **(local.checks if local else {}),
                },
                tolerated=TOLERATED if local else frozenset(),
                settings=settings.readiness,
            )
            uploads = Uploads(
                tokens=tokens,
                quarantine=boots,
                acceptor=local.spool if local else acceptor,
                conflicts=local.conflicts if local else self.conflicts,
                side_effects=local.uploads if local else effects,
                authority_id=record.authority_id,
                metrics=metrics,
                clock=self.clock,
                authority=authority,
                settings=settings.ingest,
            )
            opened.callback(uploads.close)
            ingest = ingest_app(uploads)
            private = private_app(
                PrivateListener(
                    tokens=tokens,
                    conflicts=self.conflicts,
                    decisions=self.decisions,
                    overlaps=self.overlaps,
                    repairs=self.repairs,
                    readiness=readiness,
                    metrics=metrics,
                    refusals={
                        NoSuchConflict: ErrorCode.NO_SUCH_CONFLICT,
                        NotQuarantined: ErrorCode.NOT_QUARANTINED,
                        InvalidRecord: ErrorCode.BAD_REQUEST,
                    },
                    spool=local.spool if local else None,
                    metrics_need_token=settings.metrics_need_token,
                    ingest=ingest,
                )
            )
            if bucket := self._bucket_watch():
                metrics.watch_bucket(bucket)
                opened.push_async_callback(_cancelled, asyncio.create_task(bucket.run()))
            for copy in (tokens, boots, authority):
                opened.push_async_callback(_cancelled, asyncio.create_task(copy.run()))
            server = GatewayServer(
                ingest=ingest,
                private=private,
                side_effects=local.uploads if local else effects,
                readiness=readiness,
                metrics=metrics,
                clock=self.clock,
                settings=settings,
            )
            await opened.enter_async_context(server)
            if local is not None:
                if not self.config.private_listener.port and self.config.ingest.spool_address is None:
                    address = listener_url(self.config.private_listener, server.private_port)
                    await local.opening.tell_address(local.spool, address)
                authority.expect_spool(local.spool.spool_id, address)
            ready(server)
            await _first_of(stop.wait(), server.wait())

    def _bucket_watch(self) -> BucketWatch | None:
        config, settings = self.config, store_settings(self.config.store, self.environment)
        check = bucket_check(config.store, settings, queue=config.queue_path, encryption=config.bucket_encryption)
        return None if check is None else watch_bucket(check, self.clock)

    def acceptor(self, store: Store) -> Acceptor:
        """Accepts batches in the store, by this gateway's name."""
        return Acceptor(store=store, clock=self.clock, ids=self.ids, random=self.random, collector_id=self.collector_id)

    @asynccontextmanager
    async def side_effects(self) -> AsyncIterator[AfterAcceptance]:
        """What follows acceptances. At the end what waits for the landing queue is stored, for a bounded time."""
        ingestor = self.landing_ingestor()
        try:
            yield AfterAcceptance(store=self.store, queue=BufferedLandingQueue(ingestor))
        finally:
            await _close_queue(ingestor, self.settings().side_effect_seconds)

    @property
    def queue_manifest(self) -> str:
        """The path of the landing queue's manifest."""
        return f"{self.config.queue_path.strip('/')}/manifest.json"

    def landing_ingestor(self) -> Ingestor:
        """Open what puts batches on the landing queue. The caller closes it."""
        folder = self.config.queue_path.strip("/")
        return Ingestor(
            IngestorConfig(
                object_store_config=ObjectStoreConfig(url=self.config.store),
                manifest_path=self.queue_manifest,
                data_path_prefix=f"{folder}/data",
            ),
            self.clock,
            store=self.store,
            ids=self.ids,
            random=self.random,
        )

    def settings(self) -> GatewaySettings:
        """Return the settings of the gateway's server, as the configuration has them."""
        config, ingest = self.config, self.config.ingest
        return GatewaySettings(
            ingest_listener=self._listener(config.ingest_listener),
            private_listener=self._listener(config.private_listener),
            ingest=IngestSettings(
                body_bytes=ingest.body_bytes,
                payload_bytes=ingest.payload_bytes,
                read_seconds=ingest.read_seconds,
                accept_seconds=ingest.accept_seconds,
                requests_per_second=ingest.requests_per_second,
                burst=ingest.burst,
                agent_requests=ingest.agent_requests,
                requests_in_flight=ingest.requests_in_flight,
                bytes_in_flight=ingest.bytes_in_flight,
            ),
            metrics_need_token=config.metrics_need_token,
            unready_seconds=config.unready_seconds,
            stop_seconds=config.stop_seconds,
            side_effect_seconds=config.side_effect_seconds,
        )

    def _listener(self, config: ListenerConfig) -> ListenerSettings:
        tls = config.tls
        return ListenerSettings(
            host=config.host,
            port=config.port,
            max_connections=config.max_connections,
            tls=None
            if tls is None
            else TlsSettings(
                cert_file=tls.cert_file,
                key_file=tls.key_file,
                key_password=tls.key_password.resolve(self.environment) if tls.key_password else None,
                client_ca_file=tls.client_ca_file,
            ),
        )


def listener_url(listener: ListenerConfig, port: int) -> str:
    """Return the URL of a listener that has this port."""
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    return f"{'http' if listener.tls is None else 'https'}://{host}:{port}"


async def _first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Wait until one of several coroutines ends, and cancel the others. Raises what it raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _close_queue(ingestor: Ingestor, within: float) -> None:
    """Store what waits for the landing queue, for at most so many seconds. Never raises."""
    try:
        async with asyncio.timeout(within):
            await ingestor.close()
    except (LakeheadError, TimeoutError) as error:
        why = str(error) or f"it took more than {within:g} s"
        LOG.warning("Accepted batches may not be queued for landing, which the reconciler will do: %s", why)


async def _cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
