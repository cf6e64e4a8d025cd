"""Units of a watched folder are forgotten when their files are gone, by a complete listing begun after they landed."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from shutil import rmtree

import pytest

from lakehead.clock import SystemClock
from lakehead.consume import shared_state
from lakehead.consume.queues.folder_pass import FolderSettings
from lakehead.consume.queues.folder_queue import FolderQueue
from lakehead.consume.settings import PipelineSettings
from lakehead.consume.shared_state import COMPARED_EVERY, KEPT_AFTER_LANDING, QueueSharedState
from lakehead.consume.uris import object_of
from lakehead.errors import Unavailable
from lakehead.ids import RandomIds
from lakehead.state.model import PruneLimits
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.open_store import open_store
from lakehead.storage.port import ListedObject
from tests.support.state_tools import FIRST, SECOND, HandClock, landing

TABLE = "table"
URL = "s3://bucket/drop"
SETTINGS = PipelineSettings(name="pipeline", cleanup_interval=timedelta(0))


class Listed(MemoryStore):
    """A store whose listing a test can watch, and break off."""

    listings = 0
    fails_after: int | None = None

    def begins(self) -> None:
        """Called when a listing begins."""

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        self.listings += 1
        self.begins()
        pages = 0
        async for page in super().list(folder, start_after=start_after):
            if self.fails_after is not None and pages >= self.fails_after:
                raise Unavailable("The store does not answer.")
            pages += 1
            yield page


@dataclass
class Pipeline:
    """A pipeline on a folder, as far as pruning needs it."""

    state: State
    clock: HandClock
    store: Listed
    shared: QueueSharedState = field(init=False)

    def __post_init__(self) -> None:
        self.shared = self.sharing(SETTINGS)

    def sharing(self, settings: PipelineSettings) -> QueueSharedState:
        queue = FolderQueue(self.store, FolderSettings(url=URL), SystemClock())
        return QueueSharedState(self.state, "us", settings, queue)

    def drop(self, *names: str) -> None:
        for name in names:
            asyncio.run(self.store.put(name, b"rows"))

    def remove(self, *names: str) -> None:
        for name in names:
            asyncio.run(self.store.delete(name))

    def land(self, *names: str, uri: str = URL) -> None:
        """Land files: their messages are not acknowledged, because a folder announces them again."""
        pointer = self.state.landings.pointer(TABLE)
        at = SECOND if pointer == FIRST else FIRST
        units = [f"{uri}/{name}" for name in names]
        assert self.state.landings.settle(TABLE, pointer, at, [landing(at, *units)])

    def pruned(self) -> int | None:
        """Prune, when the time has come for it again."""
        self.clock.at += KEPT_AFTER_LANDING + timedelta(seconds=1)
        return asyncio.run(self.shared.prune(TABLE))

    @property
    def remembered(self) -> set[str]:
        return {shard.unit.removeprefix(f"{URL}/") for shard in self.state.shards.page(TABLE)}


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    clock = HandClock()
    state = open_state(f"sqlite:///{tmp_path}/state.db", clock, RandomIds())
    try:
        yield Pipeline(state, clock, Listed(clock=SystemClock(), page_size=2))
    finally:
        state.close()


def test_a_unit_is_forgotten_when_its_file_is_gone_and_kept_as_long_as_it_is_there(pipeline: Pipeline) -> None:
    pipeline.drop("a", "b", "c")
    pipeline.land("a", "b", "c")
    pipeline.clock.at += timedelta(days=1000)
    assert pipeline.pruned() == 0
    assert pipeline.remembered == {"a", "b", "c"}

    pipeline.remove("b")

    assert pipeline.pruned() == 1
    assert pipeline.remembered == {"a", "c"}


def test_a_file_that_is_dropped_again_after_its_unit_was_forgotten_is_a_new_one(pipeline: Pipeline) -> None:
    unit = f"{URL}/a"
    pipeline.drop("a", "other")
    pipeline.land("a")
    pipeline.drop("a")
    assert pipeline.pruned() == 0
    assert asyncio.run(pipeline.shared.open(TABLE, [unit])).done == {unit}, "nobody saw that it was gone"

    pipeline.remove("a")
    assert pipeline.pruned() == 1
    pipeline.drop("a")

    assert asyncio.run(pipeline.shared.open(TABLE, [unit])).ours == {unit: 0}


def test_a_listing_that_fails_halfway_forgets_nothing(pipeline: Pipeline) -> None:
    pipeline.drop(*"abcdef")
    pipeline.land(*"abcdef", "gone")
    pipeline.store.fails_after = 1

    with pytest.raises(Unavailable):
        pipeline.pruned()
    assert pipeline.remembered == {*"abcdef", "gone"}

    pipeline.store.fails_after = None
    assert pipeline.pruned() == 1
    assert pipeline.remembered == set("abcdef")


def test_an_empty_listing_forgets_nothing(pipeline: Pipeline) -> None:
    pipeline.land("a")

    assert pipeline.pruned() == 0
    assert pipeline.remembered == {"a"}, "a volume that is not mounted looks like a folder without files"

    pipeline.drop("other")
    assert pipeline.pruned() == 1


def test_a_listing_of_hidden_files_alone_forgets_nothing(pipeline: Pipeline) -> None:
    pipeline.land("a")
    pipeline.drop(".not-mounted")

    assert pipeline.pruned() == 0
    assert pipeline.remembered == {"a"}


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """A folder of files on a disk, two of them in subfolders of their own."""
    folder = tmp_path / "inbox"
    for name in ("plain", "volume/deep/file", "day/file"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("rows")
    return folder


def gone(inbox: Path, *, files_stay: bool = True) -> set[str]:
    """Those of the inbox's files that are gone for certain."""
    url = inbox.as_uri()
    queue = FolderQueue(open_store(url), FolderSettings(url=url, files_stay=files_stay), SystemClock())
    names = ("plain", "volume/deep/file", "day/file")
    found = asyncio.run(queue.not_listed([f"{url}/{name}" for name in names]))
    return {uri.removeprefix(f"{url}/") for uri in found}


