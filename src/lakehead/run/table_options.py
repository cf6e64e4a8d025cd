"""Options that name a table, its catalog, state and ledger, and the `TableRef` that opens them."""

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds
from lakehead.run.environment import (
    ENVIRONMENT,
    catalog_properties,
    is_reference,
    spark_settings,
    state_password,
    store_settings,
)
from lakehead.spark.settings import EMBEDDED, Properties, SparkSettings, catalog_prefix, embedded_catalog
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.open_store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehead.lake.iceberg_table import IcebergTable
    from lakehead.lake.ledger import StoreLedger
    from lakehead.state.state import State

IN_MEMORY = "memory:"
CATALOG_FILE = "catalog.sqlite"
_AGE = re.compile(r"(\d+)\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_age(text: str) -> timedelta:
    """Parse an age such as 90m, 12h or 3d."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter("write a number and s, m, h or d, such as 12h or 3d")
    try:
        return timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
    except (OverflowError, ValueError):
        raise typer.BadParameter("the number is too large; write an age such as 12h or 3d") from None


TableArgument: TypeAlias = Annotated[str, typer.Argument(metavar="TABLE", help="The table: namespace.table")]
LakehouseFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The folder of an embedded catalog.", show_default="lakehouse, without --catalog"),
]
CatalogName: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The name of another catalog; give its properties with --catalog-property."),
]
CatalogProperties: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog-property",
        metavar="KEY=VALUE",
        help="An Iceberg property of that catalog; repeat it for more: type=rest, uri=…, warehouse=…; "
        "KEY=env:NAME takes the value from an environment variable.",
    ),
]
ConfigFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration of the runs, which names catalog, state and ledger.",
        show_default=False,
    ),
]
StateUrl: TypeAlias = Annotated[
    str | None, typer.Option("--state", metavar="URL", help="The state: sqlite:///file, postgresql://… or mysql://…")
]
LedgerUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--ledger", metavar="URL", help="The store of the ledger: file:///folder, s3://…, gs://… or az://…"),
]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done; change nothing.")]


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table in a catalog, with its state and ledger if they were given."""

    table: str
    catalog: str
    properties: Properties = field(repr=False)
    spark: SparkSettings = field(default_factory=spark_settings)
    """The settings of the Spark session, for commands that need one."""

    state: str | None = field(default=None, repr=False)
    """The URL of the state, which may hold a password."""

    password: str | None = field(default=None, repr=False)
    """The password of the state."""

    ledger: str | None = None

    def open_state(self) -> "State":
        """Open the state. Raises `Misconfigured` if none was given."""
        if self.state is None:
            raise Misconfigured("Name the state with --state, or the configuration of the runs with --config.")
        return open_state(self.state, self.password)

    def open_with_ledger(self) -> "AbstractContextManager[tuple[IcebergTable, StoreLedger]]":
        """Open the table and its ledger. Raises `Misconfigured` if no ledger was given."""
        if self.ledger is None:
            raise Misconfigured("Name the ledger with --ledger, or the configuration of the runs with --config.")
        return self.open(self.ledger)

    @contextmanager
    def open(self, ledger: str | None = None) -> "Iterator[tuple[IcebergTable, StoreLedger]]":
        """Open the table and a ledger; without a URL the ledger is empty. Starts no JVM."""
        if ledger is not None and ledger.startswith(IN_MEMORY):
            raise Misconfigured(
                "A ledger in memory would be lost when this command ends. Give the ledger that the runs use."
            )
        # Imported here: PyIceberg and PySpark are slow to load, and not every command needs them.
        from lakehead.lake.catalog import open_catalog  # noqa: PLC0415 - see above
        from lakehead.lake.iceberg_table import IcebergTable  # noqa: PLC0415 - see above
        from lakehead.lake.ledger import StoreLedger  # noqa: PLC0415 - see above

        # Not `memory://`, which is shared by the whole process.
        store = open_store(ledger, store_settings(ledger)) if ledger else MemoryStore(clock=SystemClock())
        records = StoreLedger(store)
        catalog = open_catalog(self.catalog, self.properties)
        try:
            yield IcebergTable(catalog, self.table, records), records
        finally:
            catalog.close()

    @contextmanager
    def session(self) -> "Iterator[SparkSession]":
        """Start a Spark session with the catalog, and stop it at the end of the `with`."""
        from lakehead.spark.session import build_session, stop_session  # noqa: PLC0415 - see `open`

        settings = replace(self.spark, app_name=f"lakehead {self.table}", catalogs={self.catalog: self.properties})
        session = build_session(settings, say=lambda step: typer.echo(f"… {step}", err=True))
        try:
            yield session
        finally:
            stop_session(session)


def resolve_table(
    table: str,
    lakehouse: Path | None,
    catalog: str | None,
    properties: Sequence[str] | None,
    *,
    config: Path | None = None,
    state: str | None = None,
    ledger: str | None = None,
) -> TableRef:
    """Return the table that the options name. Raises `Misconfigured` if they conflict or are incomplete."""
    if table.count(".") < 1 or not all(table.split(".")):
        raise Misconfigured(f"The table {table!r} lacks its namespace. Write namespace.table.")
    if config is not None:
        if lakehouse or catalog or properties or state or ledger:
            raise Misconfigured(
                "--config already names catalog, state and ledger. Give either --config or those options."
            )
        return _configured(table, config)
    return replace(
        _in_catalog(table, lakehouse, catalog, properties), state=state, password=state_password(), ledger=ledger
    )


def _configured(table: str, file: Path) -> TableRef:
    """Return a table of a configuration by its name in the lakehouse: a raw, mirror or final table."""
    # Not at the top: see `TableRef.open`.
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above
    from lakehead.run.config.connections import FileSinkConfig  # noqa: PLC0415 - see above
    from lakehead.run.wiring import Wiring  # noqa: PLC0415 - see above

    wiring = Wiring(read_config(file), ENVIRONMENT)
    catalogs: dict[str, str] = {}
    for each in wiring.config.tables:
        sink = wiring.config.sink_of(each)
        if not isinstance(sink, FileSinkConfig):
            catalogs |= {place.name: sink.catalog for place in wiring.places_of(each) if place}
    if table not in catalogs:
        known = ", ".join(sorted(catalogs)) or "none in an Iceberg catalog"
        raise Misconfigured(f"The configuration {file} has no table {table} in the lakehouse. It has: {known}.")
    return TableRef(
        table,
        catalogs[table],
        wiring.catalogs[catalogs[table]],
        wiring.spark_settings,
        state=wiring.config.runtime.state.url,
        password=wiring.state_password,
        ledger=wiring.ledger_url,
    )


def _in_catalog(table: str, lakehouse: Path | None, catalog: str | None, properties: Sequence[str] | None) -> TableRef:
    if catalog is None:
        if properties:
            raise Misconfigured("--catalog-property needs --catalog, the name of the catalog.")
        folder = lakehouse or Path("lakehouse")
        if not (folder / CATALOG_FILE).is_file():
            raise Misconfigured(
                f"There is no embedded catalog in {folder}: it has no {CATALOG_FILE}. Name the folder with "
                "--lakehouse, or another catalog with --catalog."
            )
        return TableRef(table, EMBEDDED, embedded_catalog(folder))
    if lakehouse is not None:
        raise Misconfigured(
            "Give --lakehouse or --catalog, not both: an embedded catalog has a fixed name and properties."
        )
    pairs = {}
    for pair in properties or ():
        key, found, value = pair.partition("=")
        if not key or not found:
            raise Misconfigured(f"The catalog property {key!r} must be written as KEY=VALUE.")
        pairs[key] = value
    secret = frozenset(f"{catalog_prefix(catalog)}.{key}" for key, value in pairs.items() if is_reference(value))
    return TableRef(table, catalog, catalog_properties(pairs), replace(spark_settings(), secret_keys=secret))


def open_state(url: str, password: str | None) -> "State":
    """Open the state at a URL."""
    from lakehead.state import opening  # noqa: PLC0415 - loads SQLAlchemy, which not every command needs

    settings = opening.StateSettings(password=password)
    return opening.open_state(url, SystemClock(), RandomIds(), settings=settings)
