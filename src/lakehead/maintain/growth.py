"""What grows with every landing without maintenance: snapshots, metadata files, manifests."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyiceberg.table import Table as Iceberg
from pyiceberg.table import TableProperties
from pyiceberg.typedef import Properties

from lakehead.spark.names import readable

MANY_SNAPSHOTS = 1_000
"""From here on they cost time: every commit writes all of them again, and every reader loads them. A landing every 10 s
makes this many in three hours."""

MANY_MANIFESTS = 100
"""Planning a query reads all of them; a compaction rewrites them from this number on."""

_DELETED = TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED
_KEPT = TableProperties.METADATA_PREVIOUS_VERSIONS_MAX
_MERGED = TableProperties.MANIFEST_MERGE_ENABLED
_KEPT_BY_DEFAULT = TableProperties.METADATA_PREVIOUS_VERSIONS_MAX_DEFAULT


@dataclass(frozen=True, slots=True)
class Growth:
    """How large a table's metadata is, and what to do if it is too large."""

    snapshots: int
    metadata_bytes: int
    """The size of the newest metadata file: every commit writes as much."""

    metadata_files: int
    """Metadata files in the newest one's log, and itself."""

    manifests: int
    advice: tuple[str, ...] = ()
    """One sentence for each thing to do; empty if there is nothing to do."""


def growth_of(
    table: Iceberg, *, catalog: str, options: str = "", state: str = " --state URL", ledger: str = " --ledger URL"
) -> Growth:
    """Look at a table's metadata and at main's list of manifests; no data file is read.

    `catalog` is the catalog's name in SQL. `options` are those by which commands find the table, and `state` and
    `ledger` those by which they find these: none where the first name them too, as a configuration does.
    """
    snapshot = table.current_snapshot()
    found = Growth(
        snapshots=len(table.metadata.snapshots),
        metadata_bytes=len(table.io.new_input(table.metadata_location)),
        metadata_files=len(table.metadata.metadata_log) + 1,
        manifests=len(snapshot.manifests(table.io)) if snapshot else 0,
    )
    name, in_sql = ".".join(table.name()), readable(catalog, *table.name())
    return replace(found, advice=tuple(_advice(found, table.properties, in_sql, f"{name}{options}", state, ledger)))


def _advice(growth: Growth, properties: Properties, in_sql: str, named: str, state: str, ledger: str) -> Iterator[str]:
    if growth.snapshots >= MANY_SNAPSHOTS:
        yield (
            f"It has {growth.snapshots} snapshots, and each commit writes {growth.metadata_bytes} bytes of metadata. "
            f"Expire snapshots now and regularly: lakehead maintain expire {named}{state}{ledger}"
        )
    kept = int(properties.get(_KEPT, _KEPT_BY_DEFAULT))
    if not _is_true(properties, _DELETED) and growth.metadata_files > kept:
        yield (
            f"Each commit leaves a metadata file behind that nothing deletes. ALTER TABLE {in_sql} SET TBLPROPERTIES "
            f"('{_DELETED}' = 'true', '{_KEPT}' = '20'), and remove those that are there: lakehead maintain sweep "
            f"{named}"
        )
    if growth.manifests >= MANY_MANIFESTS:
        merge = "" if _is_true(properties, _MERGED) else f" and let landings merge them ('{_MERGED}' = 'true')"
        yield (
            f"Every query reads its {growth.manifests} manifests. Rewrite them{merge}: lakehead maintain compact "
            f"{named}{state}"
        )


def _is_true(properties: Properties, name: str) -> bool:
    return str(properties.get(name, "false")).lower() == "true"