def test_files_of_a_subfolder_whose_volume_is_not_mounted_are_not_gone(inbox: Path) -> None:
    rmtree(inbox / "volume" / "deep")
    rmtree(inbox / "day")

    assert gone(inbox) == {"day/file"}

    (inbox / "volume" / ".not-mounted").touch()
    assert gone(inbox) == {"day/file"}

    (inbox / "volume" / "other").touch()
    assert gone(inbox) == {"day/file", "volume/deep/file"}


def test_files_that_are_removed_when_they_have_landed_leave_empty_folders(inbox: Path) -> None:
    (inbox / "day" / "file").unlink()

    assert gone(inbox) == set()
    assert gone(inbox, files_stay=False) == {"day/file"}


def test_files_of_a_folder_that_has_become_a_link_are_not_gone(inbox: Path) -> None:
    (inbox / "day").rename(inbox.with_name("elsewhere"))
    (inbox / "day").symlink_to(inbox.with_name("elsewhere"))
    (inbox / "plain").unlink()

    assert gone(inbox) == {"plain"}


def test_files_of_other_folders_are_not_gone(inbox: Path) -> None:
    queue = FolderQueue(open_store(inbox.as_uri()), FolderSettings(url=inbox.as_uri()), SystemClock())

    assert asyncio.run(queue.not_listed(["file:///other/file", inbox.with_name("INBOX").as_uri() + "/file"])) == set()


