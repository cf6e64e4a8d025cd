"""`lakehead doctor` on tables: checks whether their metadata has grown too large."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from lakehead.errors import LakeheadError
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.table_options import TableRef
from lakehead.spark.settings import EMBEDDED

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as Iceberg

UNREADABLE = "If its metadata is lost or damaged, restore it from a backup, or drop the table and load it again."


class NeedsMaintenance(LakeheadError):
    """A table's metadata has grown too large. Landings still work, but become slower and slower."""


def options_for(named: TableRef, lakehouse: Path | None, config: Path | None) -> str:
    """Return the command-line options that name the same table, for suggested commands."""
    if config is not None:
        return f" --config {quote(str(config))}"
    if named.catalog == EMBEDDED:
        return f" --lakehouse {quote(str(lakehouse or 'lakehouse'))}"
    return f" --catalog {quote(named.catalog)} --catalog-property KEY=VALUE"


def check_table(named: TableRef, options: str, say: Callable[[str], None]) -> list[LakeheadError]:
    """Check one table. `options` name it in suggested commands. Returns the problems."""
    from lakehead.run.error_messages import open_errors_as  # noqa: PLC0415 - see `check_tables_of`

    with (
        open_errors_as(f"The table {named.table} in the catalog {named.catalog!r}", UNREADABLE),
        named.open() as (table, _),
    ):
        return _problems(table.seen(), named.catalog, options, say)


def check_tables_of(file: Path, say: Callable[[str], None]) -> list[LakeheadError]:
    """Check every Iceberg table of a configuration. Returns the problems.

    A table or catalog that cannot be opened is one of them; the others are still checked.
    """
    # Imported here: loads PyIceberg and PySpark, which are only needed for tables.
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above
    from lakehead.run.config.connections import FileSinkConfig  # noqa: PLC0415 - see above
    from lakehead.run.wiring import Wiring  # noqa: PLC0415 - see above

    wiring = Wiring(read_config(file), ENVIRONMENT)
    places: dict[str, list[str]] = {}
    for table in wiring.config.tables:
        sink = wiring.config.sink_of(table)
        if not isinstance(sink, FileSinkConfig):
            places.setdefault(sink.catalog, []).extend(place.name for place in wiring.places_of(table) if place)
    options, problems = f" --config {quote(str(file))}", list[LakeheadError]()
    for name, tables in places.items():
        try:
            with closing(wiring.open_catalog(name)) as catalog:
                for place in tables:
                    problems += _problems_of(catalog, place, options, say)
        except LakeheadError as error:
            problems.append(error)
    return problems


def _problems_of(catalog: "Catalog", table: str, options: str, say: Callable[[str], None]) -> list[LakeheadError]:
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - see `check_tables_of`

    from lakehead.run.error_messages import CannotOpen, open_errors_as  # noqa: PLC0415 - see `check_tables_of`

    try:
        with open_errors_as(f"The table {table} in the catalog {catalog.name!r}", UNREADABLE):
            return _problems(catalog.load_table(table), catalog.name, options, say)
    except CannotOpen as error:
        if not isinstance(error.__cause__, NoSuchTableError):
            return [error]
        say(f"table {table}: does not exist yet")
        return []


def _problems(iceberg: "Iceberg", catalog: str, options: str, say: Callable[[str], None]) -> list[LakeheadError]:
    from lakehead.maintain.growth import growth_of  # noqa: PLC0415 - see `check_tables_of`

    state, ledger = ("", "") if options.startswith(" --config ") else (" --state URL", " --ledger URL")
    growth = growth_of(iceberg, catalog=catalog, options=options, state=state, ledger=ledger)
    name = ".".join(iceberg.name())
    if growth.advice:
        return [NeedsMaintenance(f"The metadata of table {name} grows. {advice}") for advice in growth.advice]
    say(
        f"table ok: {name} has {growth.snapshots} snapshots, {growth.manifests} manifests and {growth.metadata_files} "
        f"metadata files, the newest of {growth.metadata_bytes} bytes"
    )
    return []
