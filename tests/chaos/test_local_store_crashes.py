"""The local store among real processes that are really killed."""

import asyncio
import json
import signal
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from lakehead.ids import RandomIds
from lakehead.storage.local_store import LocalStore
from lakehead.storage.port import Created, ListedObject, Object, Replaced, Version
from tests.chaos.local_store_child import (
    KEY,
    LARGE,
    NEW,
    OLD,
    SLICE,
    SLICES_BEFORE_DEATH,
    body_of,
    main,
    open_local,
)
from tests.support.costs import Mechanism, add
from tests.support.effort import effort
from tests.support.forks import Forked, forked

pytestmark = pytest.mark.timeout(120)

BYSTANDER = "bystander"
HOUR_NS = 3_600 * 10**9
MOST_STEPS = 200
INCREMENTS = effort(50, soak=250)


def child(*words: str | Path) -> AbstractContextManager[Forked]:
    return forked(main, *words)


def read_line(process: Forked) -> str:
    line = process.stdout.readline()
    assert line.endswith("\n"), "the child ended before it said what was expected"
    return line[:-1]


def read_rest(process: Forked) -> list[str]:
    """Every line up to the child's end. What it could not end, because it died, is no line."""
    return process.stdout.read().split("\n")[:-1]


def write_line(process: Forked, line: str) -> None:
    process.stdin.write(line + "\n")
    process.stdin.flush()


def start_together(processes: Sequence[Forked]) -> None:
    for process in processes:
        assert read_line(process) == "ready"
    for process in processes:
        write_line(process, "go")


def finish(process: Forked) -> list[str]:
    """What the child still had to say, after it has ended well."""
    lines = read_rest(process)
    assert process.wait() == 0
    return lines


def temporaries(root: Path) -> list[Path]:
    folder = root / ".lakehead" / "tmp"
    return list(folder.iterdir()) if folder.exists() else []


async def listing(store: LocalStore) -> list[ListedObject]:
    return [meta async for page in store.list() for meta in page]


# --- killed at any step


@dataclass(frozen=True)
class Deed:
    """What a doomed process does, from which state to which, and the steps that it must be killed around."""

    operation: str
    before: bytes | None
    after: bytes | None
    steps: frozenset[str]
    new_store: bool = False

    async def prepare(self, root: Path) -> None:
        if self.new_store:
            return
        store = open_local(root)
        await store.put(BYSTANDER, OLD)
        if self.before is not None:
            await store.put(KEY, self.before)

    def do(self, server: Forked, root: Path, step: int) -> str:
        """Where it died, or `answered`."""
        write_line(server, f"{self.operation} {step} {root}")
        moment, code = read_line(server), read_line(server)
        assert code == ("exit 0" if moment == "answered" else f"exit {-signal.SIGKILL}"), (moment, code)
        return moment


def a_deed(operation: str, before: bytes | None, after: bytes | None, steps: str, *, new_store: bool = False) -> Deed:
    return Deed(operation, before, after, frozenset(steps.split()), new_store)


DEEDS = {
    "create": a_deed("create", None, NEW, "mkdir open write fsync utime link"),
    "create by a named file": a_deed("create-named", None, NEW, "mkdir open write fsync utime link unlink"),
    "the first create of a store": a_deed("create", None, NEW, "mkdir open write fsync utime link", new_store=True),
    "replace": a_deed("replace", OLD, NEW, "open write fsync utime rename"),
    "the first put": a_deed("put", None, NEW, "mkdir open write fsync utime rename"),
    "put": a_deed("put", OLD, NEW, "open write fsync utime rename"),
    "delete": a_deed("delete", OLD, None, "open unlink fsync"),
}


@pytest.mark.parametrize("name", DEEDS)
def test_a_writer_killed_at_any_step_leaves_the_old_object_or_the_new_one(name: str, tmp_path: Path) -> None:
    deed = DEEDS[name]
    moments: list[str] = []
    found: list[bytes | None] = []
    with child("serve-deaths") as server:
        while "answered" not in moments:
            step = len(moments) + 1
            assert step < MOST_STEPS, f"{name} never came to an answer: {moments}"
            root = tmp_path / str(step)
            asyncio.run(deed.prepare(root))
            moments.append(deed.do(server, root, step))
            add(Mechanism.KILLS, moments[-1] != "answered")
            found.append(asyncio.run(look_and_go_on(root, bystander=not deed.new_store)))

    told = [("old" if body == deed.before else "new" if body == deed.after else "broken") for body in found]
    story = list(zip(moments, told, strict=True))
    change = told.index("new")
    assert told == ["old"] * change + ["new"] * (len(told) - change), story
    for function in deed.steps:
        assert {f"before {function}", f"after {function}"} <= set(moments), story


