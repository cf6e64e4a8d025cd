"""Removing what nobody published: files that nothing refers to, and branches that a crash has left.

What is removed was listed before the sweep's tag was moved, and every publication requires that tag where it was when
the rows were staged. So whoever still meant to publish is fenced off, and whoever was quicker has made it referred to.
That is what makes it safe. The age only spares those who are still at work from doing it again, and writers that are
not Lakehead from losing what they write. The tag's snapshot holds nothing, so it keeps nothing from being expired.
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
from lakehead.lake.landing import SnapshotId
from lakehead.lake.merge import BRANCH, branch_made_at
from lakehead.lake.ports import Moved
from lakehead.lake.table import IcebergTable, head_of
from lakehead.maintain.places import THREADS, File, Folder, check_may_remove
from lakehead.maintain.references import Incomplete, References
from lakehead.maintain.tags import keeps_rows

AGE = timedelta(days=3)
TRIES = 10
"""How often landings may be quicker than the sweep's own commit."""

FOLDERS = ("data", "metadata")
_METADATA = ".metadata.json"
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')
_HEADER = 4096
"""Bytes of a metadata file that hold its table's uuid: every writer puts it at the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep has removed, or would remove."""

    table: str
    files: tuple[str, ...] = ()
    """Those that nothing referred to, by their places."""

    bytes: int = 0
    branches: tuple[str, ...] = ()
    young: int = 0
    """Files that nothing refers to and that are not old enough."""

    snapshot: SnapshotId | None = None
    """The snapshot that the sweep's tag was moved to, which fences off whoever still meant to publish them; None where
    nothing was changed."""


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
    """Remove files below the table's location that nothing refers to, and our branches, if they are older than that.

    Where there is nothing to remove, nothing is changed. `dropped` names the uuids of tables that were dropped and
    have left their files in the same folder: they may go too. Raises `Misconfigured` where the folder holds files of a
    table that is not named so, or where nobody may remove files (`gc.enabled`), `Unavailable` when landings were
    quicker each time, and `Incomplete`.
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
        return _told(table, strays.files, strays, snapshot=None)
    snapshot, branches = await _fence_off(table, strays.branches)
    # Read anew: what was published since it was listed must stay.
    now_referenced = _of_now(table, references)
    gone = tuple(file for file in strays.files if not _is_referenced(file.place, now_referenced))
    for folder in folders:
        folder.delete(file.place for file in gone if folder.holds(file.place))
    return _told(table, gone, _Strays(gone, strays.young, branches), snapshot=snapshot)


def _strays(iceberg: Iceberg, listed: Collection[File], referenced: set[str], before_ns: int) -> _Strays:
    loose = [file for file in listed if not _is_referenced(file.place, referenced)]
    old = tuple(file for file in loose if file.written_ns < before_ns)
    return _Strays(old, len(loose) - len(old), _left_branches(iceberg.metadata, before_ns // 1_000_000))


def _is_referenced(name: str, referenced: set[str]) -> bool:
    """Whether something refers to a file, or to the one whose checksum Hadoop keeps in it."""
    folder, file = posixpath.split(name)
    kept = file[1:-4] if file.startswith(".") and file.endswith(".crc") else file
    return name in referenced or posixpath.join(folder, kept) in referenced


def _left_branches(metadata: TableMetadata, before_ms: int) -> dict[str, SnapshotId]:
    """Our branches that were made before a moment. One whose name does not tell is as old as its head."""
    left = {}
    for name, ref in metadata.refs.items():
        if not name.startswith(BRANCH) or ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
            continue
        head = metadata.snapshot_by_id(ref.snapshot_id)
        made_at = branch_made_at(name) or (head.timestamp_ms if head else None)
        if made_at is not None and made_at < before_ms:
            left[name] = ref.snapshot_id
    return left


async def _fence_off(
    table: IcebergTable, branches: Mapping[str, SnapshotId]
) -> tuple[SnapshotId, Mapping[str, SnapshotId]]:
    """Move the sweep's tag to a new snapshot, and drop those of the branches that nobody has moved; in one commit."""
    ours: dict[SnapshotId, dict[str, SnapshotId]] = {}

    def changes(iceberg: Iceberg) -> Changes:
        refs = iceberg.metadata.refs
        # Whoever is about to make a table's first snapshot requires nothing but that main has none.
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
            pass  # What the table says counts.
        at = head_of(table.load().metadata).sweep
        if at in ours:
            return at, ours[at]
    raise Unavailable(
        f"Landings in {table.name} were quicker than the sweep {TRIES} times, or its catalog did not answer. Nothing "
        "was removed; run it again."
    )


def _of_now(table: IcebergTable, references: References) -> set[str]:
    """What the table refers to. Read again where somebody's expiry has come between its metadata and its files."""
    for _ in range(TRIES - 1):
        try:
            return references.of(table.load())
        except Incomplete:
            continue
    return references.of(table.load())


def _check_listing(
    iceberg: Iceberg, references: References, listed: Collection[File], folders: Collection[Folder]
) -> None:
    """That the listing speaks of files as the table does: otherwise everything would look like nobody's."""
    found = {file.place for file in listed}
    held = references.held(iceberg, [snapshot] if (snapshot := iceberg.current_snapshot()) else [])
    for folder in folders:
        inside = {name for name in held if folder.holds(name)}
        if inside and not inside & found:
            raise Misconfigured(
                f"None of the {len(inside)} files that the table {'.'.join(iceberg.name())} has below {folder.place} "
                "is in the list of what is there. Nothing was removed. Check the table's location, and that the store "
                "lists what was just written."
            )


def _check_alone(
    table: IcebergTable,
    folders: Collection[Folder],
    listed: Collection[File],
    referenced: set[str],
    dropped: Collection[str],
) -> None:
    """That no other table has its metadata in the same folders, as after a rename: its files would be nobody's here."""
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


def _told(table: IcebergTable, files: Collection[File], strays: _Strays, *, snapshot: SnapshotId | None) -> Swept:
    return Swept(
        table=table.name,
        files=tuple(sorted(file.place for file in files)),
        bytes=sum(file.size for file in files),
        branches=tuple(sorted(strays.branches)),
        young=strays.young,
        snapshot=snapshot,
    )
