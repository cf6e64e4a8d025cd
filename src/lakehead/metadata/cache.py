"""The metadata cache: a folder of what was collected of the sources' catalogues, and of tables as last loaded."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from tempfile import mkstemp
from typing import Any
from urllib.parse import quote

from lakehead.clock import Clock
from lakehead.errors import Unavailable
from lakehead.metadata.snapshot import DamagedSnapshot, LoadedTable, TableSnapshot, from_json, parsed, to_json

FORMAT = 1
_LONGEST = 120
"""Longer names of tables are shortened in file names, which file systems limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The tables of one schema of a source, as they were at one time."""

    place: str
    """The source's address, without secrets: another database under the same name has other tables."""

    wanted: tuple[str, ...]
    """The names that were asked for, in lower case: a table that is not among `tables` did not exist."""

    tables: tuple[TableSnapshot, ...]
    collected_at: datetime


@dataclass(frozen=True, slots=True)
class MetadataCacheManager:
    """Keeps snapshots in a folder. Files are replaced as a whole, so that readers never see half of one."""

    folder: Path
    ttl: timedelta
    clock: Clock

    def now(self) -> datetime:
        """The present time, in UTC."""
        return datetime.fromtimestamp(self.clock.now_ns() / 1e9, UTC)

    def catalogue(self, source: str, schema: str | None) -> Catalogue | None:
        """What was collected of a schema; None if nothing was. Raises `DamagedSnapshot`."""
        kept = self._read(self._catalogue_path(source, schema))
        if kept is None:
            return None
        try:
            return Catalogue(
                place=str(kept["place"]),
                wanted=tuple(str(name) for name in kept["wanted"]),
                tables=tuple(from_json(each) for each in kept["tables"]),
                collected_at=datetime.fromisoformat(kept["collected_at"]),
            )
        except (KeyError, TypeError, ValueError):
            raise DamagedSnapshot("it is not a catalogue") from None

    def is_fresh(self, catalogue: Catalogue, place: str, wanted: Sequence[str]) -> bool:
        """Whether it need not be collected again: young enough, of the same database, and of all these tables."""
        now = self.now()
        young = catalogue.collected_at <= now < catalogue.collected_at + self.ttl
        return young and catalogue.place == place and {name.lower() for name in wanted} <= set(catalogue.wanted)

    def keep_catalogue(self, source: str, schema: str | None, catalogue: Catalogue) -> None:
        """Keep what was collected of a schema. Raises `Unavailable` if it cannot be written."""
        written = {
            "format": FORMAT,
            "place": catalogue.place,
            "collected_at": catalogue.collected_at.isoformat(),
            "wanted": list(catalogue.wanted),
            "tables": [to_json(each) for each in catalogue.tables],
        }
        self._write(self._catalogue_path(source, schema), written)

    def loaded(self, table: str) -> LoadedTable | None:
        """The source's table as it was when it was last loaded; None if that is not known. Raises `DamagedSnapshot`."""
        kept = self._read(self._loaded_path(table))
        if kept is None:
            return None
        try:
            return LoadedTable(from_json(kept["table"]), tuple(str(name) for name in kept["gone"]))
        except (KeyError, TypeError):
            raise DamagedSnapshot("it is not the snapshot of a load") from None

    def keep_loaded(self, table: str, loaded: LoadedTable) -> None:
        """Keep as what a table is loaded. Raises `Unavailable` if it cannot be written."""
        written = {"format": FORMAT, "table": to_json(loaded.table), "gone": list(loaded.gone)}
        self._write(self._loaded_path(table), written)

    def _catalogue_path(self, source: str, schema: str | None) -> Path:
        return self.folder / f"v{FORMAT}" / "catalogues" / _file_name(source) / f"{_file_name(schema or '')}.json"

    def _loaded_path(self, table: str) -> Path:
        return self.folder / f"v{FORMAT}" / "loaded" / f"{_file_name(table)}.json"

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            kept = parsed(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedSnapshot(f"it cannot be read: {error.strerror}") from None
        if not isinstance(kept, dict) or kept.get("format") != FORMAT:
            raise DamagedSnapshot("it has another format")
        return kept

    def _write(self, path: Path, value: object) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file, name = mkstemp(dir=path.parent, prefix=".", suffix=".new")
            try:
                with open(file, "w", encoding="utf-8") as made:  # noqa: PTH123 - an open file
                    json.dump(value, made, indent=1)
                    made.flush()
                    os.fsync(made.fileno())
                Path(name).replace(path)
            except BaseException:
                with suppress(OSError):
                    Path(name).unlink()
                raise
        except OSError as error:
            raise Unavailable(
                f"The metadata cache {self.folder} cannot be written ({error.strerror}). Make room there, or set "
                "metadata.cache_path to a folder that can be written."
            ) from None


def _file_name(name: str) -> str:
    """A file name that no other name has, whatever letters it has; file systems may not tell cases apart."""
    safe = quote(name, safe="")
    if safe == safe.lower() and 0 < len(safe) <= _LONGEST and safe.strip(".") == safe:
        return safe
    return f"{safe[:_LONGEST].strip('.')}+{sha256(name.encode()).hexdigest()[:16]}"
