"""`lakehead doctor` on tables: whether their metadata stays small under the landings that they get."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from lakehead.errors import LakeheadError
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.tables import Chosen
from lakehead.spark.settings import EMBEDDED

if TYPE_CHECKING:
    from pyiceberg.table import Table as Iceberg


class NeedsMaintenance(LakeheadError):
    """A table's metadata has grown. Landings still work, and each is slower than the one before."""


def check_table(named: Chosen, lakehouse: Path | None, say: Callable[[str], None]) -> list[LakeheadError]:
    """Look at one table; what is to be done for it."""
    with named.open() as (table, _):
        return _faults(table.seen(), named.catalog, lakehouse, say)


def check_tables_of(file: Path, say: Callable[[str], None]) -> list[LakeheadError]:
    """Look at every Iceberg table that a configuration loads; what is to be done for them."""
    return [fault for each in _configured(file, say) for fault in _faults(*each, say)]


def _configured(file: Path, say: Callable[[str], None]) -> "Iterator[tuple[Iceberg, str, Path]]":
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
                    yield catalogs[sink.catalog].load_table(place.name), sink.catalog, wiring.config.spark.lakehouse
                except NoSuchTableError:
                    say(f"table {place.name}: there is none yet")


def _faults(
    iceberg: "Iceberg", catalog: str, lakehouse: Path | None, say: Callable[[str], None]
) -> list[LakeheadError]:
    from lakehead.maintain.growth import growth_of  # noqa: PLC0415 - see `_configured`

    found_by = f"--lakehouse {lakehouse or 'lakehouse'}" if catalog == EMBEDDED else f"--catalog {catalog}"
    name, growth = ".".join(iceberg.name()), growth_of(iceberg, catalog=catalog, options=f" {found_by}")
    if growth.advice:
        return [NeedsMaintenance(f"The metadata of table {name} grows. {advice}") for advice in growth.advice]
    say(
        f"table ok: {name} has {growth.snapshots} snapshots, {growth.manifests} manifests and {growth.metadata_files} "
        f"metadata files, the newest of {growth.metadata_bytes} bytes"
    )
    return []
