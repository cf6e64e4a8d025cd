"""The store in memory: one for each name and process, shared by its threads and event loops."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from uuid import uuid4

import pytest

from lakehead.storage.open_store import open_store
from lakehead.storage.port import Created, Replaced, Store

THREADS = 4
ROUNDS = 500


@pytest.fixture(autouse=True)
def _threads_that_take_turns_often() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def in_threads(work: Callable[[Store, int], None], *, url: str) -> None:
    """Let threads do it at once, each with a store that it opened itself and with event loops of its own."""
    together = Barrier(THREADS)

    def one(number: int) -> None:
        store = open_store(url)
        together.wait()
        work(store, number)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(one, range(THREADS)))


def test_two_openings_of_one_name_see_the_same_objects() -> None:
    key = str(uuid4())
    asyncio.run(open_store("memory://").put(key, b"body"))

    there = asyncio.run(open_store("memory://").get(key))

    assert there is not None
    assert there.body == b"body"


def test_stores_of_different_names_are_apart() -> None:
    name = str(uuid4())
    asyncio.run(open_store(f"memory://{name}").put(name, b"body"))

    for other in ("memory://", f"memory://{name}-other", f"memory://{name.upper()}X"):
        assert asyncio.run(open_store(other).get(name)) is None


def test_of_threads_that_create_one_key_exactly_one_wins() -> None:
    won: list[str] = []

    def work(store: Store, _: int) -> None:
        async def create_all() -> None:
            won.extend([k for k in map(str, range(ROUNDS)) if isinstance(await store.create(k, b""), Created)])

        asyncio.run(create_all())

    in_threads(work, url=f"memory://{uuid4()}")

    assert sorted(won, key=int) == [str(number) for number in range(ROUNDS)]


def test_no_increment_by_threads_is_lost() -> None:
    url = f"memory://{uuid4()}"
    asyncio.run(open_store(url).put("counter", b"0"))

    def work(store: Store, _: int) -> None:
        async def increment() -> None:
            done = 0
            while done < ROUNDS:
                there = await store.get("counter")
                assert there is not None
                answer = await store.replace("counter", str(int(there.body) + 1).encode(), there.meta.version)
                done += isinstance(answer, Replaced)

        asyncio.run(increment())

    in_threads(work, url=url)

    there = asyncio.run(open_store(url).get("counter"))
    assert there is not None
    assert int(there.body) == THREADS * ROUNDS


def test_a_listing_stands_writes_and_deletes_of_other_threads() -> None:
    staying = [f"stays/{number:03}" for number in range(300)]
    url = f"memory://{uuid4()}"

    def work(store: Store, number: int) -> None:
        async def come_and_go() -> None:
            for turn in range(ROUNDS):
                await store.put(f"stays/{turn:03}-{number}", b"")
                await store.delete(f"stays/{turn:03}-{number}")

        async def look() -> None:
            for _ in range(ROUNDS):
                found = [entry.key async for page in store.list("stays") for entry in page]
                assert [key for key in found if key in wanted] == staying

        asyncio.run(come_and_go() if number else look())

    async def fill() -> None:
        for key in staying:
            await open_store(url).put(key, b"")

    wanted = set(staying)
    asyncio.run(fill())
    in_threads(work, url=url)
