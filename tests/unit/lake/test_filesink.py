"""Landing, finding, replacing and cleaning up, on a local disk without a JVM."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from lakehead.errors import Misconfigured, OutcomeUnknown
from lakehead.lake.filesink.file_names import LANDED, SUCCESS
from lakehead.lake.filesink.file_sink import FileSink, PublishMode, Result
from lakehead.lake.filesink.port import Entry, Outcome
from lakehead.lake.filesink.published import label_of, published
from lakehead.lake.filesink.records import BrokenRecord, Label
from lakehead.lake.filesink.staging_cleanup import Leftover, Missing, leftovers, ttl_cleanup
from lakehead.lake.landing import Unit
from tests.chaos.file_sink_child import (
    FAR_AHEAD,
    DiskFiles,
    FixedClock,
    globbed,
    refuse,
    rows_of,
    seen,
    sink_at,
    tree,
)

FILES = DiskFiles()
HOUR_NS = 3_600 * 10**9
LANDED_AT = 1_700_000_000 * 10**9
BOTH_WAYS = pytest.mark.parametrize("way", PublishMode)


def age(root: Path) -> None:
    """Set the time of every mark."""
    for mark in root.rglob(LANDED):
        os.utime(mark, ns=(LANDED_AT, LANDED_AT))


def clean(root: Path, hours: float, *, now_ns: int, dry_run: bool = False) -> list[str]:
    return ttl_cleanup(str(root), timedelta(hours=hours), files=FILES, clock=FixedClock(now_ns), dry_run=dry_run)


@BOTH_WAYS
def test_a_unit_lands_once_and_a_rerun_neither_reads_the_source_nor_changes_anything(
    way: PublishMode, tmp_path: Path
) -> None:
    sink = sink_at(tmp_path, way)

    first = sink.land(Unit("a"), rows_of(1, 2))
    before = tree(tmp_path)
    again = sink.land(Unit("a"), refuse)

    assert (first.result, again.result) == (Result.PUBLISHED, Result.FOUND)
    assert first.directory == again.directory
    assert tree(tmp_path) == before
    assert seen(tmp_path) == (1, 2)


@BOTH_WAYS
def test_staged_rows_are_seen_by_nobody_until_they_are_published(way: PublishMode, tmp_path: Path) -> None:
    sink = sink_at(tmp_path, way)
    staged = sink.stage(Unit("a"), rows_of(1, 2))
    assert (published(str(tmp_path), files=FILES), globbed(tmp_path)) == ([], ())

    sink.publish(staged)
    assert seen(tmp_path) == (1, 2)


@BOTH_WAYS
def test_a_published_directory_says_which_unit_it_holds_and_its_watermark(way: PublishMode, tmp_path: Path) -> None:
    landed = sink_at(tmp_path, way).land(Unit("a/b", 3), rows_of(1, 2), watermark="2024-02-29")

    assert label_of(landed.directory, files=FILES) == Label(Unit("a/b", 3), "2024-02-29")
    with pytest.raises(BrokenRecord):
        label_of(str(tmp_path), files=FILES)


@BOTH_WAYS
def test_a_write_that_fails_is_raised_and_leaves_nothing(way: PublishMode, tmp_path: Path) -> None:
    def fail(directory: str) -> None:
        rows_of(1, 2)(directory)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sink_at(tmp_path, way).land(Unit("a"), fail)

    assert leftovers(str(tmp_path), files=FILES) == []
    assert list((tmp_path / "_staging" / "a.g0").iterdir()) == []


@BOTH_WAYS
def test_of_two_that_have_staged_a_unit_the_second_finds_the_firsts_and_drops_its_own(
    way: PublishMode, tmp_path: Path
) -> None:
    sink = sink_at(tmp_path, way)
    first, second = (sink.stage(Unit("a"), rows_of(row, row)) for row in (1, 2))

    assert sink.publish(first).result is Result.PUBLISHED
    assert sink.publish(second).result is Result.FOUND
    assert seen(tmp_path) == (1, 1)
    assert not Path(second.directory).exists()


@BOTH_WAYS
def test_a_reload_replaces_the_old_generation_and_the_old_one_cannot_come_back(
    way: PublishMode, tmp_path: Path
) -> None:
    sink = sink_at(tmp_path, way)
    sink.land(Unit("b"), rows_of(7, 8))
    zombie = sink.stage(Unit("a", 9), rows_of(0, 0))
    sink.land(Unit("a", 9), rows_of(1, 2))

    reload = sink.land(Unit("a", 10), rows_of(3, 4))
    assert reload.result is Result.PUBLISHED
    assert seen(tmp_path) == (3, 4, 7, 8)

    late = [sink.publish(zombie), sink.land(Unit("a", 9), refuse), sink.land(Unit("a", 0), refuse)]
    assert {(each.result, each.directory) for each in late} == {(Result.SUPERSEDED, reload.directory)}
    assert seen(tmp_path) == (3, 4, 7, 8)
    assert leftovers(str(tmp_path), files=FILES) == []
    if way is PublishMode.RENAME:
        assert globbed(tmp_path) == (3, 4, 7, 8)


@BOTH_WAYS
def test_recovery_marks_whatever_is_published_without_a_mark(way: PublishMode, tmp_path: Path) -> None:
    sink = sink_at(tmp_path, way)
    directories = [sink.land(Unit(name), rows_of(1, 2)).directory for name in "ab"]
    for each in directories:
        (Path(each) / LANDED).unlink()
    assert leftovers(str(tmp_path), files=FILES) == [Leftover(each, Missing.MARK) for each in sorted(directories)]

    sink.recover()

    assert all((Path(each) / LANDED).exists() for each in directories)
    assert leftovers(str(tmp_path), files=FILES) == []


def test_units_published_in_one_way_are_found_in_the_other(tmp_path: Path) -> None:
    sink_at(tmp_path, PublishMode.RENAME).land(Unit("a"), rows_of(1, 2))
    sink_at(tmp_path, PublishMode.POINTER).land(Unit("b"), rows_of(3, 4))

    assert sink_at(tmp_path, PublishMode.POINTER).land(Unit("a"), refuse).result is Result.FOUND
    assert sink_at(tmp_path, PublishMode.RENAME).land(Unit("b"), refuse).result is Result.FOUND
    assert sink_at(tmp_path, PublishMode.POINTER).land(Unit("a", 1), rows_of(5, 6)).result is Result.PUBLISHED
    assert seen(tmp_path) == (3, 4, 5, 6)
    assert globbed(tmp_path) == ()


@pytest.mark.parametrize(("at_once", "place"), [(True, "published"), (False, "_pointers")])
def test_the_file_system_decides_the_way_unless_it_is_set(*, at_once: bool, place: str, tmp_path: Path) -> None:
    class Other(DiskFiles):
        def renames_at_once(self, _: str) -> bool:
            return at_once

    sink = sink_at(tmp_path, PublishMode.RENAME, Other())
    FileSink(root=f"{tmp_path}/", files=sink.files, ids=sink.ids).land(Unit("a"), rows_of(1, 2))

    assert [each.name for each in (tmp_path / place).iterdir()] == ["a.g0"]
    assert seen(tmp_path) == (1, 2)


def test_somebody_who_removes_what_is_being_published_is_told_of(tmp_path: Path) -> None:
    sink = sink_at(tmp_path, PublishMode.RENAME)
    staged = sink.stage(Unit("a"), rows_of(1, 2))
    FILES.delete(staged.directory)

    with pytest.raises(OutcomeUnknown, match="land the unit again"):
        sink.publish(staged)


def test_foreign_files_in_the_root_are_neither_read_nor_removed(tmp_path: Path) -> None:
    foreign = [tmp_path / place / name for place in ("published", "_pointers", "_staging") for name in ("Other", ".x")]
    for each in foreign:
        each.mkdir(parents=True)
        (each / "file").write_text("")
    sink_at(tmp_path, PublishMode.POINTER).land(Unit("a"), rows_of(1, 2))

    assert seen(tmp_path) == (1, 2)
    assert leftovers(str(tmp_path), files=FILES) == []
    clean(tmp_path, 0, now_ns=FAR_AHEAD.time_ns)
    assert all((each / "file").exists() for each in foreign)


# --- stores that cannot refuse, and listings that take their time


class LastWriterWins(DiskFiles):
    """A store that looks first and writes later, with somebody who comes in between."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile: Callable[[], object] | None = meanwhile

    def create(self, file: str, body: bytes) -> Outcome:
        if "_pointers" not in file:
            return super().create(file, body)
        Path(file).write_bytes(body)
        if meanwhile := self.meanwhile:
            self.meanwhile = None
            meanwhile()
        return Outcome.DONE


