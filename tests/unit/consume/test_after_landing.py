"""Files that have landed are deleted or moved; all others are left alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehead.clock import SystemClock
from lakehead.consume.after_landing import AfterLanding
from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.decode.rows import ObjectRefused
from lakehead.consume.etag_lookup import EtagLookup
from lakehead.consume.message_reader import MessageReader
from lakehead.consume.object_clients import ObjectClients
from lakehead.consume.object_reader import ObjectReader, ReplacedWhileRead
from lakehead.consume.object_tasks import ObjectToRead, _open
from lakehead.consume.objects import MessageFormat, NotUnderstood, ObjectRef
from lakehead.consume.ports import ActionReport
from lakehead.consume.queue import Message
from lakehead.consume.routes import Route
from lakehead.consume.uris import Identity, unit_id
from lakehead.ids import RandomIds
from lakehead.lake.landing import Unit
from lakehead.state.opening import open_state
from lakehead.state.state import State
from tests.support.async_tests import async_test
from tests.support.state_tools import FIRST, hold, landing

TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"
CLIENTS = ObjectClients({})


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    with open_state(f"sqlite:///{tmp_path}/state.db", SystemClock(), RandomIds()) as opened:
        yield opened


async def unit_of(path: Path) -> str:
    head = await CLIENTS.head(path.as_uri())
    assert head is not None
    return unit_id(ObjectRef(uri=path.as_uri(), etag=head.etag), by=Identity.URI_AND_ETAG)


def written(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).write_text(name)
    return [folder / name for name in names]


def land(state: State, *units: str) -> None:
    hold(state, TABLE, *units)
    assert state.landings.settle(TABLE, None, FIRST, [landing(FIRST, *units)])


@async_test
async def test_only_files_that_have_landed_and_have_not_changed_are_deleted(state: State, tmp_path: Path) -> None:
    landed, changed, gone, given_up, waiting = written(tmp_path, "landed", "changed", "gone", "given up", "waiting")
    units = [await unit_of(path) for path in (landed, changed, gone, given_up, waiting)]
    land(state, *units[:3])
    hold(state, TABLE, *units[3:])
    assert state.history.bury(TABLE, units[3], "bad", owner="us")
    changed.write_text("something else")
    gone.unlink()

    delete = AfterLanding("delete", state, CLIENTS)
    reports = [await delete.act(TABLE, [*units, "inline:abc"]) for _ in range(2)]

    assert reports == [ActionReport(done=1), ActionReport()]
    assert [path.exists() for path in (landed, changed, given_up, waiting)] == [False, True, True, True]


@async_test
async def test_a_file_is_moved_under_its_whole_path(state: State, tmp_path: Path) -> None:
    [path] = written(tmp_path, "a b.json")
    unit = await unit_of(path)
    land(state, unit)

    move = AfterLanding("move", state, CLIENTS, (tmp_path / "done").as_uri())
    report = await move.act(TABLE, [unit])

    assert report == ActionReport(done=1)
    assert not path.exists()
    assert (tmp_path / "done" / path.relative_to("/")).read_text() == "a b.json"


@async_test
async def test_what_cannot_be_moved_is_counted_and_stays(state: State, tmp_path: Path) -> None:
    path, obstacle = written(tmp_path, "a", "done")
    unit = await unit_of(path)
    land(state, unit)

    reports = [
        await AfterLanding("move", state, CLIENTS, target).act(TABLE, [unit])
        for target in (obstacle.as_uri(), "s3://bucket/done")
    ]

    assert reports == [ActionReport(failed=1), ActionReport(failed=1)]
    assert path.exists()


@async_test
async def test_etags_that_messages_do_not_tell_are_looked_up(tmp_path: Path) -> None:
    [path] = written(tmp_path, "a")
    lookup = EtagLookup(clients=CLIENTS, format=MessageFormat.AUTO)
    reader = MessageReader(
        format=MessageFormat.AUTO,
        routes=[Route(table="raw.files")],
        identity=Identity.URI_AND_ETAG,
        known=lookup.known,
    )
    there, missing = (Message(id=uri, body=uri.encode()) for uri in (path.as_uri(), f"{tmp_path.as_uri()}/none"))

    await lookup.look_up([there, missing, Message(id="?", body=b"\0")])

    [work] = reader(there, ConsumeCounts())
    assert (work.key.unit, work.size) == (await unit_of(path), 1)
    with pytest.raises(NotUnderstood):
        reader(missing, ConsumeCounts())
    await lookup.look_up([missing])
    assert not lookup.known


@async_test
async def test_an_object_is_read_only_with_the_etag_that_was_announced(tmp_path: Path) -> None:
    [path] = written(tmp_path, "a")
    head = await CLIENTS.head(path.as_uri())
    assert head is not None
    wanted = ObjectToRead(unit=Unit("a"), uri=path.as_uri(), etag=head.etag)
    with _open(wanted, ObjectReader({})).source as source:
        assert source.read() == b"a"

    path.write_text("another")

    with pytest.raises(ReplacedWhileRead):
        ObjectReader({}).open(path.as_uri(), etag=head.etag)
    with pytest.raises(ObjectRefused, match="replaced before it was read"):
        _open(wanted, ObjectReader({}))
