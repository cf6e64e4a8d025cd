"""Compares a source's table with the table in the lakehouse before it is read, and with itself after it was read."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from lakehead.errors import Misconfigured, Unavailable
from lakehead.extract.protection import exact_names, hidden, protected_schema
from lakehead.extract.protection_rules import LeftOut
from lakehead.extract.sink import TableSink
from lakehead.extract.table_settings import TableSettings
from lakehead.metadata.drift import SchemaPlan, changes, check_decisions, decided, planned
from lakehead.metadata.repository import MetadataAccess
from lakehead.metadata.snapshot import DamagedSnapshot, LoadedTable
from lakehead.source.port import Filter, Overrides, Source, TableInfo
from lakehead.source.table_snapshots import snapshot_of
from lakehead.telemetry.events import Event, SchemaDrifted, SnapshotDamaged


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A source's table, its parsed filter, and how its changes were decided."""

    info: TableInfo
    filter: Filter | None
    plan: SchemaPlan


def describe(source: Source, table: TableSettings) -> TableInfo:
    """The source's table as its catalogue has it now."""
    overrides = Overrides(as_text=frozenset(table.as_text), decimals=table.as_decimal)
    return hidden(source.describe_table(table.source, overrides), table.columns)


def stored_columns(info: TableInfo, table: TableSettings) -> pa.Schema:
    """The source's columns that are read, with the types that their values have in the lakehouse; null for those that
    cannot be read."""
    columns = pa.schema([pa.field(column.name, column.arrow or pa.null()) for column in info.columns])
    return protected_schema(columns, exact_names(info, table.columns))


def validated(
    info: TableInfo, table: TableSettings, sink: TableSink, metadata: MetadataAccess, emit: Callable[[Event], None]
) -> SchemaPlan:
    """Decide what to do about the changes of a source's table. Each is an event.

    Raises `SchemaFrozen`, `TableSetAside`, or `PrecisionExceeded`: then nothing is read or changed.
    """
    if metadata.policy.require_snapshot and table.name not in metadata.repository.collected:
        raise Misconfigured(
            f"The table {table.name} was not read: there is no snapshot of it in the source's catalogue, and "
            "schema_policy.require_snapshot is true. The event metadata_collected of its source says why."
        )
    source, there = stored_columns(info, table), sink.source_columns()
    loaded = _last_load(table.name, metadata, emit)
    left_out = [name for name, rule in exact_names(info, table.columns).items() if isinstance(rule, LeftOut)]
    gone = loaded.gone if loaded else ()
    before = loaded.table if loaded else None
    # Files that were written have the column: for them it is one that is gone.
    ignored = [*left_out, *gone] if sink.evolves else []
    found = changes(there, source, snapshot_of(info, source), before, left_out=ignored)
    decisions = decided(found, metadata.policy, merges=table.mode.merges, evolves=sink.evolves)
    for each in decisions:
        change = each.change
        emit(
            SchemaDrifted(
                drift=change.drift,
                action=each.action,
                column=change.column,
                old=change.old,
                new=change.new,
                renamed_to=change.renamed_to,
            )
        )
    check_decisions(table.name, decisions, renewal=sink.renewal)
    plan = planned(there, source, decisions)
    read = pa.schema([source.field(name) for name in plan.read])
    declared = {column.name: column.declared for column in info.columns}
    metadata.guardrail.evaluate(table.name, read, plan.columns, declared)
    return plan


def _last_load(table: str, metadata: MetadataAccess, emit: Callable[[Event], None]) -> LoadedTable | None:
    try:
        return metadata.repository.loaded(table)
    except DamagedSnapshot as error:
        emit(SnapshotDamaged(reason=str(error)))
        return None


def loaded_as(described: DescribedTable, table: TableSettings) -> LoadedTable:
    """What to remember of a table that is loaded now."""
    source = stored_columns(described.info, table)
    gone = tuple(name for name in described.plan.columns.names if name not in source.names)
    return LoadedTable(snapshot_of(described.info, source), gone)


def check_unchanged(source: Source, table: TableSettings, info: TableInfo) -> None:
    """Raise `Unavailable` if the source's table has other columns than when it was described.

    Rows that were read in between may lack values of a new column, or have them under another name.
    """
    now = describe(source, table)
    was, found = _columns(info), _columns(now)
    if was == found and info.identity == now.identity:
        return
    said = [f"column {name!r} of type {found[name][0]} is new" for name in found if name not in was]
    said += [f"column {name!r} of type {was[name][0]} is gone" for name in was if name not in found]
    said += [
        f"column {name!r} was {was[name][0]} and is {found[name][0]} now"
        if was[name][0] != found[name][0]
        else f"{name!r} is the name of another column"
        for name in was
        if name in found and was[name] != found[name]
    ]
    raise Unavailable(
        f"The table {table.name} changed in the source while it was read: "
        f"{'; '.join(said) or 'it was replaced by another table'}. These rows were not published. Run it again."
    )


def _columns(info: TableInfo) -> dict[str, tuple[str, int | None]]:
    return {column.name: (column.declared, column.number) for column in info.columns}
