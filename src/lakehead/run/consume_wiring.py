"""Opens the pipelines of a configuration: queues, tables, and the coordinators that carry messages to them."""

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from lakehead.accept.discarded_batches import DiscardedLookup
from lakehead.accept.overlaps import Overlaps
from lakehead.buffer.config import ObjectStoreConfig
from lakehead.clock import Clock
from lakehead.consume.accepted_batches import AcceptedLookup, AcceptedReader
from lakehead.consume.after_landing import AfterLanding
from lakehead.consume.backfill_state import BackfillSharedState
from lakehead.consume.coordinator import QueueCoordinator
from lakehead.consume.dead_letters import QueueDeadLetters
from lakehead.consume.decode.frames import LIMITS, SORTED_BY, TIME, landed_columns
from lakehead.consume.decode.rows import ObjectFormat
from lakehead.consume.discarded_state import DiscardedSharedState
from lakehead.consume.etag_lookup import EtagLookup
from lakehead.consume.folder_replays import FolderReplays
from lakehead.consume.iceberg_landings import IcebergLandings, TableFormat
from lakehead.consume.message_reader import MessageReader
from lakehead.consume.object_clients import ObjectClients
from lakehead.consume.objects import MessageFormat
from lakehead.consume.overlaps import OverlapCheck
from lakehead.consume.ports import Lookup
from lakehead.consume.queue import DeletingQueue, Queue
from lakehead.consume.queues.file_list_queue import FileListQueue
from lakehead.consume.queues.folder_pass import FolderSettings
from lakehead.consume.queues.folder_queue import FolderQueue
from lakehead.consume.queues.listed_files import base_uri
from lakehead.consume.queues.manifest_queue import ManifestQueue, ManifestQueueSettings
from lakehead.consume.queues.sqs_queue import SqsQueue
from lakehead.consume.queues.sqs_settings import SqsSettings
from lakehead.consume.receiving import MessageParser
from lakehead.consume.routes import Route, route_into
from lakehead.consume.s3_tags import S3Tags, check_all_in_s3
from lakehead.consume.settings import PipelineSettings
from lakehead.consume.shared_state import QueueSharedState, SharedState
from lakehead.consume.uris import Identity, normalise, normalise_prefix
from lakehead.errors import Misconfigured
from lakehead.ids import Ids, Random
from lakehead.lake.dead_letters import DeadLetters
from lakehead.lake.iceberg_landing import IcebergLanding
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landed_units import LandedUnits
from lakehead.lake.run_context import RunContext
from lakehead.run.accepted_tables import accepted_store, frame_kind
from lakehead.run.config.connections import FileSinkConfig
from lakehead.run.config.consume_config import (
    ConsumeConfig,
    FilesQueueConfig,
    FolderQueueConfig,
    ManifestQueueConfig,
    SqsQueueConfig,
    TableRouteConfig,
)
from lakehead.run.environment import store_settings
from lakehead.run.stopping import StopSignal
from lakehead.run.wiring import Wiring
from lakehead.spark.jobs import ThreadSessions
from lakehead.state.owners import owner_named
from lakehead.state.state import State
from lakehead.storage.connect import StoreSettings
from lakehead.storage.open_store import open_store

SCHEMES = ("s3", "gs", "az")