def test_where_a_pointer_can_be_overwritten_readers_still_read_one_attempt_and_the_other_goes_by_its_age(
    tmp_path: Path,
) -> None:
    files = LastWriterWins(lambda: sink.publish(second))
    sink = sink_at(tmp_path, PublishMode.POINTER, files)
    first, second = (sink.stage(Unit("a"), rows_of(row, row)) for row in (1, 2))

    landed = sink.publish(first)

    assert (landed.result, landed.directory) == (Result.FOUND, second.directory)
    assert seen(tmp_path) == (2, 2)
    assert leftovers(str(tmp_path), files=FILES) == []
    age(tmp_path)
    assert clean(tmp_path, 1, now_ns=LANDED_AT + 2 * HOUR_NS) == [first.directory]
    assert seen(tmp_path) == (2, 2)


def test_a_reload_in_the_middle_of_a_listing_hides_neither_generation(tmp_path: Path) -> None:
    sink = sink_at(tmp_path, PublishMode.RENAME)
    sink.land(Unit("a"), rows_of(1, 2))

    class Slow(DiskFiles):
        """Its first page of the published place is from before the reload, its second from after it."""

        pages = 0

        def list(self, folder: str) -> list[Entry]:
            if not folder.endswith("/published") or self.pages:
                return list(super().list(folder))
            self.pages = 1
            sink.land(Unit("a", 1), rows_of(3, 4))
            return [each for each in super().list(folder) if each.name == "a.g0"]

    assert published(str(tmp_path), files=Slow()) == [f"{tmp_path}/published/a.g1"]


