"""`lakehead tables recover`: registers the tables of a lost catalog again, by their newest metadata files."""

import asyncio
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, ValidationError
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
    COPY = "a copy of a table that is elsewhere"
    LOST = "its newest metadata is missing or damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A table that was found, and what is or would be done with it."""

    name: str
    uuid: str
    metadata: str
    action: Action
    ambiguous: int = 0
    """How many other metadata files are at the end of a history too, from commits that failed."""

    unreadable: tuple[str, ...] = ()
    """Metadata files in its folder that are damaged or cannot be read."""


def recover(catalog: Catalog, ledger: StoreLedger, locations: Mapping[str, str], *, dry_run: bool) -> list[Recovered]:
    """Register every table below the catalog's warehouse, and at `locations` (names by folder), that it does not have.

    A table that the catalog has, by its name or its uuid, is never changed. One whose ledger has a newer landing than
    its newest metadata file is not registered: commits on top would make what is missing an orphan. Raises
    `Misconfigured` for a catalog without a warehouse folder.
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
    landed: dict[str, int] = {}
    for name, table, scheme in tables:
        landings = asyncio.run(ledger.sequences(table.uuid))
        landed[table.uuid] = max(landings.values(), default=0)
        newest = table.newest(landings)
        chosen.append((newest.name or name, table, newest, scheme))
    # Of several tables with one name, as after a drop, the one that was written last comes first; of several folders
    # with one table, the one that its metadata names.
    chosen.sort(key=lambda each: (each[1].is_copy, each[0], each[1].dropped, -each[2].updated_ms))
    known = _known_tables(catalog, {each[0].rpartition(".")[0] for each in chosen})
    taken, registered = set[str](), set[str]()
    for name, table, newest, scheme in chosen:
        if table.uuid in known.values() or known.get(name, table.uuid) is None:
            action = Action.HAS_IT
        elif table.dropped:
            action = Action.DROPPED
        elif table.uuid in registered:
            action = Action.COPY
        elif name in taken or name in known:
            action = Action.SHARED
        elif landed[table.uuid] > newest.sequence:
            action = Action.LOST
        else:
            action = Action.REGISTER
            taken.add(name)
        registered.add(table.uuid)
        metadata = newest.path if scheme == "file" else f"{scheme}://{newest.path}"
        yield Recovered(
            name=name,
            uuid=table.uuid,
            metadata=metadata,
            action=action,
            ambiguous=len(table.files) - 1,
            unreadable=table.unreadable,
        )


def _known_tables(catalog: Catalog, namespaces: set[str]) -> dict[str, str | None]:
    """The tables of the catalog by name, each with its uuid; None if its metadata cannot be read."""
    known: dict[str, str | None] = {}
    for namespace in namespaces:
        try:
            names = catalog.list_tables(namespace)
        except NoSuchNamespaceError:
            continue
        for name in names:
            try:
                known[".".join(name)] = str(catalog.load_table(name).metadata.table_uuid)
            except (ValidationError, ValueError, OSError):  # the catalog has it: it is damaged, and never replaced
                known[".".join(name)] = None
    return known


def _name(table: FoundTable, base: str, root: str, locations: Mapping[str, str]) -> str:
    """A table's name by its folder: as configured, or its path below the warehouse."""
    if root in locations:
        return locations[root]
    return posixpath.relpath(table.folder, base).replace("/", ".")