_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "uuid": pa.uuid(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDeps:
    """What all pipelines of a process share."""

    state: State
    sessions: ThreadSessions
    run: str
    clock: Clock
    ids: Ids
    random: Random
    stop: StopSignal
    waiting: Callable[[str], None]
    after_landing: Callable[[IcebergTable], Awaitable[object]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A folder whose files are landed instead of what a pipeline's queue announces."""

    url: str
    """The folder: a path, or a URL such as s3://bucket/prefix."""

    modified_after: datetime | None = None
    """Only files that were modified after this time."""


def pipeline_settings(name: str, config: ConsumeConfig) -> PipelineSettings:
    """Convert a pipeline of the configuration to the settings of its coordinator."""
    return PipelineSettings(
        name=name,
        commit_timeout=timedelta(seconds=config.commit_timeout_seconds),
        max_messages=config.max_messages,
        max_bytes=config.max_bytes,
        max_held=2 * config.max_messages,
        visibility=timedelta(seconds=config.visibility_seconds),
        max_tries=config.max_tries,
        retry_delay=timedelta(seconds=config.retry_delay_seconds),
        deduplication_window=timedelta(seconds=config.deduplication_window_duration_secs),
        deduplication_max=config.deduplication_window_max_messages,
        cleanup_interval=timedelta(seconds=config.deduplication_cleanup_interval_secs),
    )


class ConsumeWiring(Wiring):
    """Opens queues, tables and coordinators of pipelines."""

    async def open_queue(self, config: ConsumeConfig, clock: Clock, ids: Ids, random: Random) -> Queue:
        """Open the queue of a pipeline. The caller closes it."""
        match config.queue:
            case SqsQueueConfig() as sqs:
                credentials = store_settings("s3://", self.environment).credentials
                settings = SqsSettings(
                    queue=sqs.queue, region=sqs.region or "", endpoint=sqs.endpoint or "", credentials=credentials
                )
                return await SqsQueue.open(settings, clock, ids)
            case ManifestQueueConfig() as manifest:
                where = ObjectStoreConfig(url=manifest.store, settings=store_settings(manifest.store, self.environment))
                given = {
                    key: value
                    for key in ("manifest_path", "data_path_prefix")
                    if (value := getattr(manifest, key)) is not None
                }
                return ManifestQueue(
                    ManifestQueueSettings(object_store_config=where, **given), clock, ids=ids, random=random
                )
            case FolderQueueConfig() as folder:
                url = folder_url(folder.url)
                store = open_store(url, store_settings(url, self.environment), clock=clock, ids=ids, random=random)
                rest, scan = timedelta(seconds=folder.rest_seconds), timedelta(seconds=folder.scan_seconds)
                stay = config.after_landing not in ("delete", "move")
                return FolderQueue(
                    store, FolderSettings(url=url, files_stay=stay, rest=rest, poll_interval=scan), clock
                )
            case FilesQueueConfig() as files:
                uris = [folder_url(uri) for uri in files.uris]
                for uri in uris:
                    normalise(uri)  # a wrong one is refused at the start; versions are kept
                return FileListQueue.of_uris(uris, clock)

    def open_listing(self, backfill: Backfill, clock: Clock, ids: Ids, random: Random) -> FileListQueue:
        """Open the listing of a backfill. The caller closes it."""
        url = folder_url(backfill.url)
        store = open_store(url, store_settings(url, self.environment), clock=clock, ids=ids, random=random)
        return FileListQueue.of_store(store, url, clock, modified_after=backfill.modified_after)

    def coordinator(
        self,
        settings: PipelineSettings,
        config: ConsumeConfig,
        queue: Queue,
        deps: PipelineDeps,
        opened: AsyncExitStack,
        *,
        backfill: Backfill | None = None,
    ) -> QueueCoordinator:
        """Make the coordinator of a pipeline, or of a backfill of its tables; `opened` closes what it opens."""
        owner = owner_named(deps.ids.uuid())  # the pipeline's publish token, new at each start
        shared: SharedState = QueueSharedState(deps.state, owner, settings, queue)
        reader = message_reader(config)
        if backfill is not None:
            landed = LandedUnits(state=deps.state, ledger=self.open_ledger(), owner=owner)
            shared = BackfillSharedState(
                QueueSharedState(deps.state, owner, settings), landed, unit_prefix(folder_url(backfill.url))
            )
            opened.push_async_callback(shared.close)
            reader = replace(reader, format=MessageFormat.LISTED)
        elif (url := accepted_store(config)) is not None:
            store = open_store(
                url, store_settings(url, self.environment), clock=deps.clock, ids=deps.ids, random=deps.random
            )
            shared = DiscardedSharedState(
                shared=shared, discarded=DiscardedLookup(store), state=deps.state, store_url=url
            )
        parser, lookup = self._parser(reader, config, settings, deps)
        landings = IcebergLandings(
            [table_format(table, self._resolved(table.properties)) for table in config.tables],
            lambda: self._landing(settings.name, owner, config, deps),
            stores=self.object_stores(),
            lease=settings.lease,
            after_landing=deps.after_landing,
            open_overlaps=self._overlaps(settings.name, reader, config, deps),
            max_object_bytes=config.max_object_bytes,
        )
        opened.callback(landings.close)
        letters = DeadLetters(self.open_ledger().store)
        return QueueCoordinator(
            settings,
            queue,
            parser,
            shared=shared,
            landings=landings,
            dead_letters=QueueDeadLetters(
                letters,
                deps.state,
                owner,
                queue.name,
                keeps_messages=queue.forgets and backfill is None,
                deleting=queue if isinstance(queue, DeletingQueue) else None,
            ),
            clock=deps.clock,
            random=deps.random,
            lookup=lookup,
            after_landing=self._after_landing(config, reader, deps.state),
            replays=FolderReplays(queue, deps.state) if isinstance(queue, FolderQueue) else None,
        )

    def _parser(
        self, reader: MessageReader, config: ConsumeConfig, settings: PipelineSettings, deps: PipelineDeps
    ) -> tuple[MessageParser, Lookup | None]:
        """What reads messages, and what looks up before that what they do not tell."""
        if (url := accepted_store(config)) is not None and reader.format is MessageFormat.ACCEPTED:
            where = store_settings(url, self.environment)
            store = open_store(url, where, clock=deps.clock, ids=deps.ids, random=deps.random)
            accepted = AcceptedLookup(store=store, max_tries=settings.max_tries)
            tables = {frame_kind(each.kind): each.table for each in config.tables if each.kind is not None}
            return AcceptedReader(tables=tables, store_url=url, known=accepted.known), accepted
        if reader.identity is Identity.URI_AND_ETAG:
            clients = ObjectClients(self.object_stores())
            etags = EtagLookup(clients=clients, format=reader.format, routes=reader.routes, store_url=reader.store_url)
            return replace(reader, known=etags.known), etags
        return reader, None

    def _overlaps(
        self, name: str, reader: MessageReader, config: ConsumeConfig, deps: PipelineDeps
    ) -> Callable[[], OverlapCheck] | None:
        """What opens the comparison of accepted batches with common records; None if the pipeline lands none."""
        url = accepted_store(config)
        if url is None or reader.format is not MessageFormat.ACCEPTED:
            return None

        def opened() -> OverlapCheck:
            where = store_settings(url, self.environment)
            overlaps = Overlaps(
                store=open_store(url, where, clock=deps.clock, ids=deps.ids, random=deps.random),
                clock=deps.clock,
                ids=deps.ids,
                random=deps.random,
                observed_by=f"pipeline {name}",
                most_records=LIMITS.records,
            )
            return OverlapCheck(overlaps=overlaps, store_url=url)

        return opened

    def _after_landing(self, config: ConsumeConfig, reader: MessageReader, state: State) -> AfterLanding | None:
        """What becomes of landed objects. Raises `Misconfigured` if they would be consumed where they are moved to.

        Also if they are to be tagged and are not in S3.
        """
        if config.after_landing == "keep":
            return None
        tags = None
        if config.after_landing == "tag":
            check_all_in_s3(places_of(config))
            tags = S3Tags.open(config.tags, store_settings("s3://", self.environment))
        target = folder_url(config.move_to or "") if config.after_landing == "move" else ""
        if target and (route := route_into(target, reader.routes)) is not None:
            raise Misconfigured(
                f"Objects that are moved to {target} would land again in {route.table}. Choose another folder as "
                "move_to, or set prefixes of the table so that it does not take them."
            )
        return AfterLanding(config.after_landing, state, ObjectClients(self.object_stores()), target, tags)

    def object_stores(self) -> Mapping[str, StoreSettings]:
        """How to reach buckets, by scheme: by the variables of the clouds' own tools."""
        return {scheme: store_settings(f"{scheme}://", self.environment) for scheme in SCHEMES}

    def catalog_of(self, config: ConsumeConfig) -> str:
        """Return the name of the catalog of a pipeline's tables."""
        sinks = self.config.sinks
        sink = sinks.get(config.sink) if config.sink else next(iter(sinks.values()))
        if sink is None or isinstance(sink, FileSinkConfig):
            raise Misconfigured("A pipeline lands in an Iceberg sink. Name one of them in its sink.")
        return sink.catalog

    def _landing(self, name: str, owner: str, config: ConsumeConfig, deps: PipelineDeps) -> IcebergLanding:
        run = RunContext(
            pipeline=name,
            run=deps.run,
            load_date=datetime.fromtimestamp(deps.clock.now_ns() / 1e9, UTC).date(),
            session=deps.sessions.mine(),
            state=deps.state,
            owner=owner,
            clock=deps.clock,
            ids=deps.ids,
            random=deps.random,
            waiting=deps.waiting,
            pause=deps.stop.pause,
        )
        return IcebergLanding(
            run=run, catalog=self.open_catalog(self.catalog_of(config), deps.clock), ledger=self.open_ledger()
        )


def message_reader(config: ConsumeConfig) -> MessageReader:
    """Return what reads the messages of a pipeline."""
    queue, by_message = config.queue, config.identity == "message"
    default = {"manifest": MessageFormat.LOCATION, "folder": MessageFormat.LISTED, "files": MessageFormat.RAW_URI}
    # Which content has landed must be known when it is deleted or moved, also after a crash.
    identity = "uri_and_etag" if config.after_landing != "keep" else config.identity
    return MessageReader(
        format=config.messages or default.get(queue.type, MessageFormat.AUTO),
        routes=[
            Route(table=each.table, prefixes=each.prefixes, include=each.include, exclude=each.exclude)
            for each in config.tables
        ],
        identity=Identity.URI if by_message else Identity(identity),
        by_message=by_message,
        store_url=queue.store if isinstance(queue, ManifestQueueConfig) else None,
    )


def places_of(config: ConsumeConfig) -> list[str]:
    """Return the folders, prefixes and objects that a pipeline reads, as far as its configuration tells them."""
    places = [prefix for table in config.tables for prefix in table.prefixes]
    match config.queue:
        case FolderQueueConfig() as folder:
            return [*places, folder_url(folder.url)]
        case FilesQueueConfig() as files:
            return [*places, *map(folder_url, files.uris)]
        case _:
            return places


def table_format(table: TableRouteConfig, properties: Mapping[str, str]) -> TableFormat:
    """Convert a table of a pipeline."""
    kind = None if table.kind is None else frame_kind(table.kind)
    declared = pa.schema([pa.field(column.name, arrow_type(column.type)) for column in table.columns])
    return TableFormat(
        name=table.table,
        format=ObjectFormat(
            name=table.format,
            mode=table.schema_mode,
            rescue_bad_rows=table.bad_rows == "rescue",
            value_json=table.value == "json",
            delimiter=table.csv.delimiter,
            quote=table.csv.quote,
            header=table.csv.header,
            null_text=table.csv.null_text,
        ),
        columns=declared if kind is None else landed_columns(kind),
        day_of=None if kind is None else TIME,
        sorted_by=() if kind is None else SORTED_BY[kind],
        properties=properties,
    )


def arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type of a column type in the configuration."""
    if found := re.fullmatch(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)", name):
        return pa.decimal128(int(found[1]), int(found[2]))
    return _TYPES[name]


def folder_url(text: str) -> str:
    """Return a URL as it is, and a path as a `file:` URL."""
    return text if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text) else Path(text).expanduser().absolute().as_uri()


def unit_prefix(url: str) -> str:
    """Return the beginning that the units of all files in a folder have."""
    base = base_uri(url)
    return normalise_prefix(base.removeprefix("file://") if base.startswith("file://") else base)
