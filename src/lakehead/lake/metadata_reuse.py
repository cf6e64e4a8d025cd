"""Reuses metadata of tables that is known, so that landings do not take longer the more snapshots a table has.

A metadata file never changes and has a name of its own. So if a catalog in SQL still names the file that was read or
written last, its content is known; PyIceberg reads it three times for each landing. And metadata is frozen, so what a
commit does not change is shared with the metadata before; PyIceberg copies all of it, which takes longer than the rest.
A thousand snapshots take 5 MB of memory, so that of a few tables is kept.
"""

from collections import OrderedDict
from threading import Lock
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import CommitTableResponse, StagedTable
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    TableRequirement,
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)
from pyiceberg.typedef import Identifier

Requirements = tuple[TableRequirement, ...]
Updates = tuple[TableUpdate, ...]

KEPT_TABLES = 16
"""Tables of a catalog whose metadata is kept: those used last."""


class _NewestMetadata:
    """The newest metadata that was seen of the tables used last: by namespace and name, with its file. For threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], tuple[str, TableMetadata]] = OrderedDict()
        self._lock = Lock()

    def at(self, namespace: str, name: str, location: str | None) -> TableMetadata | None:
        """Return what is in a table's metadata file, if that is known."""
        with self._lock:
            known_location, metadata = self._known.get((namespace, name), (None, None))
            if metadata is None or known_location != location:
                return None
            self._known.move_to_end((namespace, name))
            return metadata

    def keep(self, namespace: str, name: str, location: str, metadata: TableMetadata) -> None:
        """Keep what is in a table's metadata file, and forget the table that was not used for longest."""
        with self._lock:
            self._known[namespace, name] = location, metadata
            self._known.move_to_end((namespace, name))
            if len(self._known) > KEPT_TABLES:
                self._known.popitem(last=False)


def reuse_metadata(catalog: Catalog) -> None:
    """Make a catalog in SQL keep the newest metadata that it has seen of tables. Other catalogs are not changed."""
    if not isinstance(catalog, SqlCatalog):
        return
    convert, commit, stage = catalog._convert_orm_to_iceberg, catalog.commit_table, catalog._update_and_stage_table  # noqa: SLF001 - the only places where metadata is read, and made
    newest = _NewestMetadata()

    def converted(row: IcebergTables) -> Iceberg:
        location = row.metadata_location
        metadata = newest.at(row.table_namespace, row.table_name, location)
        if metadata is None or location is None:
            table = convert(row)
            newest.keep(row.table_namespace, row.table_name, table.metadata_location, table.metadata)
            return table
        return Iceberg(
            identifier=(*Catalog.identifier_to_tuple(row.table_namespace), row.table_name),
            metadata=metadata,
            metadata_location=location,
            io=catalog._load_file_io(metadata.properties, location),  # noqa: SLF001 - as PyIceberg itself does
            catalog=catalog,
        )

    def committed(table: Iceberg, requirements: Requirements, updates: Updates) -> CommitTableResponse:
        response = commit(table, requirements, updates)
        *namespace, name = table.name()
        newest.keep(Catalog.namespace_to_string(tuple(namespace)), name, response.metadata_location, response.metadata)
        return response

    def staged(
        current: Iceberg | None, identifier: Identifier, requirements: Requirements, updates: Updates
    ) -> StagedTable:
        return (
            stage(current, identifier, requirements, updates)
            if current is None
            else _staged(catalog, current, identifier, requirements, updates)
        )

    _override(catalog, _convert_orm_to_iceberg=converted, commit_table=committed, _update_and_stage_table=staged)


def _override(catalog: Catalog, **methods: Any) -> None:
    for name, method in methods.items():
        setattr(catalog, name, method)


def _staged(
    catalog: SqlCatalog, current: Iceberg, identifier: Identifier, requirements: Requirements, updates: Updates
) -> StagedTable:
    """The table after a commit, as PyIceberg's own method makes it."""
    for requirement in requirements:
        requirement.validate(current.metadata)
    metadata = _updated(current, updates)
    version = catalog._parse_metadata_version(current.metadata_location) + 1  # noqa: SLF001 - as above
    location = load_location_provider(metadata.location, metadata.properties).new_table_metadata_file_location(version)
    io = catalog._load_file_io(metadata.properties, location)  # noqa: SLF001 - as above
    return StagedTable(identifier=identifier, metadata=metadata, metadata_location=location, io=io, catalog=catalog)


def _updated(current: Iceberg, updates: Updates) -> TableMetadata:
    """The metadata after some updates, which shares with the metadata before what they do not change.

    Its times are set by `commit_times`.
    """
    context, before = _TableMetadataUpdateContext(), current.metadata
    metadata = before
    for update in updates:
        metadata = _apply_table_update(update, metadata, context)
    if context.has_changes():
        metadata = _update_table_metadata_log(metadata, current.metadata_location, before.last_updated_ms)
    metadata.spec().check_compatible(metadata.schema())
    metadata.sort_order().check_compatible(metadata.schema())
    return metadata
