"""Removes what was never published: files that nothing refers to, and branches that a crash left behind.

It is safe because the files are listed before the sweep's tag is moved, and every publication requires that the tag is
where it was when the rows were staged. So a writer that has not published yet is refused, and the files of one that
published before are referred to. The minimum age only saves running writers from staging again, and protects writers
other than Lakehead from losing files. The tag's snapshot is empty, so it keeps nothing from being expired.
"""

import posixpath
import re
import zlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

from pyiceberg.table import Table as Iceberg
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate

from lakehead.clock import Clock
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.lake.commits import SWEEP, Changes, added, empty, empty_table, set_tag
from lakehead.lake.iceberg_table import IcebergTable, head_of
from lakehead.lake.landing import SnapshotId
from lakehead.lake.merge import BRANCH, branch_made_at
from lakehead.lake.ports import Moved
from lakehead.maintain.manifests import Incomplete
from lakehead.maintain.places import THREADS, File, Folder, check_may_remove
from lakehead.maintain.references import References
from lakehead.maintain.tags import keeps_rows

AGE = timedelta(days=3)
TRIES = 10
"""Attempts of the sweep's own commit when landings commit first."""

FOLDERS = ("data", "metadata")
_METADATA = ".metadata.json"
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')
_HEADER = 4096
"""The first bytes of a metadata file, which contain its table's uuid: every writer puts it at the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep has removed, or would remove."""

    table: str
    files: tuple[str, ...] = ()
    """Files that nothing referred to, by their normalized names."""

    bytes: int = 0
    branches: tuple[str, ...] = ()
    young: int = 0
    """Files that nothing refers to and that are not old enough to remove."""

    snapshot: SnapshotId | None = None
    """The snapshot that the sweep's tag was moved to, which keeps other writers from publishing the removed files; None
    if nothing was changed."""


@dataclass(frozen=True, slots=True)
class _Strays:
    files: tuple[File, ...]
    young: int
    branches: Mapping[str, SnapshotId]


async def sweep(
    table: IcebergTable,
    clock: Clock,
    *,
    older_than: timedelta = AGE,
    dropped: Collection[str] = (),
    dry_run: bool = False,
) -> Swept:
    """Remove files below the table's location that nothing refers to, and our branches, if older than `older_than`.

    If there is nothing to remove, nothing is changed. `dropped` has the uuids of dropped tables that left their files
    in the same folder, which are then removed too. Raises `Misconfigured` if the folder holds files of another table,
    or if removing files is disabled (`gc.enabled`), `Unavailable` if landings committed first at every attempt, and
    `Incomplete`.
    """
    before_ns = clock.now_ns() - int(older_than.total_seconds() * 1e9)
    references = References()
    iceberg = table.load()
    check_may_remove(iceberg)
    folders = [Folder(iceberg, f"{iceberg.location().rstrip('/')}/{name}") for name in FOLDERS]
    listed = [file for folder in folders for file in folder.files()]
    referenced = _of_now(table, references)
    _check_listing(iceberg, references, listed, folders)
    _check_alone(table, folders, listed, referenced, dropped)
    strays = _strays(iceberg, listed, referenced, before_ns)
    if dry_run or not (strays.files or strays.branches or keeps_rows(iceberg, SWEEP)):
        return _result(table, strays.files, strays, snapshot=None)
    snapshot, branches = await _fence_off(table, strays.branches)
    # Read again: files that were published since they were listed must stay.
    now_referenced = _of_now(table, references)
    gone = tuple(file for file in strays.files if not _is_referenced(file.place, now_referenced))
    for folder in folders:
        folder.delete(file.place for file in gone if folder.holds(file.place))
    return _result(table, gone, _Strays(gone, strays.young, branches), snapshot=snapshot)


