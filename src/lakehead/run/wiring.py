"""From a configuration to what works: the one place that chooses adapters."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import SparkSession

from lakehead.clock import Clock
from lakehead.extract.files import FileTableSink
from lakehead.extract.iceberg import IcebergSink
from lakehead.extract.iceberg_tables import Place, place_of
from lakehead.extract.sink import TableSink
from lakehead.extract.surroundings import Shared, Surroundings
from lakehead.extract.table import Finalize, LateCommits, Reader, Rule, TableSettings
from lakehead.ids import Ids
from lakehead.lake.catalog import open_catalog
from lakehead.lake.filesink.hadoop import HadoopFiles
from lakehead.lake.filesink.sink import FileSink, Way
from lakehead.lake.ledger import StoreLedger
from lakehead.run.config.connections import FileSink as FileSinkConfig
from lakehead.run.config.tables import Table
from lakehead.run.environment import store_settings
from lakehead.run.revealed import Revealed
from lakehead.run.sentences import opening
from lakehead.source.opening import open_source
from lakehead.source.port import Source, TableName
from lakehead.state.opening import StateSettings, open_state
from lakehead.state.state import State
from lakehead.storage.opening import open_store


class Wiring(Revealed):
    """Opens what a configuration names."""

    def open_state(self, clock: Clock, ids: Ids) -> State:
        """The state database."""
        url = self.config.runtime.state.url
        return open_state(url, clock, ids, settings=StateSettings(password=self.state_password))

    @property
    def ledger_url(self) -> str:
        """Where the ledger is: where the configuration says, else beside the lakehouse's tables."""
        lakehouse = self.config.spark.lakehouse.expanduser().absolute()
        return self.config.runtime.ledger.url or (lakehouse / "ledger").as_uri()

    def open_ledger(self) -> StoreLedger:
        """The store of the ledger. Each thread opens its own."""
        return StoreLedger(open_store(self.ledger_url, store_settings(self.ledger_url, self.environment)))

    def source_of(self, table: Table, session: SparkSession) -> Callable[[], Source]:
        """What reaches the source of a table, when it is called."""
        settings = self.source_settings(self.config.source_of(table))
        return lambda: open_source(settings, session)

    def sink_of(self, table: Table, settings: TableSettings, shared: Shared) -> TableSink:
        """Where a table is kept. Each thread opens its own; close it."""
        sink = self.config.sink_of(table)
        if isinstance(sink, FileSinkConfig):
            raw, out = (self._folder(sink, table, root) for root in self._roots(table))
            files = HadoopFiles(shared.session, ids=shared.ids)
            way = Way(sink.publish) if sink.publish else None
            made = [FileSink(root=root, files=files, ids=shared.ids, way=way) for root in (raw, out) if root]
            return FileTableSink(settings, made[0], made[1] if len(made) > 1 else None, shared)
        known = {each.name: getattr(shared, each.name) for each in fields(shared)}
        with ExitStack() as opened:
            catalog = self.open_catalog(sink.catalog, shared.clock)
            opened.callback(catalog.close)
            look_after = timedelta(hours=self.config.runtime.verify_staged_after_hours)
            around = Surroundings(**known, catalog=catalog, ledger=self.open_ledger(), look_after=look_after)
            places = self.places_of(table)
            named = " or ".join(place.name for place in places if place)
            with opening(
                f"The table {named} in the catalog {sink.catalog!r}",
                "If its metadata is lost or damaged, bring it back from a backup, or drop the table and load it anew.",
            ):
                kept = IcebergSink(settings, *places, around)
            opened.pop_all()  # from now on the sink closes it
            return kept

    def open_catalog(self, name: str, clock: Clock | None = None) -> Catalog:
        """One of the configuration's catalogs; close it. Raises `CannotOpen` with a sentence where that fails."""
        with opening(f"The catalog {name!r}", "Check that it runs, and its properties in the configuration."):
            return open_catalog(name, self.catalogs[name], clock)

    def known_ids(self, tables: Iterable[Table]) -> list[str]:
        """Under what the state knows those of the tables that have been loaded to Iceberg before.

        A table that cannot be opened is left out, and with it those that come after it in its catalog, which may be out
        of reach: each is opened again when its turn comes, and only then fails.
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

    def staging_roots(self, tables: Iterable[Table]) -> list[str]:
        """The roots of all sinks of files that the tables are kept in."""
        kept = [(self.config.sink_of(table), table) for table in tables]
        return [
            folder
            for sink, table in kept
            if isinstance(sink, FileSinkConfig)
            for root in self._roots(table)
            if (folder := self._folder(sink, table, root))
        ]

    def places_of(self, table: Table) -> tuple[Place, Place | None]:
        """Where a table's raw rows are, and what its readers read, if that is another."""
        raw, out = self._roots(table)
        return place_of(raw, table.full_name), place_of(out, table.full_name) if out else None

    def _roots(self, table: Table) -> tuple[str, str | None]:
        runtime = self.config.runtime
        final = runtime.final_root if runtime.finalize_full_refresh else None
        return runtime.raw_root, {"full": final, "scd1": runtime.intermediate}.get(table.mode)

    def _folder(self, sink: FileSinkConfig, table: Table, root: str | None) -> str | None:
        base = sink.root if ":" in sink.root else str(Path(sink.root).expanduser().absolute())
        return f"{base.rstrip('/')}/{root.strip('/')}/{table.full_name}" if root else None


def table_settings(table: Table, *, finalizes: bool, reload: bool) -> TableSettings:
    """A table of the configuration as strategies take it."""
    return TableSettings(
        name=table.full_name,
        source=TableName(table.table, table.schema_name),
        mode=table.mode,
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
