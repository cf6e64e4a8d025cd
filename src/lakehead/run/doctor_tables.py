"""`lakehead doctor` on tables: whether their metadata stays small under the landings that they get."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from lakehead.errors import LakeheadError
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.tables import Chosen
from lakehead.spark.settings import EMBEDDED

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as Iceberg

UNREADABLE = "If its metadata is lost or damaged, bring it back from a backup, or drop the table and load it anew."


class NeedsMaintenance(LakeheadError):
    """A table's metadata has grown. Landings still work, and each is slower than the one before."""


def options_for(named: Chosen, lakehouse: Path | None, config: Path | None) -> str:
    """The options by which commands find a table, as the doctor has found it."""
    if config is not None:
        return f" --config {quote(str(config))}"
    if named.catalog == EMBEDDED:
        return f" --lakehouse {quote(str(lakehouse or 'lakehouse'))}"
    return f" --catalog {quote(named.catalog)} --catalog-property KEY=VALUE"


def check_table(named: Chosen, options: str, say: Callable[[str], None]) -> list[LakeheadError]:
    """Look at one table, which commands find by these options; what is to be done for it."""
    from lakehead.run.sentences import opening  # noqa: PLC0415 - see `check_tables_of`

    with opening(f"The table {named.table} in the catalog {named.catalog!r}", UNREADABLE), named.open() as (table, _):
        return _faults(table.seen(), named.catalog, options, say)


def check_tables_of(file: Path, say: Callable[[str], None]) -> list[LakeheadError]:
    """Look at every Iceberg table that a configuration loads; what is to be done for them.

    A table or a catalog that cannot be opened is told, and the others are looked at.
    """
    # Not at the top: they load PyIceberg and PySpark, which a doctor without tables has no use for.
    from lakehead.run.config.connections import FileSink  # noqa: PLC0415 - see above
    from lakehead.run.config.reading import read_config  # noqa: PLC0415 - see above
    from lakehead.run.wiring import Wiring  # noqa: PLC0415 - see above

    wiring = Wiring(read_config(file), ENVIRONMENT)
    places: dict[str, list[str]] = {}
    for table in wiring.config.tables:
        sink = wiring.config.sink_of(table)
        if not isinstance(sink, FileSink):
            places.setdefault(sink.catalog, []).extend(place.name for place in wiring.places_of(table) if place)
    options, faults = f" --config {quote(str(file))}", list[LakeheadError]()
    for name, tables in places.items():
        try:
            with closing(wiring.open_catalog(name)) as catalog:
                for place in tables:
                    faults += _faults_of(catalog, place, options, say)
        except LakeheadError as error:
            faults.append(error)
    return faults


def _faults_of(catalog: "Catalog", table: str, options: str, say: Callable[[str], None]) -> list[LakeheadError]:
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - see `check_tables_of`

    from lakehead.run.sentences import CannotOpen, opening  # noqa: PLC0415 - see `check_tables_of`

    try:
        with opening(f"The table {table} in the catalog {catalog.name!r}", UNREADABLE):
            return _faults(catalog.load_table(table), catalog.name, options, say)
    except CannotOpen as error:
        if not isinstance(error.__cause__, NoSuchTableError):
            return [error]
        say(f"table {table}: there is none yet")
        return []


def _faults(iceberg: "Iceberg", catalog: str, options: str, say: Callable[[str], None]) -> list[LakeheadError]:
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
