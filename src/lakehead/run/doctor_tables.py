"""`lakehead doctor` on tables: whether their metadata stays small under the landings that they get."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from lakehead.errors import LakeheadError
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.tables import Chosen
from lakehead.spark.settings import EMBEDDED

if TYPE_CHECKING:
    from pyiceberg.table import Table as Iceberg

    from lakehead.maintain.growth import Growth


class NeedsMaintenance(LakeheadError):
    """A table's metadata has grown. Landings still work, and each is slower than the one before."""


def check_table(named: Chosen, lakehouse: Path | None, say: Callable[[str], None]) -> list[LakeheadError]:
    """Look at one table; what is to be done for it."""
    from lakehead.maintain.growth import growth_of  # noqa: PLC0415 - see `_configured`

    with named.open() as (table, _):
        found_by = (
            f"--lakehouse {quote(str(lakehouse or 'lakehouse'))}"
            if named.catalog == EMBEDDED
            else f"--catalog {quote(named.catalog)}"
        )
        seen = table.seen()
        return _faults(seen, growth_of(seen, catalog=named.catalog, options=f" {found_by}"), say)


def check_tables_of(file: Path, say: Callable[[str], None]) -> list[LakeheadError]:
    """Look at every Iceberg table that a configuration loads; what is to be done for them."""
    from lakehead.maintain.growth import growth_of  # noqa: PLC0415 - see `_configured`

    options = f" --config {quote(str(file))}"
    return [
        fault
        for iceberg, catalog in _configured(file, say)
        for fault in _faults(iceberg, growth_of(iceberg, catalog=catalog, options=options, state="", ledger=""), say)
    ]


def _configured(file: Path, say: Callable[[str], None]) -> "Iterator[tuple[Iceberg, str]]":
    # Not at the top: they load PyIceberg and PySpark, which a doctor without tables has no use for.
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - see above

    from lakehead.lake.catalog import open_catalog  # noqa: PLC0415 - see above
    from lakehead.run.config.connections import FileSink  # noqa: PLC0415 - see above
    from lakehead.run.config.reading import read_config  # noqa: PLC0415 - see above
    from lakehead.run.wiring import Wiring  # noqa: PLC0415 - see above

    wiring = Wiring(read_config(file), ENVIRONMENT)
    with ExitStack() as opened:
        catalogs = {name: open_catalog(name, properties) for name, properties in wiring.catalogs.items()}
        for catalog in catalogs.values():
            opened.callback(catalog.close)
        for table in wiring.config.tables:
            sink = wiring.config.sink_of(table)
            if isinstance(sink, FileSink):
                continue
            for place in wiring.places_of(table):
                if place is None:
                    continue
                try:
                    yield catalogs[sink.catalog].load_table(place.name), sink.catalog
                except NoSuchTableError:
                    say(f"table {place.name}: there is none yet")


def _faults(iceberg: "Iceberg", growth: "Growth", say: Callable[[str], None]) -> list[LakeheadError]:
    name = ".".join(iceberg.name())
    if growth.advice:
        return [NeedsMaintenance(f"The metadata of table {name} grows. {advice}") for advice in growth.advice]
    say(
        f"table ok: {name} has {growth.snapshots} snapshots, {growth.manifests} manifests and {growth.metadata_files} "
        f"metadata files, the newest of {growth.metadata_bytes} bytes"
    )
    return []
