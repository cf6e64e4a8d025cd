"""Snapshots are removed with their files: every file that another snapshot needs stays, and no other does.

Made-up histories of appends, overwrites, deletes, manifests that are merged, branches, tags, rollbacks, staged and
cherry-picked snapshots, in which snapshots are removed in any order. What is needed is found a second time by reading
everything there is.
"""

import asyncio
import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.types import LongType, NestedField

from lakehead.clock import SystemClock
from lakehead.errors import OutcomeUnknown
from lakehead.lake.commits import _NO_BRANCH, _AsLoaded, set_main, updates_of
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.ports import Moved
from lakehead.maintain import places
from lakehead.maintain import remove_snapshots as module
from lakehead.maintain.manifests import Incomplete
from lakehead.maintain.places import place
from lakehead.maintain.remove_snapshots import Removed, remove_snapshots
from lakehead.maintain.snapshot_files import SnapshotFiles
from lakehead.maintain.sweep import sweep
from lakehead.wire.errors import Unreadable
from tests.support.effort import effort
from tests.unit.lake.local_table import create, local_catalog

SCHEMA = Schema(NestedField(1, "v", LongType()))
PROPERTIES = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "3"}
pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
HISTORIES = effort(4, soak=200)
STEPS = 25


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with local_catalog(tmp_path) as opened:
        yield opened


@pytest.fixture
def table(catalog: Catalog) -> IcebergTable:
    return create(catalog, "t", SCHEMA, properties=PROPERTIES)


def rows(*values: int) -> pa.Table:
    return pa.table({"v": pa.array(values, pa.int64())})


def ids(table: IcebergTable) -> list[int]:
    return [snapshot.snapshot_id for snapshot in table.load().metadata.snapshots]


def stored(table: IcebergTable) -> set[str]:
    """Every file of the table but for its metadata files, which commits write and remove on their own."""
    folder = Path(urlsplit(table.load().location()).path)
    return {str(file) for file in folder.rglob("*") if file.is_file() and not file.name.endswith(".metadata.json")}


def removed(table: IcebergTable, going: list[int], files: SnapshotFiles | None = None) -> Removed:
    head = table.load().current_snapshot()
    return remove_snapshots(table, going, files or SnapshotFiles(), head.snapshot_id if head else None)


def stage(table: Iceberg, value: int) -> None:
    """A snapshot that nothing points at, as a write-audit-publish job leaves it."""
    scratch = table.catalog.load_table(table.name())
    before = set(scratch.inspect.files()["file_path"].to_pylist())
    scratch.append(rows(value))  # only to have a data file: main goes back below
    made = scratch.current_snapshot()
    assert made is not None
    file = next(task.file for task in scratch.scan().plan_files() if task.file.file_path not in before)
    fresh = table.catalog.load_table(table.name())
    producer = _AsLoaded(fresh).update_snapshot({"wap.id": str(value)}, _NO_BRANCH).fast_append()
    producer.append_data_file(file)
    staged = tuple(update for update in updates_of(producer) if isinstance(update, AddSnapshotUpdate))
    back = (set_main(made.parent_snapshot_id),) if made.parent_snapshot_id is not None else ()
    fresh._do_commit((*staged, *back), ())


def pick(table: Iceberg, random: Random) -> None:
    """Add the new files of a snapshot that main does not have to main, as a cherry-pick does: with new numbers."""
    here = {one.snapshot_id for one in module.ancestors(table.metadata, MAIN_BRANCH)}
    others = [one for one in table.metadata.snapshots if one.snapshot_id not in here]
    if not others:
        return
    source = random.choice(others)
    live = {task.file.file_path for task in table.scan().plan_files()}
    producer = _AsLoaded(table).update_snapshot({"source-snapshot-id": str(source.snapshot_id)}).fast_append()
    for manifest in source.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io):
            if entry.snapshot_id == source.snapshot_id and entry.data_file.file_path not in live:
                producer.append_data_file(entry.data_file)
    table._do_commit(updates_of(producer), ())


def roll_back(table: Iceberg, random: Random) -> None:
    chain = list(module.ancestors(table.metadata, MAIN_BRANCH))
    table._do_commit((set_main(random.choice(chain[:3]).snapshot_id),), ())