async def look_and_go_on(root: Path, *, bystander: bool = False) -> bytes | None:
    """What the object holds after a death, having seen that the store is sound and goes on."""
    there = await look(root, bystander=bystander)

    store = open_local(root)
    await store.put("another", b"")
    assert temporaries(root) == []

    if there is None:
        assert isinstance(await store.create(KEY, b"again"), Created)
    else:
        assert isinstance(await store.replace(KEY, b"again", there.meta.version), Replaced)
    again = await store.get(KEY)
    assert again is not None
    assert again.body == b"again"
    return there.body if there else None


async def look(root: Path, *, bystander: bool) -> Object | None:
    """The object as a process sees it that comes afterwards and only reads."""
    store = open_local(root)
    there = await store.get(KEY)
    beside = await store.get(BYSTANDER)
    assert (beside.body if beside else None) == (OLD if bystander else None)
    seen = [(entry.key, entry.size) for entry in await listing(store)]
    assert seen == [(each.meta.key, each.meta.size) for each in (beside, there) if each]
    assert all(len(each.body) == each.meta.size for each in (beside, there) if each)
    return there


@pytest.mark.parametrize("before", [None, OLD], ids=["absent", "there"])
def test_a_writer_killed_in_the_middle_of_a_large_body_leaves_the_old_object(
    before: bytes | None, tmp_path: Path
) -> None:
    if before is not None:
        asyncio.run(open_local(tmp_path).put(KEY, before))

    with child("die-in-a-large-write", tmp_path) as writer:
        assert writer.wait() == -signal.SIGKILL

    half = SLICES_BEFORE_DEATH * SLICE
    assert half < len(LARGE)
    assert [path.stat().st_size for path in temporaries(tmp_path)] == [half]
    assert asyncio.run(look_and_go_on(tmp_path)) == before


def test_the_temporary_file_of_a_writer_that_lives_is_not_swept(tmp_path: Path) -> None:
    with child("stop-in-a-write", tmp_path) as writer:
        writer.await_stop()
        [temporary] = temporaries(tmp_path)
        assert 0 < temporary.stat().st_size < len(NEW)

        asyncio.run(open_local(tmp_path).put("another", b"meanwhile"))
        assert temporaries(tmp_path) == [temporary]

        writer.send_signal(signal.SIGCONT)
        [version] = finish(writer)

    there = asyncio.run(open_local(tmp_path).get(KEY))
    assert there is not None
    assert (there.body, there.meta.version) == (NEW, version)
    assert temporaries(tmp_path) == []


def test_a_sweep_removes_the_dead_writers_file_and_spares_the_living_ones(tmp_path: Path) -> None:
    with child("stop-in-a-write", tmp_path) as living:
        living.await_stop()
        with child("die-in-a-large-write", tmp_path) as dead:
            assert dead.wait() == -signal.SIGKILL
        assert len(temporaries(tmp_path)) == 2

        asyncio.run(open_local(tmp_path).put("another", b""))

        [spared] = temporaries(tmp_path)
        assert 0 < spared.stat().st_size < len(NEW)


# --- killed under load


def test_kill_minus_nine_keeps_every_answered_write(tmp_path: Path) -> None:
    random = Random(20_240_229)
    answered: dict[str, list[str]] = {}
    for round_ in range(3):
        names = [f"writer-{round_}-{number}" for number in range(3)]
        with ExitStack() as stack:
            writers = [stack.enter_context(child("write-numbers", tmp_path, name)) for name in names]
            for name, writer in zip(names, writers, strict=True):
                lines = [read_line(writer) for _ in range(random.randrange(5, 60))]
                writer.kill()
                answered[name] = lines + read_rest(writer)

        asyncio.run(expect_all(tmp_path, answered))

    asyncio.run(open_local(tmp_path).put("another", b""))
    assert temporaries(tmp_path) == []


async def expect_all(root: Path, answered: dict[str, list[str]]) -> None:
    store = open_local(root)
    listed = [meta.key for meta in await listing(store)]
    for name, keys in answered.items():
        cursor = await store.get(f"cursors/{name}")
        assert cursor is not None
        # The one write that was under way may have happened, and no more than that.
        assert int(cursor.body) in (len(keys) - 1, len(keys))
        there = [key for key in listed if key.startswith(f"{name}/")]
        assert there[: len(keys)] == keys
        assert int(cursor.body) + 1 <= len(there) <= len(keys) + 1
        for key in there:
            found = await store.get(key)
            assert found is not None
            assert found.body == body_of(key), key


