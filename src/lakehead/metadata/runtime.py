"""Collects metadata before a run, and gives each table what is known of it."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from lakehead.errors import LakeheadError
from lakehead.metadata.cache import Catalogue, MetadataCacheManager
from lakehead.metadata.guardrail import PrecisionGuardrail
from lakehead.metadata.policy import SchemaPolicy
from lakehead.metadata.repository import MetadataAccess, MetadataRepository, find_snapshot
from lakehead.metadata.snapshot import DamagedSnapshot, MetadataCapableEndpoint
from lakehead.telemetry.events import Event, MetadataCollected


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTable:
    """A table whose snapshot is wanted."""

    name: str
    """What it is called in the configuration."""

    schema: str | None
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCatalogue:
    """A source, and its tables."""

    source: str
    """Its name in the configuration."""

    place: str
    """Its address, without secrets."""

    open: Callable[[], AbstractContextManager[object]]
    """Connects. Called only if something has to be collected."""

    tables: Sequence[WantedTable]


def collect_metadata(
    wanted: Iterable[WantedCatalogue],
    cache: MetadataCacheManager,
    emit: Callable[[Event], None],
    failures: tuple[type[Exception], ...] = (LakeheadError,),
) -> MetadataRepository:
    """Snapshot the tables of every source that can (`MetadataCapableEndpoint`), unless the cache has a fresh snapshot.

    A source that fails by one of `failures` is told in an event and stops nothing here: its tables have no snapshot
    then. A damaged file of the cache is collected again.
    """
    repository = MetadataRepository(cache)
    for each in wanted:
        by_schema: dict[str | None, list[WantedTable]] = {}
        for table in each.tables:
            by_schema.setdefault(table.schema, []).append(table)
        stale: dict[str | None, str | None] = {}
        for schema, tables in by_schema.items():
            found, why = _fresh(cache, each, schema, tables)
            if found is None:
                stale[schema] = why
                continue
            emit(_event(each, schema, found, from_cache=True))
            _add(repository, found, tables)
        if stale:
            _collect(each, {schema: by_schema[schema] for schema in stale}, stale, repository, cache, emit, failures)
    return repository


def build_metadata_access(
    repository: MetadataRepository, policy: SchemaPolicy, guardrail: PrecisionGuardrail
) -> MetadataAccess:
    """The repository, the schema drift policy and the precision guardrail evaluator of one table."""
    return MetadataAccess(repository, policy, guardrail)


def _fresh(
    cache: MetadataCacheManager, wanted: WantedCatalogue, schema: str | None, tables: Sequence[WantedTable]
) -> tuple[Catalogue | None, str | None]:
    """What the cache has of a schema if that is fresh, and why it is damaged if it is."""
    try:
        kept = cache.catalogue(wanted.source, schema)
    except DamagedSnapshot as error:
        return None, str(error)
    if kept is None or not cache.is_fresh(kept, wanted.place, [table.table for table in tables]):
        return None, None
    return kept, None


def _collect(
    wanted: WantedCatalogue,
    by_schema: dict[str | None, list[WantedTable]],
    damaged: dict[str | None, str | None],
    repository: MetadataRepository,
    cache: MetadataCacheManager,
    emit: Callable[[Event], None],
    failures: tuple[type[Exception], ...],
) -> None:
    left = dict(by_schema)
    try:
        with wanted.open() as source:
            for schema, tables in by_schema.items():
                if not isinstance(source, MetadataCapableEndpoint):
                    reason = "the source has no catalogue that can be read at once"
                    emit(_event(wanted, schema, None, skipped=reason))
                    del left[schema]
                    continue
                found = _collected(wanted, source, schema, tables, cache)
                _add(repository, found, tables)
                emit(_event(wanted, schema, found, damaged=damaged[schema]))
                del left[schema]
    except failures as error:
        reason = str(error) if isinstance(error, LakeheadError) else type(error).__name__
        for schema in left:
            emit(_event(wanted, schema, None, damaged=damaged[schema], error=reason))


def _collected(
    wanted: WantedCatalogue,
    source: MetadataCapableEndpoint,
    schema: str | None,
    tables: Sequence[WantedTable],
    cache: MetadataCacheManager,
) -> Catalogue:
    names = sorted({table.table for table in tables})
    now = cache.now()
    found = source.snapshot_tables(schema, names)
    made = Catalogue(
        place=wanted.place, wanted=tuple(sorted({name.lower() for name in names})), tables=found, collected_at=now
    )
    cache.keep_catalogue(wanted.source, schema, made)
    return made


def _add(repository: MetadataRepository, catalogue: Catalogue, tables: Sequence[WantedTable]) -> None:
    for table in tables:
        found = find_snapshot(catalogue.tables, table.table, table.schema)
        if found is not None:
            repository.collected[table.name] = found


def _event(
    wanted: WantedCatalogue,
    schema: str | None,
    catalogue: Catalogue | None,
    *,
    from_cache: bool = False,
    damaged: str | None = None,
    error: str | None = None,
    skipped: str | None = None,
) -> MetadataCollected:
    return MetadataCollected(
        source=wanted.source,
        schema=schema,
        tables=len(catalogue.tables) if catalogue else 0,
        collected_at=catalogue.collected_at if catalogue else None,
        from_cache=from_cache,
        damaged=damaged,
        skipped=skipped,
        error=error,
    )
