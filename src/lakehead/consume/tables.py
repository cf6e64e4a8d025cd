"""The tables of a pipeline, by name and by the uuid under which the state keeps their units."""

from collections.abc import Iterable, Iterator

from lakehead.consume.local_state import UnitKey
from lakehead.consume.patience import Patience
from lakehead.consume.ports import UnitLander


class TableIds:
    """The uuid of each table of a pipeline, asked for once."""

    def __init__(self, landings: UnitLander, patience: Patience) -> None:
        self._landings = landings
        self._patience = patience
        self._uuids: dict[str, str] = {}

    async def uuid(self, table: str) -> str:
        """Return the uuid of a table, by its name. The table is created if it does not exist."""
        if table not in self._uuids:
            self._uuids[table] = await self._patience.answer(lambda: self._landings.uuid(table))
        return self._uuids[table]

    def known(self) -> list[str]:
        """Return the uuids that were asked for so far."""
        return list(self._uuids.values())

    def group(self, keys: Iterable[UnitKey]) -> Iterator[tuple[str, str, list[str]]]:
        """Yield each table's name and uuid with its units, for tables that are known."""
        units: dict[str, list[str]] = {}
        for key in keys:
            units.setdefault(key.table, []).append(key.unit)
        for table, theirs in units.items():
            if table in self._uuids:
                yield table, self._uuids[table], theirs
