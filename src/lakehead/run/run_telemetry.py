"""Opens what a configuration sends about a run: notifications, metrics, metadata records and OpenLineage events."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from lakehead.clock import Clock
from lakehead.errors import Misconfigured
from lakehead.run.config.base import SecretReference
from lakehead.run.config.connections import FileSinkConfig
from lakehead.run.config.table_config import TableConfig
from lakehead.run.metrics_server import serve_metrics
from lakehead.run.observe.http_post import JsonPost, is_http_url
from lakehead.run.observe.metadata_gateway import (
    MetadataGateway,
    MetadataGatewaySubscriber,
    RecordFile,
    SentRecords,
    StateRepository,
)
from lakehead.run.observe.notifier import NotifierSubscriber
from lakehead.run.observe.openlineage import Dataset, OpenLineageSubscriber, TableLineage
from lakehead.run.observe.outputs import AppendOnlyFile, local_path, warn_on_stderr
from lakehead.run.observe.run_metrics import RunMetrics
from lakehead.run.wiring import Wiring
from lakehead.source.dialects import DIALECTS
from lakehead.state.buffered import BufferedState
from lakehead.telemetry.background_sender import LostMessages
from lakehead.telemetry.emitter import Emitter


class RunTelemetry:
    """The senders of a run. Make it before the run's first event, and close the emitter before leaving its `with`.

    None of them stops or slows a load: what they cannot deliver is in `lost`.
    """

    def __init__(
        self,
        wiring: Wiring,
        tables: Sequence[TableConfig],
        emitter: Emitter,
        state: BufferedState,
        clock: Clock,
        *,
        metrics_port: int | None = None,
        metrics_file: Path | None = None,
        say: Callable[[str], None] = warn_on_stderr,
    ) -> None:
        """The port and file override the configuration. Raises `Misconfigured` for a URL or file that is not valid."""
        self._wiring = wiring
        self._emitter = emitter
        self._state = state
        self._say = say
        self._senders: list[NotifierSubscriber | MetadataGateway] = []
        self._opened = ExitStack()
        runtime = wiring.config.runtime
        port = runtime.metrics.port if metrics_port is None else metrics_port
        textfile = runtime.metrics.textfile if metrics_file is None else str(metrics_file)
        with ExitStack() as opened:
            if port is not None or textfile is not None:
                self._open_metrics(opened, port, Path(textfile) if textfile else None)
            self._open_gateway(opened)
            self._open_lineage(opened, tables)
            self._open_notifier(opened, clock)
            self._opened = opened.pop_all()

    @property
    def lost(self) -> list[LostMessages]:
        """What did not arrive, by receiver."""
        return [lost for sender in self._senders if (lost := sender.lost) is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()

    def _open_metrics(self, opened: ExitStack, port: int | None, file: Path | None) -> None:
        metrics = RunMetrics(self._counts)
        self._emitter.subscribe(metrics)
        if file is not None:
            opened.callback(self._write_metrics, metrics, file)
        if port is not None:
            url = opened.enter_context(serve_metrics(metrics, port))
            self._say(f"Metrics are at {url} until the run ends.")

    def _write_metrics(self, metrics: RunMetrics, file: Path) -> None:
        try:
            metrics.write(file)
        except OSError as error:
            self._say(f"The metrics cannot be written to {file} ({error.strerror}). The loaded data is not affected.")

    def _counts(self) -> Mapping[str, int]:
        return self._emitter.dropped | {lost.receiver: lost.count for lost in self.lost}

    def _open_gateway(self, opened: ExitStack) -> None:
        settings = self._wiring.config.runtime.metadata_gateway
        if not settings.ingestion_metrics and not settings.ingestion_runtime:
            return
        url = self._resolve(settings.url)
        gateway = StateRepository(self._state) if url is None else self._sender(url, "the metadata gateway")
        opened.callback(gateway.close)
        self._senders.append(gateway)
        subscriber = MetadataGatewaySubscriber(
            gateway, volume=settings.ingestion_metrics, runtime=settings.ingestion_runtime
        )
        self._emitter.subscribe_slow(subscriber, "the metadata gateway")

    def _open_lineage(self, opened: ExitStack, tables: Sequence[TableConfig]) -> None:
        settings = self._wiring.config.runtime.openlineage
        url = self._resolve(settings.url)
        if url is None:
            return
        key = self._resolve(settings.api_key)
        sender = self._sender(url, "OpenLineage", {"Authorization": f"Bearer {key}"} if key else {})
        opened.callback(sender.close)
        self._senders.append(sender)
        namespace = settings.namespace or self._wiring.config.runtime.pipeline
        lineage = {table.full_name: table_lineage(self._wiring, table) for table in tables}
        self._emitter.subscribe_slow(OpenLineageSubscriber(sender.put, lineage, namespace=namespace), "OpenLineage")

    def _open_notifier(self, opened: ExitStack, clock: Clock) -> None:
        settings = self._wiring.config.runtime.notifications
        url = self._resolve(settings.webhook)
        if url is None:
            return
        if not is_http_url(url):
            raise Misconfigured("runtime.notifications.webhook must be an http: or https: URL. Correct it.")
        notifier = NotifierSubscriber(
            JsonPost(url), settings.interval_seconds, clock, shape=settings.shape, wait=threading.Event.wait
        )
        self._senders.append(notifier)
        self._emitter.subscribe(notifier)
        opened.enter_context(notifier)

    def _sender(self, url: str, name: str, headers: Mapping[str, str] | None = None) -> SentRecords | RecordFile:
        if is_http_url(url):
            return SentRecords(JsonPost(url, headers), name)
        path = local_path(url)
        if path is None or url.endswith("/"):
            raise Misconfigured(f"The URL of {name} must be an http: or https: URL, or a local file. Correct it.")
        return RecordFile(AppendOnlyFile(path), name)

    def _resolve(self, given: str | SecretReference | None) -> str | None:
        return given.resolve(self._wiring.environment) if isinstance(given, SecretReference) else given


def table_lineage(wiring: Wiring, table: TableConfig) -> TableLineage:
    """Return the datasets of a table, by OpenLineage's naming. They hold no user and no password."""
    source = wiring.source_settings(wiring.config.source_of(table))
    name = ".".join(part for part in (table.schema_name, table.table) if part)
    dialect = DIALECTS.named(source.dialect)
    if source.host:
        port = f":{source.port}" if source.port else ""
        whole = name if dialect.schemas_are_databases and table.schema_name else f"{source.database}.{name}"
        read = Dataset(f"{dialect.lineage_scheme}://{source.host}{port}", whole)
    elif dialect.takes_driver:  # its URL may hold anything
        read = Dataset(dialect.lineage_scheme, name)
    else:
        read = Dataset(dialect.lineage_scheme, f"{source.database}#{name}")
    sink = wiring.config.sink_of(table)
    raw, out = wiring.places_of(table)
    if isinstance(sink, FileSinkConfig):
        folders = [f"{sink.root.rstrip('/')}/{place.name}" if place else None for place in (raw, out)]
        return TableLineage(
            read, Dataset("file", folders[0] or ""), Dataset("file", folders[1]) if folders[1] else None
        )
    namespace = f"iceberg://{sink.catalog}"
    return TableLineage(read, Dataset(namespace, raw.name), Dataset(namespace, out.name) if out else None)
