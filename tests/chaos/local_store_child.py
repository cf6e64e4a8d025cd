"""The processes that the crash tests start and kill."""

import asyncio
import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.storage import local_files
from lakehead.storage.local_store import LocalStore
from lakehead.storage.port import Created, Exists, Object, ObjectMeta, Replaced, Stale

KEY = "folder/object"
OLD = b"old" * 1_000
NEW = b"new" * 50_000
LARGE = b"large..." * (2 << 20)
SLICE = 1 << 20
SLICES_BEFORE_DEATH = 8

STEPS = ("mkdir", "open", "write", "fsync", "utime", "link", "rename", "unlink")
"""The functions of `os` by which the adapter changes anything."""


class NoChance(Random):
    """Draws nothing but zeros, so that every run of a doomed process takes the same steps."""

    def getrandbits(self, _: int, /) -> int:
        return 0


def open_local(root: Path) -> LocalStore:
    """The store that tests and children share: only its folder connects them."""
    return LocalStore(root, clock=SystemClock(), ids=RandomIds(), random=NoChance())


def body_of(key: str) -> bytes:
    """What a numbered object must hold, of a size that differs from object to object."""
    random = Random(key)
    return random.randbytes(random.choice([1, 1_000, 100_000, 400_000]))


def tell(line: str) -> None:
    """One line to the test, at once."""
    print(line, flush=True)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    # To this thread: a signal to the process may let it run on until another thread has taken it.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


# --- killed at one chosen step


def serve_deaths() -> None:
    """For each line `operation step root`, carry the operation out in a process of its own that dies at that step.

    The answer is `before <step>` or `after <step>` where it died, or `answered`, and then its exit code. Forking
    spares the start of an interpreter for each of the many deaths.
    """
    for line in sys.stdin:
        operation, step, root = line.rstrip("\n").split(" ", 2)
        process = os.fork()
        if process == 0:
            doomed(operation, int(step), open_local(Path(root)))
            tell("answered")
            os._exit(0)
        _, status = os.waitpid(process, 0)
        tell(f"exit {os.waitstatus_to_exitcode(status)}")


def doomed(operation: str, step: int, store: LocalStore) -> None:
    known = asyncio.run(store.head(KEY))
    die_at(step)
    answer = asyncio.run(carry_out(operation, store, known))
    assert not isinstance(answer, Exists | Stale)


async def carry_out(operation: str, store: LocalStore, known: ObjectMeta | None) -> object:
    match operation, known:
        case "create", None:
            return await store.create(KEY, NEW)
        case "create-named", None:
            local_files.HAS_UNNAMED_FILES = False  # as on systems without files that have no name
            return await store.create(KEY, NEW)
        case "replace", ObjectMeta(version=version):
            return await store.replace(KEY, NEW, version)
        case "put", _:
            return await store.put(KEY, NEW)
        case "delete", _:
            return await store.delete(KEY)  # type: ignore[func-returns-value]  # None is its answer
        case _:
            raise ValueError(operation, known)


def die_at(step: int) -> None:
    """Make the process die at a step: each call of a function counts as two, just before it and just after it."""
    steps = count(1)

    def reach(moment: str) -> None:
        if next(steps) == step:
            tell(moment)
            die()

    def deadly(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            reach(f"before {name}")
            answer = real(*args, **kwargs)
            reach(f"after {name}")
            return answer

        return call

    for name in STEPS:
        setattr(os, name, deadly(name, getattr(os, name)))


# --- killed or stopped inside of a write


def die_in_a_large_write(store: LocalStore) -> None:
    real, calls = os.write, count()

    def write(file: int, data: memoryview) -> int:
        if next(calls) == SLICES_BEFORE_DEATH:
            die()
        return real(file, data[:SLICE])

    os.write = write  # type: ignore[assignment]  # a stand-in for this process alone
    asyncio.run(store.put(KEY, LARGE))


def stop_in_a_write(store: LocalStore) -> None:
    real, calls = os.write, count()

    def write(file: int, data: memoryview) -> int:
        if next(calls) == 1:
            stop()
        return real(file, data[: len(NEW) // 2])

    os.write = write  # type: ignore[assignment]  # a stand-in for this process alone
    tell(asyncio.run(store.put(KEY, NEW)))


# --- one holds the lock and the other waits for it


def stop_before_the_name_is_taken(store: LocalStore) -> None:
    real: Callable[..., None] = os.rename

    def rename(*args: Any, **kwargs: Any) -> None:
        stop()
        real(*args, **kwargs)

    known = asyncio.run(store.head(KEY))
    os.rename = rename
    tell(type(asyncio.run(carry_out("replace", store, known))).__name__)


def tell_when_waiting(store: LocalStore, operation: str) -> None:
    real = fcntl.flock

    def flock(file: int, how: int) -> None:
        try:
            real(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if how & fcntl.LOCK_NB:
                raise
            tell("waits")
            real(file, how)

    known = asyncio.run(store.head(KEY))
    fcntl.flock = flock  # type: ignore[assignment]  # a stand-in for this process alone
    tell(type(asyncio.run(carry_out(operation, store, known))).__name__)


# --- killed under load, and racing


async def write_numbers(store: LocalStore, name: str) -> None:
    """Create numbered objects for ever, keep a cursor behind them, and tell each key that was answered."""
    created = await store.create(f"cursors/{name}", b"-1")
    assert isinstance(created, Created)
    version = created.version
    for number in count():
        key = f"{name}/{number:06}"
        if number % 2:
            await store.put(key, body_of(key))
        else:
            assert isinstance(await store.create(key, body_of(key)), Created)
        replaced = await store.replace(f"cursors/{name}", str(number).encode(), version)
        assert isinstance(replaced, Replaced)
        version = replaced.version
        tell(key)


async def increment(store: LocalStore, key: str, times: int) -> None:
    """Raise the counter that often, each time by one more than what was read."""
    for _ in range(times):
        while True:
            there = await store.get(key)
            assert isinstance(there, Object)
            body = json.dumps({"count": json.loads(there.body)["count"] + 1}).encode()
            if isinstance(await store.replace(key, body, there.meta.version), Replaced):
                break


async def race(store: LocalStore, name: str, keys: int) -> None:
    """Create every key and tell which ones this process won."""
    for number in range(keys):
        key = f"raced/{number:03}"
        if isinstance(await store.create(key, name.encode()), Created):
            tell(key)


def await_start() -> None:
    tell("ready")
    sys.stdin.readline()


def main(words: list[str]) -> None:
    """Do what the words say."""
    match words:
        case ["serve-deaths"]:
            serve_deaths()
        case ["die-in-a-large-write", root]:
            die_in_a_large_write(open_local(Path(root)))
        case ["stop-in-a-write", root]:
            stop_in_a_write(open_local(Path(root)))
        case ["stop-before-the-name-is-taken", root]:
            stop_before_the_name_is_taken(open_local(Path(root)))
        case ["tell-when-waiting", root, operation]:
            tell_when_waiting(open_local(Path(root)), operation)
        case ["write-numbers", root, name]:
            asyncio.run(write_numbers(open_local(Path(root)), name))
        case ["increment", root, key, times]:
            await_start()
            asyncio.run(increment(open_local(Path(root)), key, int(times)))
        case ["race", root, name, keys]:
            await_start()
            asyncio.run(race(open_local(Path(root)), name, int(keys)))
        case unknown:
            raise SystemExit(f"There is no role {unknown}.")
