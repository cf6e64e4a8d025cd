"""Files that have landed are deleted or moved; all others are left alone."""

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehead.clock import SystemClock
from lakehead.consume.after_landing import AfterLanding
from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.decode.rows import ObjectRefused
from lakehead.consume.etag_lookup import EtagLookup
from lakehead.consume.iceberg_landings import _to_read as to_read
from lakehead.consume.message_reader import MessageReader
from lakehead.consume.object_clients import ObjectClients, ObjectHead
from lakehead.consume.object_reader import ObjectReader, ReplacedWhileRead
from lakehead.consume.object_tasks import ObjectToRead, _open
from lakehead.consume.objects import MessageFormat, ObjectRef
from lakehead.consume.ports import ActionReport
from lakehead.consume.queue import Message
from lakehead.consume.routes import Route
from lakehead.consume.uris import Identity, unit_id
from lakehead.errors import Misconfigured, Unavailable
from lakehead.ids import RandomIds
from lakehead.lake.landing import Unit
from lakehead.state.opening import open_state
from lakehead.state.state import State
from tests.support.async_tests import async_test
from tests.support.simulation import World
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
async def test_a_file_that_is_moved_overwrites_none(state: State, tmp_path: Path) -> None:
    [path] = written(tmp_path, "a")
    before = tmp_path / "done" / path.relative_to("/")
    before.parent.mkdir(parents=True)
    before.write_text("moved before")
    unit = await unit_of(path)
    land(state, unit)

    report = await AfterLanding("move", state, CLIENTS, (tmp_path / "done").as_uri()).act(TABLE, [unit])

    assert report == ActionReport(done=1)
    assert not path.exists()
    assert before.read_text() == "moved before"
    assert before.with_name(f"a.{unit.partition('?etag=')[2]}").read_text() == "a"


