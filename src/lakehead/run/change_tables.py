"""Drops and renames tables, in an order in which running the command again finishes what a crash has interrupted."""

from collections.abc import Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table as Iceberg

from lakehead.errors import Misconfigured
from lakehead.lake.stagers import filesystem_of
from lakehead.lake.tables import ensure_namespace
from lakehead.maintain.find_tables import NAME_PROPERTY, drop_mark, find_tables
from lakehead.state.state import State


def drop_table(catalog: Catalog, name: str, state: State) -> bool:
    """Drop a table and what the state has on it. False if it does not exist.

    The state goes first: a table without it is read back from its own history, while state without a table would stay
    for good, because only the catalog knows the uuid. It goes once more at the end, for a load that was still running.
    """
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        return False
    uuid = str(table.metadata.table_uuid)
    state.landings.forget(uuid)
    filesystem, mark = filesystem_of(table, drop_mark(table.location(), uuid))
    with filesystem.open_output_stream(mark) as written:  # so that `recover` does not bring it back
        written.write(name.encode())
    catalog.drop_table(name)
    state.landings.forget(uuid)
    return True


def others_in_folder(table: Iceberg) -> list[str]:
    """Other tables, not dropped, whose metadata is in or below a table's folder, as after a rename: names, or uuids."""
    filesystem, folder = filesystem_of(table, table.location())
    others = [
        one for one in find_tables(filesystem, folder) if one.uuid != str(table.metadata.table_uuid) and not one.dropped
    ]
    return sorted({one.newest({}).name or one.uuid for one in others})


def check_rename(catalog: Catalog, table: str, new: str, moves: Sequence[tuple[str, str]]) -> None:
    """Raise `Misconfigured` unless each table exists under exactly one of its two names.

    Some may have the new one already, if an earlier rename was interrupted.
    """
    there = {name: catalog.table_exists(name) for move in moves for name in move}
    if table == new or not all(new.split(".")):
        raise Misconfigured(f"{new!r} is not a new name for {table}. Write another name.")
    if not any(there[old] for old, _ in moves):
        raise Misconfigured(f"None of the tables of {table} exists. There is nothing to rename.")
    if both := [to for old, to in moves if there[old] and there[to]]:
        raise Misconfigured(
            f"There is a table {both[0]} already. Nothing was changed. Choose another name, or drop it."
        )


def rename_table(catalog: Catalog, old: str, new: str) -> bool:
    """Rename a table, which keeps its uuid and so its state. False if it has the new name already.

    Its name is recorded in its own metadata first, for `recover`: its folder keeps the old one.
    """
    try:
        table = catalog.load_table(old)
    except NoSuchTableError:
        return False
    with table.transaction() as transaction:
        transaction.set_properties({NAME_PROPERTY: new})
    ensure_namespace(catalog, new.rpartition(".")[0])
    catalog.rename_table(old, new)
    return True