def write(table: Iceberg, random: Random, number: int) -> None:
    """One thing that writers do to a table."""
    branches = [name for name, ref in table.metadata.refs.items() if ref.snapshot_ref_type == "branch"]
    branch = random.choice(branches) if branches and random.random() < 0.3 else MAIN_BRANCH
    snapshots = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    match random.choice(["append"] * 6 + ["overwrite", "delete", "branch", "tag", "drop", "stage", "pick", "rollback"]):
        case "overwrite":
            table.overwrite(rows(number), branch=branch)
        case "delete":
            table.delete(f"v = {random.randrange(number + 1)}", branch=branch)
        case "branch" if snapshots:
            table.manage_snapshots().create_branch(random.choice(snapshots), f"b{number}").commit()
        case "tag" if snapshots:
            table.manage_snapshots().create_tag(random.choice(snapshots), f"t{number}").commit()
        case "drop" if len(branches) > 1:
            table.manage_snapshots().remove_branch(random.choice([b for b in branches if b != MAIN_BRANCH])).commit()
        case "stage" if snapshots:
            stage(table, number)
        case "pick":
            pick(table, random)
        case "rollback" if snapshots:
            roll_back(table, random)
        case _:
            table.append(rows(number, number + 1), branch=branch)


def needed(table: IcebergTable) -> set[str]:
    """What all snapshots need, by reading all of them again, with PyIceberg's own reader."""
    iceberg, found = table.load(), set[str]()
    for snapshot in iceberg.metadata.snapshots:
        found.add(place(snapshot.manifest_list))
        for manifest in snapshot.manifests(iceberg.io):
            found.add(place(manifest.manifest_path))
            found.update(place(one.data_file.file_path) for one in manifest.fetch_manifest_entry(iceberg.io))
    return found


def check_removal(table: IcebergTable, random: Random, files: SnapshotFiles) -> None:
    """Remove some of the snapshots that no reference points at, and compare with what the oracle says."""
    before, had, metadata = stored(table), needed(table), table.load().metadata
    referenced = {ref.snapshot_id for ref in metadata.refs.values()}
    free = [one.snapshot_id for one in metadata.snapshots if one.snapshot_id not in referenced]
    going = random.sample(free, random.randint(0, len(free)))
    done = removed(table, going, files)
    assert set(done.snapshots) == set(going)
    assert set(ids(table)) == {one.snapshot_id for one in metadata.snapshots} - set(going)
    assert table.load().metadata.refs == metadata.refs
    expected = had - needed(table)
    assert before - stored(table) == expected
    assert done.files == len(expected)
    assert needed(table) <= stored(table)
    for snapshot in ids(table):
        table.load().scan(snapshot_id=snapshot).to_arrow()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_after_any_history_exactly_the_files_go_that_no_other_snapshot_needs(table: IcebergTable, seed: int) -> None:
    random, files = Random(seed), SnapshotFiles()
    for number in range(STEPS):
        write(table.load(), random, number)
        if random.random() < 0.25:
            check_removal(table, random, files)
    check_removal(table, random, files)


def test_a_file_that_was_picked_from_a_staged_snapshot_stays_when_that_one_goes(table: IcebergTable) -> None:
    table.load().append(rows(1))
    stage(table.load(), 2)
    staged = ids(table)[-1]
    pick(table.load(), Random(0))
    stray = [one for one in ids(table) if one not in (ids(table)[0], ids(table)[-1])]
    assert staged in stray

    removed(table, stray)

    assert sorted(table.load().scan().to_arrow()["v"].to_pylist()) == [1, 2]


def test_a_file_of_a_tagged_snapshot_stays_when_the_one_it_was_picked_into_goes(table: IcebergTable) -> None:
    table.load().append(rows(1))
    stage(table.load(), 2)
    staged = ids(table)[-1]
    table.load().manage_snapshots().create_tag(staged, "audit").commit()
    pick(table.load(), Random(0))
    picked = table.load().current_snapshot()
    assert picked is not None
    table.load().overwrite(rows(3))
    head = table.load().current_snapshot()
    assert head is not None

    removed(table, [one for one in ids(table) if one not in (staged, head.snapshot_id)])

    assert table.load().scan(snapshot_id=staged).to_arrow()["v"].to_pylist() == [2]
    assert table.load().scan().to_arrow()["v"].to_pylist() == [3]


