"""From a configuration to what works: the one place that chooses adapters and reveals secrets."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import SparkSession

from lakehead.clock import Clock
from lakehead.errors import Misconfigured
from lakehead.extract.iceberg import IcebergSink, Surroundings
from lakehead.extract.iceberg_tables import Place, place_of
from lakehead.extract.sink import TableSink
from lakehead.extract.table import Finalize, Reader, Rule, TableSettings
from lakehead.ids import Ids
from lakehead.lake.catalog import open_catalog
from lakehead.lake.ledger import StoreLedger
from lakehead.run.config.config import Config
from lakehead.run.config.connections import FileSink
from lakehead.run.config.connections import Source as SourceConfig
from lakehead.run.config.parts import Secret
from lakehead.run.config.tables import Table
from lakehead.run.environment import catalog_properties, spark_settings, state_password, store_settings
from lakehead.source.jdbc import address
from lakehead.source.opening import open_source
from lakehead.source.port import Source, TableName
from lakehead.source.settings import SourceSettings
from lakehead.spark.coordinates import driver
from lakehead.spark.settings import Properties, SparkSettings, embedded_catalog
from lakehead.state.opening import StateSettings, open_state
from lakehead.state.state import State
from lakehead.storage.opening import open_store

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True)
class Wiring:
    """A configuration with its secrets, ready to open what it names. Its repr holds no secret."""

    config: Config
    environment: Mapping[str, str]

    def check(self) -> None:
        """Raise `Misconfigured` for a secret that is not where it should be and for what cannot be opened, before
        anything is started; make the folder of an embedded catalog."""
        for source in self.config.sources.values():
            self._source_settings(source)
        for table in self.config.tables:
            self.catalog_of(table)
            _check_name(table)
        _ = self.spark_settings, self._state_password
        if any(not isinstance(sink, FileSink) and not sink.properties for sink in self.config.sinks.values()):
            self.config.spark.lakehouse.expanduser().mkdir(parents=True, exist_ok=True)

    @cached_property
    def catalogs(self) -> Mapping[str, Properties]:
        """Every Iceberg catalog of the configuration, by its name in SQL."""
        lakehouse = self.config.spark.lakehouse
        return {
            sink.catalog: catalog_properties(self._revealed(sink.properties), self.environment)
            if sink.properties
            else embedded_catalog(lakehouse)
            for sink in self.config.sinks.values()
            if not isinstance(sink, FileSink)
        }

    @cached_property
    def spark_settings(self) -> SparkSettings:
        """How Spark is started."""
        spark = self.config.spark
        return replace(
            spark_settings(self.environment),
            master=spark.master,
            app_name=spark.app_name,
            catalogs=self.catalogs,
            jars=(*sorted(self._drivers()), *spark.jars),
            driver_memory=spark.driver_memory,
            python=spark.python,
            ui=spark.ui,
            conf=self._revealed(spark.conf),
        )

    def open_state(self, clock: Clock, ids: Ids) -> State:
        """The state database."""
        url = self.config.runtime.state.url
        return open_state(url, clock, ids, settings=StateSettings(password=self._state_password))

    def open_ledger(self) -> StoreLedger:
        """The store of the ledger. Each thread opens its own."""
        lakehouse = self.config.spark.lakehouse.expanduser().absolute()
        url = self.config.runtime.ledger.url or (lakehouse / "ledger").as_uri()
        return StoreLedger(open_store(url, store_settings(url, self.environment)))

    def source_of(self, table: Table, session: SparkSession) -> Callable[[], Source]:
        """What reaches the source of a table, when it is called."""
        settings = self._source_settings(self.config.source_of(table))
        return lambda: open_source(settings, session)

    def sink_of(self, table: Table, settings: TableSettings, around: Surroundings) -> TableSink:
        """Where a table is kept."""
        raw, out = self.places_of(table)
        return IcebergSink(settings, raw, out, around)

    def catalog_of(self, table: Table) -> str:
        """The name of the catalog that a table is kept in."""
        sink = self.config.sink_of(table)
        if isinstance(sink, FileSink):
            raise Misconfigured(
                f"The table {table.full_name} goes to a sink of files, which tables are not loaded to yet. Name a sink "
                "of the type iceberg."
            )
        return sink.catalog

    def open_catalog(self, table: Table) -> Catalog:
        """The catalog of a table. Each thread opens its own."""
        name = self.catalog_of(table)
        return open_catalog(name, self.catalogs[name])

    def known_ids(self, tables: Iterable[Table]) -> list[str]:
        """Under what the state knows those of the tables that have been loaded before."""
        found = []
        with ExitStack() as opened:
            catalogs: dict[str, Catalog] = {}
            for table in tables:
                name = self.catalog_of(table)
                if name not in catalogs:
                    catalogs[name] = self.open_catalog(table)
                    opened.callback(catalogs[name].close)
                with suppress(NoSuchTableError):
                    raw, _ = self.places_of(table)
                    found.append(str(catalogs[name].load_table(raw.name).metadata.table_uuid))
        return found

    def places_of(self, table: Table) -> tuple[Place, Place | None]:
        """Where a table's raw rows are, and what its readers read, if that is another."""
        runtime = self.config.runtime
        root = {"full": runtime.final_root if runtime.finalize_full_refresh else None, "scd1": runtime.intermediate}
        out = root.get(table.mode)
        return place_of(runtime.raw_root, table.full_name), place_of(out, table.full_name) if out else None

    def _source_settings(self, source: SourceConfig) -> SourceSettings:
        password = source.password.reveal(self.environment) if source.password else None
        settings = SourceSettings.parse(source.url, user=source.user, password=password)
        given = self._revealed(source.properties)
        if given and settings.kind != "postgresql":
            raise Misconfigured(
                f"The source {settings} has properties, and only PostgreSQL's are known. Take them out."
            )
        return replace(settings, options=(*settings.options, *given.items()))

    @cached_property
    def _state_password(self) -> str | None:
        secret = self.config.runtime.state.password
        return secret.reveal(self.environment) if secret else state_password(self.environment)

    def _drivers(self) -> set[str]:
        """The JDBC drivers that tables are read with, as far as we know them."""
        found = set()
        for table in self.config.tables:
            source = self.config.source_of(table)
            if table.reader == "jdbc" or source.dialect == "jdbc":
                settings = SourceSettings.parse(source.url, user=source.user)
                # MariaDB's driver speaks to MySQL too, and is the one that tables are read with.
                url = "jdbc:mariadb:" if settings.kind == "mysql" else address(settings)
                found |= {coordinate for coordinate in (driver(url),) if coordinate}
        return found

    def _revealed(self, properties: Mapping[str, str | Secret]) -> dict[str, str]:
        return {
            key: value.reveal(self.environment) if isinstance(value, Secret) else value
            for key, value in properties.items()
        }


def _check_name(table: Table) -> None:
    """Raise `Misconfigured` where a table's own name in the source is no name of a table in the lakehouse."""
    if not _NAME.fullmatch(table.full_name):
        raise Misconfigured(
            f"The table {table.full_name!r} cannot be called so in the lakehouse. Give it another by its key name: "
            "words of letters, digits, _ and -, with dots between them."
        )


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
