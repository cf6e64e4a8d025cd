"""The threads of the local store: its own, and gone with it."""

import asyncio
import gc
import multiprocessing
import multiprocessing.process
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakehead.storage.local_store import THREADS, LocalStore
from lakehead.storage.port import Version
from tests.support.async_tests import async_test
from tests.unit.storage.local_folder import KEY, NEW, OLD, body, keys, open_local

pytestmark = pytest.mark.timeout(60)

LONG = 30
"""Seconds after which something is taken to hang."""


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("lakehead-store")}


@async_test
async def test_a_store_answers_while_all_threads_of_asyncio_are_blocked(store: LocalStore) -> None:
    loop, go_on = asyncio.get_running_loop(), threading.Event()
    with ThreadPoolExecutor(2) as default:
        loop.set_default_executor(default)
        blocked = [loop.run_in_executor(None, go_on.wait, LONG) for _ in range(8)]
        try:
            async with asyncio.timeout(LONG / 2):
                await store.put(KEY, NEW)
                assert await body(store, KEY) == NEW
                assert await keys(store) == [KEY]
            assert not any(each.done() for each in blocked)
        finally:
            go_on.set()
        await asyncio.gather(*blocked)


def test_the_threads_of_a_store_are_bounded_and_end_when_it_is_dropped(root: Path) -> None:
    before = threads()

    async def put_many() -> None:
        store = open_local(root)
        await asyncio.gather(*(store.put(f"{number}", NEW) for number in range(4 * THREADS)))

    asyncio.run(put_many())
    gc.collect()

    ours = threads() - before
    assert len(ours) <= THREADS
    for thread in ours:
        thread.join(LONG)
    assert not threads() - before


def test_a_store_that_nobody_has_used_has_no_threads(root: Path) -> None:
    before = threads()
    open_local(root)
    assert threads() == before


@async_test
async def test_a_cancelled_call_that_has_not_begun_changes_nothing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    begun = threading.Semaphore(0)

    def wait(_: LocalStore, key: str) -> None:
        begun.release()
        assert go_on.wait(LONG), key

    monkeypatch.setattr(LocalStore, "_delete", wait)
    busy = [asyncio.create_task(store.delete(f"{number}")) for number in range(THREADS)]
    for _ in busy:
        await asyncio.to_thread(begun.acquire, timeout=LONG)
    late = asyncio.create_task(store.put(KEY, NEW))
    await asyncio.sleep(0)
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    go_on.set()
    await asyncio.gather(*busy)
    assert await body(store, KEY) is None


def test_a_forked_process_can_use_a_store_that_its_parent_has_used(store: LocalStore) -> None:
    def put(content: bytes) -> None:
        asyncio.run(store.put(KEY, content))

    put(OLD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks of processes with threads
        child = multiprocessing.get_context("fork").Process(target=put, args=(NEW,))
        child.start()
    child.join(LONG)
    answered = child.exitcode
    child.kill()
    child.join()

    assert answered == 0
    assert asyncio.run(body(store, KEY)) == NEW


def test_a_process_that_was_forked_during_a_write_does_not_keep_its_lock(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork has every file of its parent open, also those that the parent closes later."""
    children: list[multiprocessing.process.BaseProcess] = []
    take_the_name = store._rename

    def fork_first(path: str, parent: int, name: str) -> Version:
        if not children:
            children.append(multiprocessing.get_context("fork").Process(target=threading.Event().wait, args=(LONG,)))
            children[0].start()
        return take_the_name(path, parent, name)

    monkeypatch.setattr(store, "_rename", fork_first)

    async def put_twice() -> None:
        await store.put(KEY, OLD)
        await asyncio.wait([second := asyncio.ensure_future(store.put(KEY, NEW))], timeout=LONG / 10)
        answered = second.done()
        children[0].kill()
        await second
        assert answered

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks of processes with threads
        asyncio.run(put_twice())
    children[0].join()


def test_a_store_can_be_used_by_event_loops_in_several_threads(store: LocalStore) -> None:
    def use(name: str) -> None:
        async def create_many() -> None:
            await asyncio.gather(*(store.create(f"{name}/{number}", NEW) for number in range(20)))

        asyncio.run(create_many())

    with ThreadPoolExecutor(4) as users:
        list(users.map(use, "abcd"))

    assert len(asyncio.run(keys(store))) == 80
