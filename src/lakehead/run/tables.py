"""Which table a command is about: the options that name its catalog, its state and its ledger, and what they open."""

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
from lakehead.storage.memory import MemoryStore
from lakehead.storage.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehead.lake.ledger import StoreLedger
    from lakehead.lake.table import IcebergTable
    from lakehead.state.state import State

IN_MEMORY = "memory:"
CATALOG_FILE = "catalog.sqlite"
_AGE = re.compile(r"(\d+)\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def age(said: str) -> timedelta:
    """An age as it is typed: 90m, 12h, 3d."""
    found = _AGE.fullmatch(said.strip())
    if found is None:
        raise typer.BadParameter("write a number and s, m, h or d, such as 12h or 3d")
    try:
        return timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
    except (OverflowError, ValueError):
        raise typer.BadParameter("that is longer than any age; write a smaller number, such as 12h or 3d") from None


TableName: TypeAlias = Annotated[str, typer.Argument(metavar="TABLE", help="The table: namespace.table")]
LakehouseFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The folder of an embedded catalog.", show_default="lakehouse, without --catalog"),
]
CatalogName: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="Any other catalog, by its name; give its properties too.")
]
CatalogProperties: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog-property",
        metavar="KEY=VALUE",
        help="One of Iceberg's properties of that catalog, as often as needed: type=rest, uri=…, warehouse=…; "
        "KEY=env:NAME takes a secret from a variable.",
    ),
]
ConfigFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration of the runs: it names catalog, state and ledger, so none of them is given.",
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
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done; change nothing.")]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A table, by its name and its catalog, with its state and its ledger where they were named."""

    table: str
    catalog: str
    properties: Properties = field(repr=False)
    spark: SparkSettings = field(default_factory=spark_settings)
    """How Spark is started, where the command needs it."""

    state: str | None = field(default=None, repr=False)
    """Its URL, which may hold a password."""

    password: str | None = field(default=None, repr=False)
    """Of the state's user."""

    ledger: str | None = None

    def open_state(self) -> "State":
        """The state that was named."""
        if self.state is None:
            raise Misconfigured("Name the state with --state, or the configuration of the runs with --config.")
        return open_state(self.state, self.password)

    def open_with_ledger(self) -> "AbstractContextManager[tuple[IcebergTable, StoreLedger]]":
        """The table and the ledger that was named."""
        if self.ledger is None:
            raise Misconfigured("Name the ledger with --ledger, or the configuration of the runs with --config.")
        return self.open(self.ledger)

    @contextmanager
    def open(self, ledger: str | None = None) -> "Iterator[tuple[IcebergTable, StoreLedger]]":
        """The table and its ledger; an empty one where the command has no use for it. No JVM is started."""
        if ledger is not None and ledger.startswith(IN_MEMORY):
            raise Misconfigured("A ledger in memory would be lost with this command. Name the one of the landings.")
        # Not at the top: PyIceberg and PySpark take longer to load than all that the other commands do.
        from lakehead.lake.catalog import open_catalog  # noqa: PLC0415 - see above
        from lakehead.lake.ledger import StoreLedger  # noqa: PLC0415 - see above
        from lakehead.lake.table import IcebergTable  # noqa: PLC0415 - see above

        # Not `memory://`, which is one store for all of this process.
        store = open_store(ledger, store_settings(ledger)) if ledger else MemoryStore(clock=SystemClock())
        records = StoreLedger(store)
        catalog = open_catalog(self.catalog, self.properties)
        try:
            yield IcebergTable(catalog, self.table, records), records
        finally:
            catalog.close()

    @contextmanager
    def session(self) -> "Iterator[SparkSession]":
        """A Spark session that knows the catalog, for as long as it is needed."""
        from lakehead.spark.session import build_session, stop_session  # noqa: PLC0415 - see `open`

        settings = replace(self.spark, app_name=f"lakehead {self.table}", catalogs={self.catalog: self.properties})
        session = build_session(settings, say=lambda what: typer.echo(f"… {what}", err=True))
        try:
            yield session
        finally:
            stop_session(session)


def chosen(
    table: str,
    lakehouse: Path | None,
    catalog: str | None,
    properties: Sequence[str] | None,
    *,
    config: Path | None = None,
    state: str | None = None,
    ledger: str | None = None,
) -> Chosen:
    """What the options name. Raises `Misconfigured` where they contradict each other or name nothing."""
    if table.count(".") < 1 or not all(table.split(".")):
        raise Misconfigured(f"The table {table!r} must be named with its namespace: namespace.table.")
    if config is not None:
        if lakehouse or catalog or properties or state or ledger:
            raise Misconfigured(
                "The configuration names catalog, state and ledger. Give --config, or the options that name them."
            )
        return _configured(table, config)
    return replace(
        _in_catalog(table, lakehouse, catalog, properties), state=state, password=state_password(), ledger=ledger
    )


def _configured(table: str, file: Path) -> Chosen:
    """A table of a configuration, by its name in the lakehouse: that of raw, a mirror or a final."""
    # Not at the top: see `Chosen.open`.
    from lakehead.run.config.connections import FileSink  # noqa: PLC0415 - see above
    from lakehead.run.config.reading import read_config  # noqa: PLC0415 - see above
    from lakehead.run.wiring import Wiring  # noqa: PLC0415 - see above

    wiring = Wiring(read_config(file), ENVIRONMENT)
    catalogs: dict[str, str] = {}
    for each in wiring.config.tables:
        sink = wiring.config.sink_of(each)
        if not isinstance(sink, FileSink):
            catalogs |= {place.name: sink.catalog for place in wiring.places_of(each) if place}
    if table not in catalogs:
        known = ", ".join(sorted(catalogs)) or "none in an Iceberg catalog"
        raise Misconfigured(f"The configuration {file} has no table {table} in the lakehouse. It has: {known}.")
    return Chosen(
        table,
        catalogs[table],
        wiring.catalogs[catalogs[table]],
        wiring.spark_settings,
        state=wiring.config.runtime.state.url,
        password=wiring.state_password,
        ledger=wiring.ledger_url,
    )


def _in_catalog(table: str, lakehouse: Path | None, catalog: str | None, properties: Sequence[str] | None) -> Chosen:
    if catalog is None:
        if properties:
            raise Misconfigured(
                "--catalog-property needs --catalog, the name under which the catalog keeps its tables."
            )
        folder = lakehouse or Path("lakehouse")
        if not (folder / CATALOG_FILE).is_file():
            raise Misconfigured(
                f"There is no embedded catalog in {folder}: it has no {CATALOG_FILE}. Name the folder with "
                "--lakehouse, or another catalog with --catalog."
            )
        return Chosen(table, EMBEDDED, embedded_catalog(folder))
    if lakehouse is not None:
        raise Misconfigured("Give --lakehouse or --catalog, not both: an embedded catalog has its name and properties.")
    pairs = {}
    for said in properties or ():
        key, found, value = said.partition("=")
        if not key or not found:
            raise Misconfigured(f"The catalog property {key!r} must be written as KEY=VALUE.")
        pairs[key] = value
    secret = frozenset(f"{catalog_prefix(catalog)}.{key}" for key, value in pairs.items() if is_reference(value))
    return Chosen(table, catalog, catalog_properties(pairs), replace(spark_settings(), secret_keys=secret))


def open_state(url: str, password: str | None) -> "State":
    """The state that a URL names."""
    from lakehead.state import opening  # noqa: PLC0415 - it loads SQLAlchemy, which not every command needs

    settings = opening.StateSettings(password=password)
    return opening.open_state(url, SystemClock(), RandomIds(), settings=settings)