# --- racing


@pytest.mark.parametrize(("operation", "answer"), [("replace", "Stale"), ("put", "str"), ("delete", "NoneType")])
def test_nobody_comes_between_a_writers_last_look_and_its_change(operation: str, answer: str, tmp_path: Path) -> None:
    asyncio.run(open_local(tmp_path).put(KEY, OLD))

    with child("stop-before-the-name-is-taken", tmp_path) as first:
        first.await_stop()
        with child("tell-when-waiting", tmp_path, operation) as second:
            assert read_line(second) == "waits"
            first.send_signal(signal.SIGCONT)
            assert finish(first) == ["Replaced"]
            assert finish(second) == [answer]


def test_the_lock_of_a_killed_writer_is_free(tmp_path: Path) -> None:
    asyncio.run(open_local(tmp_path).put(KEY, OLD))

    with child("stop-before-the-name-is-taken", tmp_path) as first:
        first.await_stop()
        with child("tell-when-waiting", tmp_path, "replace") as second:
            assert read_line(second) == "waits"
            first.kill()
            assert finish(second) == ["Replaced"]

    assert asyncio.run(look_and_go_on(tmp_path)) == NEW


def test_no_increment_is_lost_between_eight_processes(tmp_path: Path) -> None:
    asyncio.run(open_local(tmp_path).create("counter", json.dumps({"count": 0}).encode()))

    with ExitStack() as stack:
        writers = [stack.enter_context(child("increment", tmp_path, "counter", str(INCREMENTS))) for _ in range(8)]
        start_together(writers)
        for writer in writers:
            finish(writer)

    there = asyncio.run(open_local(tmp_path).get("counter"))
    assert there is not None
    assert json.loads(there.body) == {"count": 8 * INCREMENTS}
    assert temporaries(tmp_path) == []


def test_of_eight_processes_that_create_a_key_exactly_one_wins(tmp_path: Path) -> None:
    names = [f"racer-{number}" for number in range(8)]
    with ExitStack() as stack:
        racers = [stack.enter_context(child("race", tmp_path, name, "100")) for name in names]
        start_together(racers)
        won = [(key, name) for name, racer in zip(names, racers, strict=True) for key in finish(racer)]

    assert sorted(key for key, _ in won) == [f"raced/{number:03}" for number in range(100)]
    assert asyncio.run(bodies(tmp_path)) == {key: name.encode() for key, name in won}


async def bodies(root: Path) -> dict[str, bytes]:
    store = open_local(root)
    found = [await store.get(meta.key) for meta in await listing(store)]
    return {each.meta.key: each.body for each in found if each}


# --- versions


class SetClock:
    """A clock that is set before each write."""

    def __init__(self) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    "offsets",
    [[0], [0, -HOUR_NS], list(range(-HOUR_NS, 0, HOUR_NS // 10))],
    ids=["stands still", "jumps back and forth", "is set back again and again"],
)
def test_no_version_repeats_even_if_the_clock(offsets: list[int], tmp_path: Path) -> None:
    versions = asyncio.run(write_versions(tmp_path, offsets))

    assert len(versions) == 500
    assert len(set(versions)) == len(versions)


async def write_versions(root: Path, offsets: list[int]) -> list[Version]:
    """Bodies of one size and files that take over each other's inode, so that nothing but the time can differ."""
    clock, random, latest = SetClock(), Random(1), time.time_ns() + 2 * HOUR_NS
    store = LocalStore(root, clock=clock, ids=RandomIds(), random=random)
    versions = [await store.put(KEY, OLD)]
    while len(versions) < 500:
        clock.time_ns = latest + offsets[len(versions) % len(offsets)]
        if len(versions) % 50 == 0:
            store = LocalStore(root, clock=clock, ids=RandomIds(), random=random)
        match len(versions) % 3:
            case 0:
                versions.append(await store.put(KEY, OLD))
            case 1:
                replaced = await store.replace(KEY, OLD, versions[-1])
                assert isinstance(replaced, Replaced)
                versions.append(replaced.version)
            case _:
                await store.delete(KEY)
                created = await store.create(KEY, OLD)
                assert isinstance(created, Created)
                versions.append(created.version)
    return versions
