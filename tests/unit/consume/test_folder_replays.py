"""Replays of dead letters whose files a folder named: a pipeline that watches the folder gets them again."""

from datetime import timedelta
from pathlib import Path

from lakehead.clock import SystemClock
from lakehead.consume.folder_replays import FolderReplays
from lakehead.consume.queues.folder_pass import FolderSettings
from lakehead.consume.queues.folder_queue import FolderQueue
from lakehead.consume.uris import unknown_etag_id
from lakehead.errors import Unavailable
from lakehead.ids import RandomIds
from lakehead.state.opening import open_state
from lakehead.storage.open_store import open_store
from tests.support.async_tests import async_test
from tests.support.state_tools import hold
from tests.unit.consume.pipelines import SETTINGS, Pipelines, pipelines_test

LEASE = SETTINGS.lease.total_seconds()
SOON = timedelta(milliseconds=5)
MINUTE = timedelta(minutes=1)


@async_test
async def test_files_of_replayed_letters_come_again_and_others_do_not(tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    inbox.mkdir()
    files = {name: inbox / name for name in ("a b.json", "etag.json", "part.json", "gone.json", "waits.json")}
    for file in files.values():
        file.write_text("{}")
    url = inbox.as_uri()
    queue = FolderQueue(open_store(url), FolderSettings(url=url, rest=SOON, poll_interval=SOON), SystemClock())
    came = list(await queue.receive(10, visibility=MINUTE, wait=MINUTE))
    while len(came) < len(files):
        came += await queue.receive(10, visibility=MINUTE, wait=MINUTE)
    assert not await queue.acknowledge(came)
    units = {name: file.as_uri() for name, file in files.items()}
    units["etag.json"] += "?etag=e1"
    units["part.json"] += "#0-100"
    units["gone.json"] = unknown_etag_id(units["gone.json"])
    with open_state(f"sqlite:///{tmp_path}/state.db", SystemClock(), RandomIds()) as state:
        for unit in (*units.values(), "inline:abc"):
            hold(state, "table", unit)
            assert state.history.bury("table", unit, "corrupt", owner="us") is not None
        for unit in (*list(units.values())[:4], "inline:abc"):
            assert state.history.begin_replay("table", unit)

        await FolderReplays(queue, state).deliver(["table"])

    again = list(await queue.receive(10, visibility=MINUTE, wait=MINUTE))
    while len(again) < 4:
        again += await queue.receive(10, visibility=MINUTE, wait=MINUTE)
    again += await queue.receive(10, visibility=MINUTE, wait=10 * SOON)
    assert sorted(each.id for each in again) == sorted(files[name].as_uri() for name in list(files)[:4])


class _Asked:
    """Notes which tables it was asked for, and fails the first time."""

    def __init__(self) -> None:
        self.tables: list[list[str]] = []

    async def deliver(self, tables: list[str]) -> None:
        self.tables.append(tables)
        if len(self.tables) == 1:
            raise Unavailable("the state does not answer")


@pipelines_test
async def test_a_pipeline_asks_for_replays_of_its_tables_again_and_again(tested: Pipelines) -> None:
    asked = _Asked()
    pipeline = tested.pipeline()
    pipeline.coordinator._keeping.replays = asked  # type: ignore[assignment]  # it wants a list, and gets one
    tested.send("a", "other/b")
    pipeline.start()
    await tested.sleep(10 * LEASE / 4 + 1)

    assert len(asked.tables) in (9, 10)
    assert sorted(asked.tables[-1]) == ["other", "table"]
