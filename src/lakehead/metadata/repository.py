"""What is known of the sources' tables in a run: collected before it, and as they were last loaded."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lakehead.metadata.cache import MetadataCacheManager
from lakehead.metadata.guardrail import PrecisionGuardrail
from lakehead.metadata.policy import SchemaPolicy
from lakehead.metadata.snapshot import LoadedTable, TableSnapshot


@dataclass(frozen=True, slots=True)
class MetadataRepository:
    """Snapshots of tables, by their names in the configuration. Empty if metadata is not collected."""

    cache: MetadataCacheManager | None = None
    collected: dict[str, TableSnapshot] = field(default_factory=dict)

    def loaded(self, table: str) -> LoadedTable | None:
        """The source's table when it was last loaded; None if that is not known. Raises `DamagedSnapshot`."""
        return self.cache.loaded(table) if self.cache else None

    def keep_loaded(self, table: str, loaded: LoadedTable) -> None:
        """Remember as what a table is loaded now."""
        if self.cache:
            self.cache.keep_loaded(table, loaded)


@dataclass(frozen=True, slots=True)
class MetadataAccess:
    """What a strategy asks about one table."""

    repository: MetadataRepository = field(default_factory=MetadataRepository)
    policy: SchemaPolicy = field(default_factory=SchemaPolicy)
    guardrail: PrecisionGuardrail = field(default_factory=PrecisionGuardrail)


def find_snapshot(tables: Iterable[TableSnapshot], name: str, schema: str | None) -> TableSnapshot | None:
    """A table by its name, in other letter case if that is unambiguous; None if there is not exactly one."""
    there = [each for each in tables if schema is None or (each.schema or "").lower() == schema.lower()]
    exact = [each for each in there if each.name == name and schema in (None, each.schema)]
    alike = exact or [each for each in there if each.name.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None
