"""Opens everything that a configuration names. The only module that chooses adapters."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import SparkSession

from lakehead.clock import Clock
from lakehead.extract.file_table_sink import FileTableSink
from lakehead.extract.iceberg_table_sink import IcebergTableSink
from lakehead.extract.iceberg_tables import Place, place_of
from lakehead.extract.modes import MODES, ReadersTable
from lakehead.extract.protection_rules import Protection
from lakehead.extract.sink import TableSink
from lakehead.extract.table_settings import Finalize, LateCommits, Reader, Rule, TableSettings
from lakehead.ids import Ids
from lakehead.lake.catalog import open_catalog
from lakehead.lake.filesink.file_sink import FileSink, PublishMode
from lakehead.lake.filesink.hadoop import HadoopFiles
from lakehead.lake.iceberg_landing import IcebergLanding
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.run_context import RunContext
from lakehead.metadata.cache import MetadataCacheManager
from lakehead.metadata.guardrail import PrecisionGuardrail
from lakehead.metadata.policy import SchemaPolicy
from lakehead.metadata.runtime import WantedCatalogue, WantedTable
from lakehead.run.config.connections import FileSinkConfig
from lakehead.run.config.table_config import TableConfig
from lakehead.run.environment import store_settings
from lakehead.run.error_messages import open_errors_as
from lakehead.run.resolved_config import ResolvedConfig
from lakehead.run.schema_rules import guardrail, schema_policy
from lakehead.source.dialects import open_source
from lakehead.source.port import Source, TableName
from lakehead.spark.settings import embedded_catalog
from lakehead.state.opening import StateSettings, open_state
from lakehead.state.state import State
from lakehead.storage.open_store import open_store


class Wiring(ResolvedConfig):
    """Opens state, ledger, catalogs, sources and sinks of a configuration."""

    def open_state(self, clock: Clock, ids: Ids) -> State:
        """Open the state database."""
        url = self.config.runtime.state.url
        return open_state(url, clock, ids, settings=StateSettings(password=self.state_password))

    @property
    def ledger_url(self) -> str:
        """The URL of the ledger: as configured, else a folder in the lakehouse."""
        lakehouse = self.config.spark.lakehouse.expanduser().absolute()
        return self.config.runtime.ledger.url or (lakehouse / "ledger").as_uri()

    def open_ledger(self) -> StoreLedger:
        """Open the ledger. Each thread opens its own."""
        return StoreLedger(open_store(self.ledger_url, store_settings(self.ledger_url, self.environment)))

    def source_of(self, table: TableConfig, session: SparkSession) -> Callable[[], Source]:
        """Return a function that opens the source of a table."""
        settings = self.source_settings(self.config.source_of(table))
        return lambda: open_source(settings, session)

    def wanted_catalogues(self, tables: Iterable[TableConfig], session: SparkSession) -> list[WantedCatalogue]:
        """Return the sources of the tables, for their metadata."""
        by_source: dict[str, list[TableConfig]] = {}
        for table in tables:
            by_source.setdefault(table.source or next(iter(self.config.sources)), []).append(table)
        return [
            WantedCatalogue(
                source=name,
                place=str(self.source_settings(self.config.sources[name])),
                open=partial(self._opened_source, several[0], session),
                tables=[
                    WantedTable(name=table.full_name, schema=table.schema_name, table=table.table) for table in several
                ],
            )
            for name, several in by_source.items()
        ]

    def _opened_source(self, table: TableConfig, session: SparkSession) -> AbstractContextManager[object]:
        return closing(self.source_of(table, session)())

    def metadata_cache(self, clock: Clock) -> MetadataCacheManager:
        """Return the metadata cache."""
        metadata = self.config.metadata
        return MetadataCacheManager(Path(metadata.cache_path).expanduser(), timedelta(hours=metadata.ttl_hours), clock)

    def schema_rules(self, table: TableConfig) -> tuple[SchemaPolicy, PrecisionGuardrail]:
        """Return what is done when a table's source has changed, and how many digits its decimals may have."""
        metadata = self.config.metadata
        return (
            schema_policy(metadata.schema_policy, table.schema_policy),
            guardrail(metadata.guardrails, table.guardrails),
        )

    def sink_of(self, table: TableConfig, settings: TableSettings, run: RunContext) -> TableSink:
        """Where a table is kept. Each thread opens its own; close it."""
        sink = self.config.sink_of(table)
        if isinstance(sink, FileSinkConfig):
            raw, out = (self._folder(sink, table, root) for root in self._roots(table))
            files = HadoopFiles(run.session, ids=run.ids)
            way = PublishMode(sink.publish) if sink.publish else None
            made = [FileSink(root=root, files=files, ids=run.ids, way=way) for root in (raw, out) if root]
            return FileTableSink(settings, made[0], made[1] if len(made) > 1 else None, run)
        with ExitStack() as opened:
            catalog = self.open_catalog(sink.catalog, run.clock)
            opened.callback(catalog.close)
            verify_staged_after = timedelta(hours=self.config.runtime.verify_staged_after_hours)
            landing = IcebergLanding(
                run=run,
                catalog=catalog,
                ledger=self.open_ledger(),
                verify_staged_after=verify_staged_after,
                merge_lane=self.config.runtime.merge_lane,
            )
            places = self.places_of(table)
            named = " or ".join(place.name for place in places if place)
            with open_errors_as(
                f"The table {named} in the catalog {sink.catalog!r}",
                "If its metadata is lost or damaged, restore it from a backup, or drop the table and load it again.",
            ):
                kept = IcebergTableSink(settings, *places, landing)
            opened.pop_all()  # from now on the sink closes it
            return kept

    def is_catalog_made(self, name: str) -> bool:
        """Return False for the embedded catalog as long as its folder does not exist: the first run creates it."""
        lakehouse = self.config.spark.lakehouse
        return self.catalogs[name] != embedded_catalog(lakehouse) or lakehouse.expanduser().exists()

    def open_catalog(self, name: str, clock: Clock | None = None) -> Catalog:
        """Open a catalog by its name; the caller closes it. Raises `CannotOpen`."""
        with open_errors_as(
            f"The catalog {name!r}", "Check that it is running, and its properties in the configuration."
        ):
            return open_catalog(name, self.catalogs[name], clock)

    def loaded_table_ids(self, tables: Iterable[TableConfig]) -> list[str]:
        """Return the uuids of raw Iceberg tables that exist, under which the state keeps their progress.

        A table that cannot be opened is left out, together with later tables of its catalog. It fails when it is
        loaded.
        """
        by_catalog: dict[str, list[str]] = {}
        for table in tables:
            sink = self.config.sink_of(table)
            if not isinstance(sink, FileSinkConfig):
                by_catalog.setdefault(sink.catalog, []).append(self.places_of(table)[0].name)
        found: list[str] = []
        for name, raw_tables in by_catalog.items():
            with suppress(Exception), closing(self.open_catalog(name)) as catalog:
                for raw in raw_tables:
                    with suppress(NoSuchTableError):
                        found.append(str(catalog.load_table(raw).metadata.table_uuid))
        return found

    def staging_roots(self, tables: Iterable[TableConfig]) -> list[str]:
        """Return the folders of the tables that are kept in file sinks."""
        sinks = [(self.config.sink_of(table), table) for table in tables]
        return [
            folder
            for sink, table in sinks
            if isinstance(sink, FileSinkConfig)
            for root in self._roots(table)
            if (folder := self._folder(sink, table, root))
        ]

    def places_of(self, table: TableConfig) -> tuple[Place, Place | None]:
        """Return the place of a table's raw rows, and of its mirror or final table if it has one."""
        raw, out = self._roots(table)
        return place_of(raw, table.full_name), place_of(out, table.full_name) if out else None

    def _roots(self, table: TableConfig) -> tuple[str, str | None]:
        runtime = self.config.runtime
        final = runtime.final_root if runtime.finalize_full_refresh else None
        roots = {ReadersTable.FINAL: final, ReadersTable.MIRROR: runtime.intermediate}
        return runtime.raw_root, roots.get(MODES[table.mode].readers_table)

    def _folder(self, sink: FileSinkConfig, table: TableConfig, root: str | None) -> str | None:
        base = sink.root if ":" in sink.root else str(Path(sink.root).expanduser().absolute())
        return f"{base.rstrip('/')}/{root.strip('/')}/{table.full_name}" if root else None