def test_a_tag_that_is_put_on_an_expiring_snapshot_at_the_last_moment_keeps_it(
    table: IcebergTable, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        table.load().overwrite(rows(number))
    tagged = ids(table)[0]
    commit, late = catalog.commit_table, [True]

    def tag_first(*given: Any) -> Any:
        if late and late.pop():
            catalog.load_table("t.t").manage_snapshots().create_tag(tagged, "late").commit()
        return commit(*given)

    monkeypatch.setattr(catalog, "commit_table", tag_first)
    going = ids(table)[:-1]

    done = removed(table, going)

    assert tagged not in done.snapshots
    assert set(done.snapshots) == set(going) - {tagged}
    assert table.load().metadata.refs["late"].snapshot_id == tagged
    assert table.load().scan(snapshot_id=tagged).to_arrow()["v"].to_pylist() == [0]


def test_nothing_goes_if_main_was_rolled_back_meanwhile(table: IcebergTable) -> None:
    for number in range(3):
        table.load().append(rows(number))
    first, second, third = ids(table)
    table.load()._do_commit((set_main(second),), ())
    before = stored(table)

    with pytest.raises(Moved, match="was rolled back or replaced during its expiry"):
        remove_snapshots(table, [first], SnapshotFiles(), third)

    assert (ids(table), stored(table)) == ([first, second, third], before)


def test_what_lands_while_snapshots_go_keeps_its_files(table: IcebergTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        table.load().append(rows(number))
    going, commit = ids(table)[:-1], table.commit

    def land_first(*given: Any) -> Any:
        table.catalog.load_table("t.t").append(rows(4))
        return commit(*given)

    monkeypatch.setattr(table, "commit", land_first)

    assert removed(table, going).snapshots == tuple(going)

    assert needed(table) <= stored(table)
    assert sorted(table.load().scan().to_arrow()["v"].to_pylist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("made", [True, False])
def test_an_unknown_outcome_is_looked_up_in_the_table(
    table: IcebergTable,
    monkeypatch: pytest.MonkeyPatch,
    made: bool,  # noqa: FBT001 - a case
) -> None:
    for number in range(3):
        table.load().overwrite(rows(number))
    going, before, commit = ids(table)[:-1], stored(table), table.commit

    def unknown(*given: Any) -> Any:
        if made:
            commit(*given)
        raise OutcomeUnknown("no answer")

    monkeypatch.setattr(table, "commit", unknown)
    if made:
        assert set(removed(table, going).snapshots) == set(going)
        assert stored(table) == needed(table)
    else:
        with pytest.raises(OutcomeUnknown):
            removed(table, going)
        assert stored(table) == before


def test_nothing_goes_if_a_file_of_the_metadata_is_missing(table: IcebergTable) -> None:
    for number in range(3):
        table.load().append(rows(number))
    going = ids(table)[:-1]
    head = table.load().current_snapshot()
    assert head is not None
    Path(place(head.manifest_list)).unlink()
    before = stored(table)

    with pytest.raises(Incomplete):
        removed(table, going)

    assert stored(table) == before
    assert set(going) < set(ids(table))


@pytest.mark.parametrize("of_manifest", [True, False])
@pytest.mark.parametrize("written", [0.0, 0.5, 0.97])
def test_nothing_goes_if_a_file_of_the_metadata_was_not_written_whole(
    table: IcebergTable,
    of_manifest: bool,  # noqa: FBT001 - a case
    written: float,
) -> None:
    """As after a power failure, which leaves zeros where data had not been written to the disk."""
    for number in range(3):
        table.load().append(rows(number))
    going, head = ids(table)[:-1], table.load().current_snapshot()
    assert head is not None
    uri = head.manifests(table.load().io)[0].manifest_path if of_manifest else head.manifest_list
    damaged = Path(place(uri))
    size = damaged.stat().st_size
    damaged.write_bytes(damaged.read_bytes()[: int(size * written)].ljust(size, b"\0"))
    before = stored(table)

    with pytest.raises(Unreadable, match=damaged.name):
        removed(table, going)
    with pytest.raises(Unreadable, match=damaged.name):
        asyncio.run(sweep(table, SystemClock(), older_than=timedelta(0)))

    assert stored(table) == before
    assert set(going) < set(ids(table))


def test_files_that_cannot_be_deleted_are_told_and_left_to_a_sweep(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        table.load().overwrite(rows(number))
    going, before = ids(table)[:-1], stored(table)

    class Refusing:
        get_file_info = LocalFileSystem().get_file_info

        def delete_file(self, _: str) -> None:
            raise PermissionError("not allowed")

    monkeypatch.setattr(places, "filesystem_of", lambda *_: (Refusing(), ""))
    with caplog.at_level(logging.WARNING, "lakehead.maintain"):
        done = removed(table, going)

    assert set(done.snapshots) == set(going)
    assert done.files == 0
    assert done.not_deleted == len(before - needed(table)) > 0
    assert stored(table) == before
    assert "Remove them later: lakehead maintain sweep t.t" in caplog.text


def test_statistics_of_expired_snapshots_go_with_them(table: IcebergTable) -> None:
    for number in range(2):
        table.load().append(rows(number))
    first, second = ids(table)
    folder = Path(urlsplit(table.load().location()).path) / "metadata"
    for snapshot in (first, second):
        (folder / f"{snapshot}.stats").write_bytes(b"puffin")
        described = StatisticsFile(
            snapshot_id=snapshot,
            statistics_path=f"file://{folder}/{snapshot}.stats",
            file_size_in_bytes=6,
            file_footer_size_in_bytes=1,
            blob_metadata=[
                BlobMetadata(type="apache-datasketches-theta-v1", snapshot_id=snapshot, sequence_number=1, fields=[1])
            ],
        )
        with table.load().update_statistics() as statistics:
            statistics.set_statistics(described)

    removed(table, [first])

    assert [one.snapshot_id for one in table.load().metadata.statistics] == [second]
    assert [file.name for file in folder.glob("*.stats")] == [f"{second}.stats"]


def test_children_remember_their_parents_and_the_log_has_no_gaps(table: IcebergTable) -> None:
    for number in range(4):
        table.load().append(rows(number))
    first, second, third, fourth = ids(table)
    table.load().manage_snapshots().create_tag(first, "audit").commit()

    removed(table, [second])

    metadata = table.load().metadata
    assert {one.snapshot_id: one.parent_snapshot_id for one in metadata.snapshots} == {
        first: None,
        third: second,
        fourth: third,
    }
    assert [entry.snapshot_id for entry in metadata.snapshot_log] == [third, fourth]


def test_a_removal_of_what_is_gone_changes_nothing(table: IcebergTable) -> None:
    for number in range(2):
        table.load().append(rows(number))
    first, second = ids(table)
    assert removed(table, [first]).snapshots == (first,)
    before = table.load().metadata_location

    assert removed(table, [first]).files == 0

    assert table.load().metadata_location == before
    assert ids(table) == [second]


def test_what_has_been_read_of_snapshots_that_stay_is_not_read_again(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        table.load().append(rows(number))
    files = SnapshotFiles()
    removed(table, ids(table)[:2], files)
    io = type(table.load().io)
    read, real = list[str](), io.new_input

    def noted(self: Any, uri: str) -> Any:
        read.append(uri)
        return real(self, uri)

    monkeypatch.setattr(io, "new_input", noted)
    table.catalog.load_table("t.t").append(rows(6))
    read.clear()

    removed(table, ids(table)[:1], files)

    avro = [uri for uri in read if uri.endswith(".avro")]
    assert len(avro) == len(set(avro)) <= 4, "the list and manifests that are new, and the manifests that go"


def test_what_a_crash_after_the_commit_leaves_is_removed_by_a_sweep(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        table.load().overwrite(rows(number))
    going, before = ids(table)[:-1], stored(table)

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "delete_files", crash)
    with pytest.raises(KeyboardInterrupt):
        removed(table, going)
    assert (len(ids(table)), stored(table)) == (1, before)
    orphans = before - needed(table)

    swept = asyncio.run(sweep(table, SystemClock(), older_than=timedelta(0)))

    assert orphans <= set(swept.files)
    assert needed(table) == stored(table)
    assert table.load().scan().to_arrow()["v"].to_pylist() == [2]
