"""`lakehead tables recover`: registers the tables of a lost catalog again, by their newest metadata files."""

import asyncio
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehead.errors import Misconfigured
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.tables import ensure_namespace
from lakehead.maintain.find_tables import FoundTable, MetadataFile, find_tables
from lakehead.maintain.places import place


class Action(Enum):
    """What becomes of a table that was found."""

    REGISTER = "register"
    HAS_IT = "in the catalog"
    DROPPED = "dropped on purpose"
    SHARED = "another table has its name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A table that was found, and what is or would be done with it."""

    name: str
    uuid: str
    metadata: str
    action: Action
    ambiguous: int = 0
    """How many other metadata files are at the end of a history too, from commits that failed."""


def recover(catalog: Catalog, ledger: StoreLedger, locations: Mapping[str, str], *, dry_run: bool) -> list[Recovered]:
    """Register every table below the catalog's warehouse, and at `locations` (names by folder), that it does not have.

    A table that the catalog has, by its name or its uuid, is never changed. Raises `Misconfigured` for a catalog
    without a warehouse folder.
    """
    warehouse = catalog.properties.get("warehouse")
    if warehouse is None or (":" not in warehouse and not warehouse.startswith("/")):
        raise Misconfigured(f"The catalog {catalog.name} has no warehouse folder in which tables could be found.")
    io = PyArrowFileIO(catalog.properties)
    found: dict[str, tuple[str, FoundTable, str]] = {}
    for root in (warehouse, *locations):
        scheme, netloc, path = PyArrowFileIO.parse_location(root, io.properties)
        filesystem, base = io.fs_by_scheme(scheme, netloc), place(root)
        for table in find_tables(filesystem, path):
            found.setdefault(f"{table.folder} {table.uuid}", (_name(table, base, root, locations), table, scheme))
    results = list(_decided(catalog, ledger, found.values()))
    if not dry_run:
        for each in results:
            if each.action is Action.REGISTER:
                ensure_namespace(catalog, each.name.rpartition(".")[0])
                catalog.register_table(each.name, each.metadata)
    return results


def _decided(
    catalog: Catalog, ledger: StoreLedger, tables: Iterable[tuple[str, FoundTable, str]]
) -> Iterator[Recovered]:
    chosen: list[tuple[str, FoundTable, MetadataFile, str]] = []
    for name, table, scheme in tables:
        newest = table.newest(asyncio.run(ledger.sequences(table.uuid)))
        chosen.append((newest.name or name, table, newest, scheme))
    # Of several tables with one name, as after a drop, the one that was written last comes first.
    chosen.sort(key=lambda each: (each[0], each[1].dropped, -each[2].updated_ms))
    known, taken = _known_uuids(catalog, {each[0].rpartition(".")[0] for each in chosen}), set[str]()
    for name, table, newest, scheme in chosen:
        if table.uuid in known:
            action = Action.HAS_IT
        elif table.dropped:
            action = Action.DROPPED
        elif name in taken or catalog.table_exists(name):
            action = Action.SHARED
        else:
            action = Action.REGISTER
            taken.add(name)
        metadata = newest.path if scheme == "file" else f"{scheme}://{newest.path}"
        others = len(table.files) - 1
        yield Recovered(name=name, uuid=table.uuid, metadata=metadata, action=action, ambiguous=others)


def _known_uuids(catalog: Catalog, namespaces: set[str]) -> set[str]:
    known = set[str]()
    for namespace in namespaces:
        try:
            names = catalog.list_tables(namespace)
        except NoSuchNamespaceError:
            continue
        known |= {str(catalog.load_table(name).metadata.table_uuid) for name in names}
    return known


def _name(table: FoundTable, base: str, root: str, locations: Mapping[str, str]) -> str:
    """A table's name by its folder: as configured, or its path below the warehouse."""
    if root in locations:
        return locations[root]
    return posixpath.relpath(table.folder, base).replace("/", ".")