def table_settings(
    table: TableConfig, *, finalizes: bool, reload: bool, columns: Mapping[str, Protection] | None = None
) -> TableSettings:
    """Convert a table of the configuration to the settings that strategies take.

    `columns` are those that are protected; needed where rows are read or compared.
    """
    return TableSettings(
        name=table.full_name,
        source=TableName(table.table, table.schema_name),
        mode=MODES[table.mode],
        incremental_column=table.incremental_column,
        incremental_kind=table.incr_col_type,
        initial_watermark=table.initial_watermark,
        lag_seconds=table.lag_seconds,
        late_commits=LateCommits(table.late_commits),
        max_held_back_seconds=table.max_held_back_seconds,
        primary_keys=table.primary_keys,
        tiebreak_columns=table.tiebreak_columns,
        source_filter=table.source_filter,
        as_text=table.as_text,
        as_decimal=table.as_decimal,
        columns=columns or {},
        null_watermarks=Rule(table.null_watermarks),
        null_keys=Rule(table.null_keys),
        partition_by=table.partition_by,
        merge_filters=table.merge_filters,
        finalize=Finalize(table.finalize) if finalizes else None,
        allow_empty=table.allow_empty,
        reader=Reader(table.reader),
        read_partitions=table.read_partitions,
        fetch_rows=table.fetch_rows,
        reload=reload or table.force_reload,
    )
