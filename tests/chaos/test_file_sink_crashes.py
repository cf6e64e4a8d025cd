"""The file sink among real processes that are really killed."""

import signal
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakehead.lake.filesink.file_names import LANDED, SUCCESS
from lakehead.lake.filesink.file_sink import PublishMode, Result
from lakehead.lake.filesink.published import published
from lakehead.lake.filesink.staging_cleanup import Missing, leftovers, ttl_cleanup
from lakehead.lake.landing import Unit
from tests.chaos.file_sink_child import (
    FAR_AHEAD,
    NEW,
    OLD,
    RELOADED,
    TTL,
    UNIT,
    DiskFiles,
    carry_out,
    globbed,
    main,
    prepare,
    refuse,
    rows_of,
    seen,
    sink_at,
    tree,
)
from tests.support.costs import Mechanism, add
from tests.support.forks import Forked, forked

pytestmark = pytest.mark.timeout(120)

BYSTANDER = Unit("bystander")
BESIDE = (100, 101)
MOST_STEPS = 300
FILES = DiskFiles()


def child(*words: str | Path) -> AbstractContextManager[Forked]:
    return forked(main, *words)


def read_line(process: Forked) -> str:
    line = process.stdout.readline()
    assert line.endswith("\n"), "the child ended before it said what was expected"
    return line[:-1]


def write_line(process: Forked, line: str) -> None:
    process.stdin.write(line + "\n")
    process.stdin.flush()


@dataclass(frozen=True)
class Deed:
    """What a doomed process does: what readers see before and after it, and what a glob may see meanwhile."""

    operation: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    unit: Unit
    moments: dict[PublishMode, str]
    """Where it must have died at least once."""


LAND = {
    PublishMode.RENAME: "before create,after create,before link,after link,before rename,after rename,"
    "within the second part",
    PublishMode.POINTER: "before create,after create,before link,after link,after make_folder,within the second part",
}
DEEDS = [
    Deed("land", (), OLD, UNIT, LAND),
    Deed("reload", OLD, NEW, RELOADED, LAND),
    Deed("find", OLD, OLD, UNIT, dict.fromkeys(PublishMode, "before create,after create,before link,after link")),
    Deed(
        "clean", NEW, NEW, RELOADED, dict.fromkeys(PublishMode, "before delete,after delete,after unlink,before rmdir")
    ),
]


@pytest.mark.parametrize("way", PublishMode)
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: str(deed.operation))
def test_a_writer_killed_at_any_step_leaves_readers_the_old_or_the_new_and_the_next_run_finishes(
    deed: Deed, way: PublishMode, tmp_path: Path
) -> None:
    story: list[tuple[str, tuple[int, ...]]] = []
    with child("serve-deaths") as server:
        while not story or story[-1][0] != "answered":
            step = len(story) + 1
            assert step < MOST_STEPS, f"{deed.operation} never came to an answer: {story}"
            root = tmp_path / str(step)
            prepare(deed.operation, way, root)
            sink_at(root, way).land(BYSTANDER, rows_of(*BESIDE))
            write_line(server, f"{deed.operation} {way.value} {step} {root}")
            moment, code = read_line(server), read_line(server)
            assert code == ("exit 0" if moment == "answered" else f"exit {-signal.SIGKILL}"), (moment, code)
            add(Mechanism.KILLS, moment != "answered")
            story.append((moment, look_and_go_on(deed, way, root)))

    told = [rows for _, rows in story]
    change = told.index(deed.after)
    assert told == [deed.before] * change + [deed.after] * (len(told) - change), story
    assert set(deed.moments[way].split(",")) <= {moment for moment, _ in story}, story


def look_and_go_on(deed: Deed, way: PublishMode, root: Path) -> tuple[int, ...]:
    """What readers saw after a death, having checked that the next run finishes and doubles nothing."""
    found = seen(root)
    assert set(BESIDE) <= set(found)
    if way is PublishMode.RENAME and deed.operation != "reload":
        assert globbed(root) == found

    # However late it is: what has not landed stays, and so does what readers read.
    left = leftovers(str(root), files=FILES)
    ttl_cleanup(str(root), TTL, files=FILES, clock=FAR_AHEAD)
    assert seen(root) == found
    assert leftovers(str(root), files=FILES) == left

    carry_out(deed.operation, sink_at(root, way))
    final = tuple(sorted(deed.after + BESIDE))
    assert seen(root) == final
    if way is PublishMode.RENAME:
        assert globbed(root) == final
    for directory in published(str(root), files=FILES):
        assert (Path(directory) / SUCCESS).exists()
        assert (Path(directory) / LANDED).exists()
    assert [each for each in leftovers(str(root), files=FILES) if each.missing is Missing.MARK] == []
    if deed.operation == "clean":
        # Killed between the two marks it leaves one of them, but never rows that the next clean-up does not know.
        assert [part for each in leftovers(str(root), files=FILES) for part in Path(each.directory).glob("part*")] == []

    before = tree(root)
    assert sink_at(root, way).land(deed.unit, refuse).result is Result.FOUND
    assert tree(root) == before
    return tuple(row for row in found if row not in BESIDE)


@pytest.mark.parametrize("way", PublishMode)
def test_of_six_processes_that_publish_a_unit_exactly_one_wins_and_the_others_drop_theirs(
    way: PublishMode, tmp_path: Path
) -> None:
    units = 25
    with ExitStack() as stack:
        racers = [stack.enter_context(child("race", tmp_path, way.value, str(units))) for _ in range(6)]
        for racer in racers:
            assert read_line(racer) == "ready"
        for racer in racers:
            write_line(racer, "go")
        told = [read_line(racer) for racer in racers for _ in range(units)]
        assert [racer.wait() for racer in racers] == [0] * len(racers)

    assert sorted(line for line in told if not line.endswith(" found")) == sorted(
        f"raced-{number} published" for number in range(units)
    )
    assert seen(tmp_path) == tuple(sorted(OLD * units))
    assert leftovers(str(tmp_path), files=FILES) == []
    attempts = [each for unit in (tmp_path / "_staging").iterdir() for each in unit.iterdir()]
    assert len(attempts) == (0 if way is PublishMode.RENAME else units)