def test_what_lands_after_the_listing_began_is_not_forgotten(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.drop("there")
    pipeline.land("gone")

    def land_during_the_listing() -> None:
        pipeline.land("late")
        pipeline.clock.at += timedelta(days=1)  # a listing may take long

    monkeypatch.setattr(pipeline.store, "begins", land_during_the_listing)

    assert pipeline.pruned() == 1

    assert pipeline.remembered == {"late"}


def test_a_unit_is_remembered_for_a_while_after_its_file_was_removed(pipeline: Pipeline) -> None:
    pipeline.drop("there")
    pipeline.land("moved away")

    assert asyncio.run(pipeline.shared.prune(TABLE)) == 0, "another process may have received it before"
    assert pipeline.pruned() == 1


def test_units_of_a_rebuilt_state_are_remembered_as_long_as_their_files_are_there(pipeline: Pipeline) -> None:
    unit = f"{URL}/a"
    pipeline.drop("a")
    pipeline.land("a")
    asyncio.run(pipeline.shared.acknowledge(TABLE, [unit]))  # as a rebuild does with all units
    assert pipeline.pruned() == 0
    pipeline.clock.at += 2 * SETTINGS.deduplication_window

    assert pipeline.pruned() == 0

    assert pipeline.remembered == {"a"}


def test_units_of_other_folders_and_queues_are_left_alone(pipeline: Pipeline) -> None:
    pipeline.drop("there")
    pipeline.land("a", uri="s3://bucket/drop-other")
    pipeline.land("b", uri="s3://bucket")

    assert pipeline.pruned() == 0
    assert len(pipeline.remembered) == 2


def test_versions_and_parts_are_kept_as_long_as_their_object_is_there(pipeline: Pipeline) -> None:
    pipeline.drop("a")
    pipeline.land("a?etag=1", "a?etag=2", "a#0-100", "b?etag=1", "b#0-100", "b?etag=1#0-7")

    assert pipeline.pruned() == 3

    assert pipeline.remembered == {"a?etag=1", "a?etag=2", "a#0-100"}


@pytest.mark.parametrize("unit", ["s3://b/k", "s3://b/k?etag=%221%22", "s3://b/k#0-7", "s3://b/k?versionId=v#3-4"])
def test_the_object_of_a_unit_is_its_uri_alone(unit: str) -> None:
    assert object_of(unit) == "s3://b/k"


def test_many_units_are_compared_a_part_at_a_time(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_state, "COMPARED_AT_ONCE", 4)
    names = [f"n{number}" for number in range(10)]
    pipeline.drop("there")
    pipeline.land("there", *names)

    pipeline.clock.at += 2 * KEPT_AFTER_LANDING
    turns = [asyncio.run(pipeline.shared.prune(TABLE)) for _ in range(4)]

    assert sum(turn or 0 for turn in turns) == 10
    assert pipeline.remembered == {"there"}
    assert pipeline.store.listings == 3, "four at a time, and no other comparison until it is time again"


def test_the_folder_is_not_listed_again_before_it_is_time(pipeline: Pipeline) -> None:
    pipeline.drop("a")
    pipeline.land("a")
    assert pipeline.pruned() == 0
    assert asyncio.run(pipeline.shared.prune(TABLE)) == 0
    assert pipeline.store.listings == 1

    assert pipeline.pruned() == 0
    assert pipeline.store.listings == 2


@pytest.mark.slow
def test_a_folder_is_compared_although_another_pipeline_of_its_table_always_prunes_first(tmp_path: Path) -> None:
    clock, every = HandClock(), timedelta(minutes=1)
    with open_state(f"sqlite:///{tmp_path}/state.db", clock, RandomIds()) as state:
        pipeline = Pipeline(state, clock, Listed(clock=SystemClock()))
        settings = PipelineSettings(name="other", cleanup_interval=every)
        pipeline.shared = pipeline.sharing(settings)
        first = QueueSharedState(state, "they", settings)
        pipeline.drop("there")
        pipeline.land("gone", "there")
        clock.at += KEPT_AFTER_LANDING
        for _ in range(2 * COMPARED_EVERY // every):
            clock.at += every
            assert asyncio.run(first.prune(TABLE)) == 0
            asyncio.run(pipeline.shared.prune(TABLE))

        assert pipeline.remembered == {"there"}
        assert pipeline.store.listings == 1


def test_nothing_is_forgotten_while_a_backfill_pauses_pruning(pipeline: Pipeline) -> None:
    pipeline.drop("there")
    pipeline.land("gone")
    pipeline.state.pruning.pause(TABLE, "backfill", pipeline.state.now() + timedelta(days=1))
    assert pipeline.pruned() == 0
    assert pipeline.remembered == {"gone"}

    pipeline.state.pruning.end_pause(TABLE, "backfill")

    assert asyncio.run(pipeline.shared.prune(TABLE)) == 1, "the same units are compared again at once"


def test_a_file_that_a_backfill_has_landed_is_remembered_as_long_as_the_folder_announces_it(pipeline: Pipeline) -> None:
    unit = f"{URL}/a"
    pipeline.drop("a", "other")
    pipeline.land("a")
    asyncio.run(pipeline.shared.acknowledge(TABLE, [unit]))  # as a backfill does, which may forget it after the window

    assert asyncio.run(pipeline.shared.open(TABLE, [unit])).done == {unit}
    pipeline.clock.at += 2 * SETTINGS.deduplication_window
    limits = PruneLimits(window=SETTINGS.deduplication_window)
    pipeline.state.pruning.prune(TABLE, owner="other", pipeline="other", limits=limits, every=timedelta(0))

    assert pipeline.remembered == {"a"}
    pipeline.remove("a")
    assert pipeline.pruned() == 1