def _strays(iceberg: Iceberg, listed: Collection[File], referenced: set[str], before_ns: int) -> _Strays:
    loose = [file for file in listed if not _is_referenced(file.place, referenced)]
    old = tuple(file for file in loose if file.written_ns < before_ns)
    return _Strays(old, len(loose) - len(old), _left_branches(iceberg.metadata, before_ns // 1_000_000))


def _is_referenced(name: str, referenced: set[str]) -> bool:
    """Whether something refers to a file or, for one of Hadoop's checksum files, to the file it belongs to."""
    folder, file = posixpath.split(name)
    kept = file[1:-4] if file.startswith(".") and file.endswith(".crc") else file
    return name in referenced or posixpath.join(folder, kept) in referenced


def _left_branches(metadata: TableMetadata, before_ms: int) -> dict[str, SnapshotId]:
    """Our branches created before a time. If the name does not have its time, the head's is used."""
    left = {}
    for name, ref in metadata.refs.items():
        if not name.startswith(BRANCH) or ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
            continue
        head = metadata.snapshot_by_id(ref.snapshot_id)
        made_at = branch_made_at(name) or (head.timestamp_ms if head else None)
        if made_at is not None and made_at < before_ms:
            left[name] = ref.snapshot_id
    return left


async def move_sweep_tag(table: IcebergTable) -> SnapshotId:
    """Keep everybody from publishing files that were staged before: they must be staged again. Removes nothing."""
    return (await _fence_off(table, {}))[0]


async def _fence_off(
    table: IcebergTable, branches: Mapping[str, SnapshotId]
) -> tuple[SnapshotId, Mapping[str, SnapshotId]]:
    """Move the sweep's tag to a new snapshot, and drop the branches that have not moved, in one commit."""
    ours: dict[SnapshotId, dict[str, SnapshotId]] = {}

    def changes(iceberg: Iceberg) -> Changes:
        refs = iceberg.metadata.refs
        # A writer that commits a table's first snapshot requires only that main has none.
        updates = empty_table(iceberg) if MAIN_BRANCH in refs else empty(iceberg, {})
        made = added(updates)
        left = {name: at for name, at in branches.items() if name in refs and refs[name].snapshot_id == at}
        ours[made] = left
        removed = (RemoveSnapshotRefUpdate(ref_name=name) for name in left)
        required = (AssertRefSnapshotId(ref=name, snapshot_id=at) for name, at in left.items())
        return (*updates, set_tag(SWEEP, made), *removed), tuple(required)

    for _ in range(TRIES):
        try:
            table.commit(await table.head(), changes)
        except Moved:
            continue
        except OutcomeUnknown:
            pass  # The table itself shows below whether it was made.
        at = head_of(table.load().metadata).sweep
        if at in ours:
            return at, ours[at]
    raise Unavailable(
        f"Landings in {table.name} committed before the sweep {TRIES} times, or its catalog did not answer. Nothing "
        "was removed; run it again."
    )


def _of_now(table: IcebergTable, references: References) -> set[str]:
    """What the table refers to now. Reads again if an expiry came between its metadata and its files."""
    for _ in range(TRIES - 1):
        try:
            return references.of(table.load())
        except Incomplete:
            continue
    return references.of(table.load())


def _check_listing(
    iceberg: Iceberg, references: References, listed: Collection[File], folders: Collection[Folder]
) -> None:
    """Check that the listing uses the same names as the table; otherwise every file would look unreferenced."""
    found = {file.place for file in listed}
    held = references.held(iceberg, [snapshot] if (snapshot := iceberg.current_snapshot()) else [])
    for folder in folders:
        inside = {name for name in held if folder.holds(name)}
        if inside and not inside & found:
            raise Misconfigured(
                f"None of the {len(inside)} files that the table {'.'.join(iceberg.name())} has below {folder.place} "
                "is in the store's listing. Nothing was removed. Check the table's location, and that the store lists "
                "new files at once."
            )


def _check_alone(
    table: IcebergTable,
    folders: Collection[Folder],
    listed: Collection[File],
    referenced: set[str],
    dropped: Collection[str],
) -> None:
    """Check that no other table has its metadata in the same folders, as after a rename: its files would be removed."""
    unknown = [
        (folder, file.place)
        for file in listed
        if file.place.endswith(_METADATA) and file.place not in referenced
        for folder in folders
        if folder.holds(file.place)
    ]
    with ThreadPoolExecutor(THREADS) as threads:
        begins = threads.map(lambda each: each[0].first_bytes(each[1], _HEADER), unknown)
        found = {_uuid_of(each): folder for each, (folder, _) in zip(begins, unknown, strict=True)}
    if others := sorted(found.keys() - {None, table.uuid, *dropped}, key=str):
        raise Misconfigured(
            f"The folder {found[others[0]].place} of table {table.name} also holds metadata of the table {others[0]}, "
            "whose files may be in use. Nothing was removed. If that table was dropped, sweep with --dropped "
            f"{others[0]}; else move one of the two to a location of its own."
        )


def _uuid_of(begins: bytes) -> str | None:
    """The uuid in the first bytes of a metadata file, plain or gzipped; None if there is none."""
    if begins.startswith(b"\x1f\x8b"):
        begins = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(begins)
    found = _UUID.search(begins)
    return found[1].decode() if found else None


def _result(table: IcebergTable, files: Collection[File], strays: _Strays, *, snapshot: SnapshotId | None) -> Swept:
    return Swept(
        table=table.name,
        files=tuple(sorted(file.place for file in files)),
        bytes=sum(file.size for file in files),
        branches=tuple(sorted(strays.branches)),
        young=strays.young,
        snapshot=snapshot,
    )