# --- clean-up


@BOTH_WAYS
def test_what_was_replaced_goes_when_it_and_its_successor_are_older_than_the_ttl(
    way: PublishMode, tmp_path: Path
) -> None:
    sink = sink_at(tmp_path, way)
    for generation in range(3):
        sink.land(Unit("a", generation), rows_of(generation, generation))
    age(tmp_path)

    assert clean(tmp_path, 2, now_ns=LANDED_AT + 2 * HOUR_NS) == []
    would = clean(tmp_path, 2, now_ns=LANDED_AT + 2 * HOUR_NS + 1, dry_run=True)
    assert [Path(each).parent.name for each in would] == ["a.g0", "a.g1"]
    assert all(Path(each).exists() for each in would)

    assert clean(tmp_path, 2, now_ns=LANDED_AT + 2 * HOUR_NS + 1) == would
    assert not any(Path(each).exists() for each in would)
    assert seen(tmp_path) == (2, 2)
    assert clean(tmp_path, 2, now_ns=FAR_AHEAD.time_ns) == []
    assert sink.land(Unit("a", 1), refuse).result is Result.SUPERSEDED
    assert leftovers(str(tmp_path), files=FILES) == []
    left = 0 if way is PublishMode.RENAME else 1
    assert [len(list((tmp_path / place).glob("*"))) for place in ("_staging", "_pointers")] == [left, left]


@BOTH_WAYS
def test_a_reader_who_asked_before_a_reload_has_the_ttl_to_read_on(way: PublishMode, tmp_path: Path) -> None:
    sink = sink_at(tmp_path, way)
    sink.land(Unit("a"), rows_of(1, 2))
    age(tmp_path)
    reloaded = sink.land(Unit("a", 1), rows_of(3, 4))
    late = LANDED_AT + 10 * HOUR_NS
    os.utime(Path(reloaded.directory) / LANDED, ns=(late, late))

    assert clean(tmp_path, 2, now_ns=late + HOUR_NS) == []
    assert len(clean(tmp_path, 2, now_ns=late + 3 * HOUR_NS)) == 1


@BOTH_WAYS
@pytest.mark.parametrize("marker", [SUCCESS, LANDED])
def test_a_directory_without_one_of_its_marks_is_kept_and_reported(
    marker: str, way: PublishMode, tmp_path: Path
) -> None:
    sink = sink_at(tmp_path, way)
    sink.land(Unit("a"), rows_of(1, 2))
    sink.land(Unit("a", 1), rows_of(3, 4))
    [replaced] = (tmp_path / "_staging" / "a.g0").iterdir()
    (replaced / marker).unlink()

    assert clean(tmp_path, 0, now_ns=FAR_AHEAD.time_ns) == []
    assert replaced.exists()
    missing = Missing.ROWS if marker == SUCCESS else Missing.PUBLICATION
    assert leftovers(str(tmp_path), files=FILES) == [Leftover(str(replaced), missing)]


def test_a_directory_with_both_marks_that_nobody_ever_published_goes_by_its_age_alone(tmp_path: Path) -> None:
    staged = sink_at(tmp_path, PublishMode.RENAME).stage(Unit("a"), rows_of(1, 2))
    (Path(staged.directory) / LANDED).touch()
    age(tmp_path)

    assert clean(tmp_path, 2, now_ns=LANDED_AT + HOUR_NS) == []
    assert clean(tmp_path, 2, now_ns=LANDED_AT + 3 * HOUR_NS) == [staged.directory]


@BOTH_WAYS
def test_what_readers_read_is_never_removed_however_old(way: PublishMode, tmp_path: Path) -> None:
    sink_at(tmp_path, way).land(Unit("a"), rows_of(1, 2))
    assert clean(tmp_path, 0, now_ns=FAR_AHEAD.time_ns) == []
    assert seen(tmp_path) == (1, 2)


def test_a_clock_that_is_behind_the_file_system_removes_nothing(tmp_path: Path) -> None:
    sink = sink_at(tmp_path, PublishMode.RENAME)
    for generation in range(2):
        sink.land(Unit("a", generation), rows_of(1, 2))

    assert clean(tmp_path, 0, now_ns=0) == []
    with pytest.raises(Misconfigured, match="negative"):
        clean(tmp_path, -1, now_ns=0)
