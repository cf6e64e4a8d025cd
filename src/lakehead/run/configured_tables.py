"""The Iceberg tables of a configuration, for commands that list, drop, rename and recover them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog

from lakehead.errors import Misconfigured
from lakehead.extract.iceberg_tables import Place
from lakehead.extract.modes import MODES
from lakehead.extract.table_settings import Finalize
from lakehead.run.config.config_file import read_config
from lakehead.run.config.connections import FileSinkConfig
from lakehead.run.config.table_config import TableConfig
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.wiring import Wiring


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredTable:
    """One table of the configuration, and where its Iceberg tables are."""

    config: TableConfig
    catalog: Catalog
    raw: Place
    out: Place | None
    """The mirror or the final table; None if there is none, or if it is a view."""

    view: Place | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """Its tables, the one that readers read first: in this order they are dropped and renamed."""
        return (self.out, self.raw) if self.out else (self.raw,)


def wiring_of(file: Path) -> Wiring:
    """Read a configuration."""
    return Wiring(read_config(file), ENVIRONMENT)


@contextmanager
def iceberg_tables_of(wiring: Wiring) -> Iterator[list[ConfiguredTable]]:
    """Open the catalogs of a configuration, and return its tables in Iceberg sinks, in its order."""
    with ExitStack() as opened:
        catalogs: dict[str, Catalog] = {}
        found = []
        for table in wiring.config.tables:
            sink = wiring.config.sink_of(table)
            if isinstance(sink, FileSinkConfig):
                continue
            if sink.catalog not in catalogs:
                wiring.config.spark.lakehouse.expanduser().mkdir(parents=True, exist_ok=True)
                catalogs[sink.catalog] = wiring.open_catalog(sink.catalog)
                opened.callback(catalogs[sink.catalog].close)
            raw, out = wiring.places_of(table)
            is_view = MODES[table.mode].name == "full" and table.finalize == Finalize.VIEW.value
            found.append(
                ConfiguredTable(
                    config=table,
                    catalog=catalogs[sink.catalog],
                    raw=raw,
                    out=None if is_view else out,
                    view=out if is_view else None,
                )
            )
        yield found


def named_table(tables: list[ConfiguredTable], name: str) -> ConfiguredTable:
    """The table of this name. Raises `Misconfigured` if there is none."""
    for table in tables:
        if table.config.full_name == name:
            return table
    known = ", ".join(table.config.full_name for table in tables) or "none in an Iceberg sink"
    raise Misconfigured(f"The configuration has no table {name}. It has: {known}.")
