"""Reuses metadata of tables that is known, so that landings do not take longer the more snapshots a table has.

A metadata file never changes and has a name of its own. So if a catalog in SQL still names the file that was read or
written last, its content is known; PyIceberg reads it three times for each landing. And metadata is frozen, so what a
commit does not change is shared with the metadata before; PyIceberg copies all of it, which takes longer than the rest.
"""

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


def reuse_metadata(catalog: Catalog) -> None:
    """Make a catalog in SQL keep the newest metadata that it has seen of each table. Other catalogs are not changed."""
    if not isinstance(catalog, SqlCatalog):
        return
    convert, commit, stage = catalog._convert_orm_to_iceberg, catalog.commit_table, catalog._update_and_stage_table  # noqa: SLF001 - the only places where metadata is read, and made
    newest: dict[tuple[str, str], tuple[str, TableMetadata]] = {}
    """By namespace and name: the metadata file, and what is in it."""

    def converted(row: IcebergTables) -> Iceberg:
        key = row.table_namespace, row.table_name
        location, metadata = newest.get(key, ("", None))
        if metadata is None or location != row.metadata_location:
            table = convert(row)
            newest[key] = table.metadata_location, table.metadata
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
        newest[Catalog.namespace_to_string(tuple(namespace)), name] = response.metadata_location, response.metadata
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