@async_test
async def test_a_file_that_changes_while_it_is_copied_to_another_disk_stays(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [path] = written(tmp_path, "a")
    unit = await unit_of(path)
    land(state, unit)
    replaces = Path.replace

    def to_another_disk(self: Path, target: Path) -> Path:
        if self == path:
            path.write_text("changed")
            raise OSError(errno.EXDEV, "another disk")
        return replaces(self, target)

    monkeypatch.setattr(Path, "replace", to_another_disk)
    report = await AfterLanding("move", state, CLIENTS, (tmp_path / "done").as_uri()).act(TABLE, [unit])

    assert report == ActionReport()
    assert path.read_text() == "changed"
    assert [each for each in (tmp_path / "done").rglob("*") if each.is_file()] == []


@async_test
async def test_a_file_that_was_copied_to_another_disk_before_a_crash_is_not_copied_again(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [path] = written(tmp_path, "a")
    unit = await unit_of(path)
    land(state, unit)
    replaces, unlinks, crashes = Path.replace, Path.unlink, [True]

    def to_another_disk(self: Path, target: Path) -> Path:
        if self == path:
            raise OSError(errno.EXDEV, "another disk")
        return replaces(self, target)

    def crashing(self: Path, *, missing_ok: bool = False) -> None:
        if self == path and crashes.pop():
            raise OSError("it dies here")
        unlinks(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "replace", to_another_disk)
    monkeypatch.setattr(Path, "unlink", crashing)
    crashes.insert(0, False)
    action = AfterLanding("move", state, CLIENTS, (tmp_path / "done").as_uri())
    reports = [await action.act(TABLE, [unit]) for _ in range(2)]

    assert reports == [ActionReport(failed=1), ActionReport(done=1)]
    assert not path.exists()
    assert [each.name for each in (tmp_path / "done").rglob("*") if each.is_file()] == [path.name]


@async_test
async def test_of_two_processes_that_move_a_file_to_another_disk_one_does_and_readers_see_it_whole(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [path] = written(tmp_path, "a")
    unit = await unit_of(path)
    land(state, unit)
    target = tmp_path / "done" / path.relative_to("/")
    replaces, again, others, seen = Path.replace, [True], list[ActionReport](), list[str]()

    def to_another_disk(self: Path, end: Path) -> Path:
        if self == path:
            raise OSError(errno.EXDEV, "another disk")
        if again and again.pop():  # the message has come again while it was copied
            others.append(asyncio.run(action.act(TABLE, [unit])))
        renamed = replaces(self, end)
        seen.append(target.read_text())
        return renamed

    monkeypatch.setattr(Path, "replace", to_another_disk)
    action = AfterLanding("move", state, CLIENTS, (tmp_path / "done").as_uri())
    report = await action.act(TABLE, [unit])

    assert (others, report) == ([ActionReport()], ActionReport(done=1))
    assert seen == ["a"]
    assert not path.exists()
    assert [each for each in (tmp_path / "done").rglob("*") if each.is_file()] == [target]


@async_test
async def test_a_copy_that_a_dead_process_left_unfinished_is_made_anew(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [path] = written(tmp_path, "a")
    unit = await unit_of(path)
    land(state, unit)
    target = tmp_path / "done" / path.relative_to("/")
    target.parent.mkdir(parents=True)
    target.with_name(".a.part").write_text("unfinished")
    replaces = Path.replace

    def to_another_disk(self: Path, end: Path) -> Path:
        if self == path:
            raise OSError(errno.EXDEV, "another disk")
        return replaces(self, end)

    monkeypatch.setattr(Path, "replace", to_another_disk)
    report = await AfterLanding("move", state, CLIENTS, (tmp_path / "done").as_uri()).act(TABLE, [unit])

    assert report == ActionReport(done=1)
    assert [each.name for each in target.parent.iterdir()] == ["a"]
    assert target.read_text() == "a"


@async_test
async def test_a_symbolic_link_is_not_moved_to_where_it_would_lead_nowhere(state: State, tmp_path: Path) -> None:
    written(tmp_path, "a")
    link = tmp_path / "link"
    link.symlink_to("a")
    unit = await unit_of(link)
    land(state, unit)

    report = await AfterLanding("move", state, CLIENTS, (tmp_path / "done").as_uri()).act(TABLE, [unit])

    assert report == ActionReport(failed=1)
    assert link.read_text() == "a"


@async_test
async def test_a_file_that_is_replaced_right_before_it_is_moved_stays_and_can_land(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [path] = written(tmp_path, "a")
    unit = await unit_of(path)
    land(state, unit)
    replaces = Path.replace

    def after_another(self: Path, target: Path) -> Path:
        if self == path:
            new = path.with_name("new")
            new.write_text("new content")
            replaces(new, path)
        return replaces(self, target)

    monkeypatch.setattr(Path, "replace", after_another)
    report = await AfterLanding("move", state, CLIENTS, (tmp_path / "done").as_uri()).act(TABLE, [unit])

    assert report == ActionReport()
    assert path.read_text() == "new content"
    assert [each for each in (tmp_path / "done").rglob("*") if each.is_file()] == []


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


def looking_up(clients: ObjectClients = CLIENTS) -> tuple[EtagLookup, MessageReader]:
    routes = [Route(table="raw.files", exclude=("*.skip",))]
    lookup = EtagLookup(clients=clients, format=MessageFormat.AUTO, routes=routes)
    reader = MessageReader(format=MessageFormat.AUTO, routes=routes, identity=Identity.URI_AND_ETAG, known=lookup.known)
    return lookup, reader


def message(uri: str) -> Message:
    return Message(id=uri, body=uri.encode())


@async_test
async def test_etags_that_messages_do_not_tell_are_looked_up(tmp_path: Path) -> None:
    [path] = written(tmp_path, "a")
    lookup, reader = looking_up()
    there = message(path.as_uri())

    await lookup.look_up([there, message(f"{tmp_path.as_uri()}/b.skip"), Message(id="?", body=b"\0")])

    [work] = reader(there, ConsumeCounts())
    assert (work.key.unit, work.size) == (await unit_of(path), 1)
    assert len(lookup.known) == 1
    await lookup.look_up([])
    assert not lookup.known


@async_test
async def test_an_object_that_is_gone_is_a_unit_that_cannot_be_read_even_if_it_comes_back(tmp_path: Path) -> None:
    lookup, reader = looking_up()
    uri = f"{tmp_path.as_uri()}/gone"
    missing = [message(uri), message(f"{uri}/below"), message(f"{tmp_path.as_uri()}/{'n' * 300}")]

    await lookup.look_up(missing)
    works = [work for each in missing for work in reader(each, ConsumeCounts())]

    assert [work.key.unit for work in works] == [f"{each.id}?etag=" for each in missing]
    written(tmp_path, "gone")
    for work in works:
        with pytest.raises(ObjectRefused):
            _open(to_read(work), ObjectReader({}))


class RefusingClients(ObjectClients):
    """One bucket does not answer, another refuses, and a third never ends an answer."""

    asked = 0

    async def head(self, uri: str, *, version: str | None = None) -> ObjectHead | None:
        self.asked += 1
        match uri.split("/")[2]:
            case "down":
                raise Unavailable("it does not answer")
            case "forbidden":
                raise Misconfigured("it refused the credentials")
            case "silent":
                await asyncio.Event().wait()
            case _:
                pass
        return ObjectHead(f"etag of {version}", 7)


@pytest.mark.parametrize("bucket", ["down", "forbidden", "silent"])
def test_a_bucket_that_refuses_costs_its_own_messages_a_delay_and_others_nothing(bucket: str) -> None:
    async def test() -> None:
        clients = RefusingClients({})
        lookup, reader = looking_up(clients)
        bad = [message(f"s3://{bucket}/{number}") for number in range(200)]
        good = [message(f"gs://good/{number}") for number in range(3)]

        await lookup.look_up([*bad, *good])

        assert [len(reader(each, ConsumeCounts())) for each in good] == [1, 1, 1]
        for each in bad:
            with pytest.raises(Unavailable, match=f"s3://{bucket}/"):
                reader(each, ConsumeCounts())
        assert reader(message(f"s3://{bucket}/a.skip"), ConsumeCounts()) == []
        assert clients.asked < 200 or bucket == "forbidden", "one that is silent is not asked again and again"

    World(1).loop.simulate(test())


@async_test
async def test_each_version_that_messages_announce_is_looked_up_by_itself() -> None:
    lookup, reader = looking_up(RefusingClients({}))
    generations = [Message(id=version, body=f"gs://good/a?generation={version}".encode()) for version in ("1", "2")]

    await lookup.look_up(generations)

    works = [work for each in generations for work in reader(each, ConsumeCounts())]
    assert [work.key.unit for work in works] == [f"gs://good/a?etag=etag%20of%20{version}" for version in ("1", "2")]
    assert [to_read(work).version for work in works] == ["1", "2"]


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
