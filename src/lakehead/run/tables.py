"""Which table a command is about: the options that name its catalog, its state and its ledger, and what they open."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds
from lakehead.run.environment import catalog_properties, spark_settings, state_password, store_settings
from lakehead.spark.settings import EMBEDDED, Properties, embedded_catalog
from lakehead.storage.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehead.lake.ledger import StoreLedger
    from lakehead.lake.table import IcebergTable
    from lakehead.state.state import State

NOWHERE = "memory://"
CATALOG_FILE = "catalog.sqlite"
_AGE = re.compile(r"(\d+)\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def age(said: str) -> timedelta:
    """An age as it is typed: 90m, 12h, 3d."""
    found = _AGE.fullmatch(said.strip())
    if found is None:
        raise typer.BadParameter("write a number and s, m, h or d, such as 12h or 3d")
    return timedelta(seconds=int(found[1]) * _SECONDS[found[2]])


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
StateUrl: TypeAlias = Annotated[
    str, typer.Option("--state", metavar="URL", help="The state: sqlite:///file, postgresql://… or mysql://…")
]
LedgerUrl: TypeAlias = Annotated[
    str,
    typer.Option("--ledger", metavar="URL", help="The store of the ledger: file:///folder, s3://…, gs://… or az://…"),
]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done; change nothing.")]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A table, by its name and its catalog."""

    table: str
    catalog: str
    properties: Properties

    @contextmanager
    def open(self, ledger: str | None = None) -> "Iterator[tuple[IcebergTable, StoreLedger]]":
        """The table and its ledger; an empty one where the command has no use for it. No JVM is started."""
        if ledger is not None and ledger.startswith(NOWHERE):
            raise Misconfigured("A ledger in memory would be lost with this command. Name the one of the landings.")
        ledger = ledger or NOWHERE
        # Not at the top: PyIceberg and PySpark take longer to load than all that the other commands do.
        from lakehead.lake.catalog import open_catalog  # noqa: PLC0415 - see above
        from lakehead.lake.ledger import StoreLedger  # noqa: PLC0415 - see above
        from lakehead.lake.table import IcebergTable  # noqa: PLC0415 - see above

        records = StoreLedger(open_store(ledger, store_settings(ledger)))
        catalog = open_catalog(self.catalog, self.properties)
        try:
            yield IcebergTable(catalog, self.table, records), records
        finally:
            catalog.close()

    @contextmanager
    def session(self) -> "Iterator[SparkSession]":
        """A Spark session that knows the catalog, for as long as it is needed."""
        from lakehead.spark.session import build_session, stop_session  # noqa: PLC0415 - see `open`

        settings = replace(
            spark_settings(), app_name=f"lakehead {self.table}", catalogs={self.catalog: self.properties}
        )
        session = build_session(settings, say=lambda what: typer.echo(f"… {what}", err=True))
        try:
            yield session
        finally:
            stop_session(session)


def chosen(table: str, lakehouse: Path | None, catalog: str | None, properties: Sequence[str] | None) -> Chosen:
    """What the options name. Raises `Misconfigured` where they contradict each other or name nothing."""
    if table.count(".") < 1 or not all(table.split(".")):
        raise Misconfigured(f"The table {table!r} must be named with its namespace: namespace.table.")
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
    return Chosen(table, catalog, catalog_properties(pairs))


def open_state(url: str) -> "State":
    """The state that a URL names."""
    from lakehead.state import opening  # noqa: PLC0415 - it loads SQLAlchemy, which not every command needs

    settings = opening.StateSettings(password=state_password())
    return opening.open_state(url, SystemClock(), RandomIds(), settings=settings)
