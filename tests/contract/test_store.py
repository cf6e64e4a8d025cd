"""What every store promises, whatever it is made of."""

import asyncio
import json
import string
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lakehead.errors import OutcomeUnknown
from lakehead.ids import RandomIds
from lakehead.storage.object_keys import MAX_KEY_BYTES, MAX_SEGMENT_BYTES, InvalidKey
from lakehead.storage.port import Created, Exists, ListedObject, Object, Replaced, Stale, Store, Version
from lakehead.storage.probe import probe
from lakehead.storage.reliable_writes import KeyState, WriteRefused, WriteRequests
from lakehead.storage.remote_store import RemoteStore
from tests.contract.conftest import REMOTE_KINDS
from tests.support.async_tests import async_test
from tests.support.effort import effort

WRITERS = 16
MIB = 1 << 20


async def created(store: Store, key: str, body: bytes = b"body") -> Version:
    answer = await store.create(key, body)
    assert isinstance(answer, Created)
    return answer.version


async def body_of(store: Store, key: str) -> bytes | None:
    there = await store.get(key)
    return there.body if there else None


async def listed(store: Store, folder: str = "", *, start_after: str = "") -> list[ListedObject]:
    return [meta async for page in store.list(folder, start_after=start_after) for meta in page]


async def keys_of(store: Store, folder: str = "", *, start_after: str = "") -> list[str]:
    return [meta.key for meta in await listed(store, folder, start_after=start_after)]


async def in_parallel(work: list[Coroutine[Any, Any, Any]], at_once: int = 32) -> None:
    gate = asyncio.Semaphore(at_once)

    async def one(each: Coroutine[Any, Any, Any]) -> None:
        async with gate:
            await each

    await asyncio.gather(*map(one, work))


# --- preconditions


@async_test
async def test_create_stores_an_absent_object(store: Store) -> None:
    version = await created(store, "a/b", b"first")

    there = await store.get("a/b")
    assert there is not None
    assert (there.body, there.meta.version, there.meta.size) == (b"first", version, 5)


@async_test
async def test_create_leaves_an_object_that_is_there(store: Store) -> None:
    version = await created(store, "a/b", b"first")

    assert await store.create("a/b", b"second") == Exists(version)
    assert await body_of(store, "a/b") == b"first"


@async_test
async def test_two_creates_of_one_body_are_still_two_writers(store: Store) -> None:
    version = await created(store, "a/b", b"same")

    assert await store.create("a/b", b"same") == Exists(version)


@async_test
async def test_replace_takes_the_place_of_the_version_named(store: Store) -> None:
    first = await created(store, "a/b", b"first")

    answer = await store.replace("a/b", b"second", first)

    assert isinstance(answer, Replaced)
    assert answer.version != first
    there = await store.get("a/b")
    assert there is not None
    assert (there.body, there.meta.version) == (b"second", answer.version)


@async_test
async def test_replace_refuses_a_version_that_is_gone(store: Store) -> None:
    first = await created(store, "a/b", b"first")
    second = await store.replace("a/b", b"second", first)

    assert await store.replace("a/b", b"third", first) == Stale(second.version)
    assert await body_of(store, "a/b") == b"second"


@async_test
async def test_replace_refuses_an_object_that_is_gone(store: Store) -> None:
    first = await created(store, "a/b")
    await store.delete("a/b")

    assert await store.replace("a/b", b"second", first) == Stale(None)
    assert await store.get("a/b") is None


@async_test
async def test_put_stores_whatever_is_there(store: Store) -> None:
    await store.put("a/b", b"first")
    version = await store.put("a/b", b"second")

    there = await store.get("a/b")
    assert there is not None
    assert (there.body, there.meta.version) == (b"second", version)


@async_test
async def test_of_many_who_create_one_key_exactly_one_wins(store: Store) -> None:
    rounds = effort(50, soak=200)

    async def one_round(n: int) -> None:
        bodies = [f"{n} {writer}".encode() for writer in range(WRITERS)]
        answers = await asyncio.gather(*(store.create(f"race/{n}", body) for body in bodies))

        winners = [body for body, answer in zip(bodies, answers, strict=True) if isinstance(answer, Created)]
        assert len(winners) == 1
        assert await body_of(store, f"race/{n}") == winners[0]

    # Side by side, because SeaweedFS lets writers that meet at one key wait for each other by the second.
    await in_parallel([one_round(n) for n in range(rounds)], at_once=100)


@async_test
async def test_no_increment_by_replace_is_lost(store: Store) -> None:
    increments = 4

    await created(store, "counter", json.dumps({"version": 0}).encode())

    async def writer() -> None:
        for _ in range(increments):
            while True:
                there = await store.get("counter")
                assert there is not None
                body = json.dumps({"version": json.loads(there.body)["version"] + 1}).encode()
                if isinstance(await store.replace("counter", body, there.meta.version), Replaced):
                    break

    await asyncio.gather(*(writer() for _ in range(WRITERS)))
    assert json.loads(await body_of(store, "counter") or b"") == {"version": WRITERS * increments}


@async_test
async def test_the_probe_accepts_it_and_leaves_nothing(store: Store) -> None:
    await probe(store, ids=RandomIds())

    assert await keys_of(store) == []


@dataclass
class FirstResponseLost:
    """Applies the first write and then raises something else: that its outcome is unknown, or that it was refused."""

    requests: WriteRequests
    instead: Exception | None

    async def write_once(self, key: str, body: bytes, *, nonce: str, expected: Version | None) -> Version:
        version = await self.requests.write_once(key, body, nonce=nonce, expected=expected)
        instead, self.instead = self.instead, None
        if instead is not None:
            raise instead
        return version

    async def put(self, key: str, body: bytes) -> Version:
        return await self.requests.put(key, body)

    async def delete(self, key: str) -> None:
        await self.requests.delete(key)

    async def key_state(self, key: str) -> KeyState | None:
        return await self.requests.key_state(key)


@pytest.mark.parametrize("kind", REMOTE_KINDS, indirect=True)
@pytest.mark.parametrize(
    "instead", [OutcomeUnknown("lost"), WriteRefused("412 though applied")], ids=["lost", "refused"]
)
@async_test
async def test_our_own_write_is_known_by_its_nonce_when_its_answer_was_lost(store: Store, instead: Exception) -> None:
    assert isinstance(store, RemoteStore)

    lossy = FirstResponseLost(store._writes.requests, instead)
    store._writes = replace(store._writes, requests=lossy)
    version = await created(store, "a/b", b"first")
    lossy.instead = instead

    answer = await store.replace("a/b", b"second", version)

    there = await store.get("a/b")
    assert there is not None
    assert there.body == b"second"
    assert answer == Replaced(there.meta.version)


# --- reading


@async_test
async def test_what_is_absent_is_none(store: Store) -> None:
    assert await store.get("a/b") is None
    assert await store.get("a/b", start=1, end=2) is None
    assert await store.head("a/b") is None
    await created(store, "a/b/c")
    assert await store.get("a") is None
    assert await store.head("a/b/c/d") is None


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, None, b"0123456789"),
        (0, 4, b"0123"),
        (4, 6, b"45"),
        (7, None, b"789"),
        (7, 100, b"789"),
        (0, 0, b""),
        (5, 5, b""),
        (10, None, b""),
        (10, 20, b""),
        (99, 100, b""),
    ],
)
@async_test
async def test_a_range_is_cut_to_the_object(store: Store, start: int, end: int | None, expected: bytes) -> None:
    await created(store, "digits", b"0123456789")

    there = await store.get("digits", start=start, end=end)

    assert there is not None
    assert there.body == expected
    assert there.meta.size == 10


@async_test
async def test_get_head_and_list_tell_the_same_of_an_object(store: Store) -> None:
    version = await created(store, "a/b", b"body")

    there, head, [entry] = await store.get("a/b"), await store.head("a/b"), await listed(store)

    assert there is not None
    assert head is not None
    assert there.meta.version == head.version == version
    for meta in (there.meta, head, entry):
        assert (meta.key, meta.size) == ("a/b", 4)
        # Some responses have the time only in seconds.
        assert meta.modified_ns // 10**9 == head.modified_ns // 10**9


@pytest.mark.parametrize("call", [lambda s: s.get("a", start=-1), lambda s: listed(s, start_after="\ud800")])
@async_test
async def test_a_range_or_a_listing_that_makes_no_sense_is_refused(
    store: Store, call: Callable[[Store], Coroutine[Any, Any, Any]]
) -> None:
    with pytest.raises(InvalidKey):
        await call(store)


@pytest.mark.parametrize("size", [0, effort(16, soak=64) * MIB], ids=["empty", "large"])
@async_test
async def test_bodies_of_every_size_come_back_as_they_were(store: Store, size: int) -> None:
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]

    version = await created(store, "created", body)
    assert await body_of(store, "created") == body
    assert isinstance(await store.replace("created", body + b"!", version), Replaced)
    assert await body_of(store, "created") == body + b"!"
    await store.put("put", body)
    assert await body_of(store, "put") == body


# --- deleting


@async_test
async def test_what_was_deleted_is_absent_and_can_be_created_again(store: Store) -> None:
    await created(store, "a/b", b"first")
    await store.delete("a/b")

    assert await store.get("a/b") is None
    assert await keys_of(store) == []
    await created(store, "a/b", b"second")
    assert await body_of(store, "a/b") == b"second"


@async_test
async def test_deleting_what_is_absent_is_no_error(store: Store) -> None:
    await store.delete("a/b")


# --- listing


@async_test
async def test_a_folder_lists_what_lies_below_it_and_nothing_beside_it(store: Store) -> None:
    for key in ("foo/1", "foo/bar/2", "foobar/3", "fo/4", "5"):
        await created(store, key)

    assert await keys_of(store, "foo") == ["foo/1", "foo/bar/2"]
    assert await keys_of(store, "foo/bar") == ["foo/bar/2"]
    assert sorted(await keys_of(store)) == ["5", "fo/4", "foo/1", "foo/bar/2", "foobar/3"]
    assert await keys_of(store, "nothing") == []


@async_test
async def test_a_listing_starts_after_the_key_named(store: Store) -> None:
    for key in ("a/1", "a/2", "a/3", "b/1"):
        await created(store, key)

    assert await keys_of(store, start_after="a/2") == ["a/3", "b/1"]
    assert await keys_of(store, "a", start_after="a/1") == ["a/2", "a/3"]
    assert await keys_of(store, "a", start_after="a/15") == ["a/2", "a/3"]
    assert await keys_of(store, start_after="b/1") == []


@async_test
async def test_a_long_listing_comes_in_pages_and_in_order(store: Store) -> None:
    keys = [f"many/{n:05}" for n in range(effort(1_100, soak=2_100))]

    await in_parallel([store.put(key, b"") for key in keys])

    pages = [page async for page in store.list("many")]

    assert len(pages) > 1
    assert [meta.key for page in pages for meta in page] == keys


@async_test
async def test_keys_are_listed_in_the_order_of_their_bytes(
    store: Store, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "seaweed":
        reason = "SeaweedFS sorts a folder by its name without the slash, before siblings that continue the name"
        request.applymarker(pytest.mark.xfail(reason=reason))
    keys = sorted(["a/b", "a-b", "a.b", "a b", "a0", "a/c/d", "é", "z", "ü/1", "😀"], key=str.encode)

    for key in keys:
        await created(store, key)

    assert await keys_of(store) == keys
    for position, key in enumerate(keys):
        assert await keys_of(store, start_after=key) == keys[position + 1 :]


@async_test
async def test_what_stays_is_listed_once_while_others_come_and_go(store: Store) -> None:
    staying = [f"busy/{n:04}-stays" for n in range(1_200)]

    await in_parallel([store.put(key, b"") for key in staying])
    stop = asyncio.Event()

    async def come_and_go(writer: int) -> None:
        n = 0
        while not stop.is_set():
            key = f"busy/{n % 1_200:04}-guest-{writer}"
            await store.put(key, b"")
            await store.delete(key)
            n += 7

    writers = [asyncio.create_task(come_and_go(writer)) for writer in range(4)]
    try:
        for _ in range(5):
            seen = Counter(await keys_of(store, "busy"))
            assert {key: seen[key] for key in staying} == dict.fromkeys(staying, 1)
    finally:
        stop.set()
        await asyncio.gather(*writers)


# --- keys


@async_test
async def test_every_legal_character_stands_for_itself(store: Store) -> None:
    characters = [c for c in string.printable if c not in "/\\" and c.isprintable()] + list("é日😀\u00a0\u200d")
    keys = [f"keys/x{character}y" for character in characters]
    keys += [f"keys/{character}" for character in characters if character != "."]
    keys += [
        "s" * MAX_SEGMENT_BYTES,
        "/".join(["k" * 223] * 4),
        "%41",
        "a+b",
        "a%2Fb",
        "...a",
        "date=2024-01-01/hour=00/x",
    ]
    assert max(map(len, keys)) <= MAX_KEY_BYTES

    await in_parallel([store.create(key, key.encode()) for key in keys])

    assert sorted(await keys_of(store)) == sorted(keys)
    for key in keys:
        assert await body_of(store, key) == key.encode(), key
    await in_parallel([store.delete(key) for key in keys])
    assert await keys_of(store) == []


ILLEGAL = [
    "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "./a", "a/.", "trailing.", "tab\t", "nul\0", "new\nline",
    "del\x7f", "back\\slash", "\ud800", "s" * (MAX_SEGMENT_BYTES + 1), "k/" * (MAX_KEY_BYTES // 2) + "k", ".lakehead/x",
]  # fmt: skip


@pytest.mark.parametrize("key", ILLEGAL, ids=ascii)
@async_test
async def test_an_illegal_key_is_refused_and_nothing_is_written(store: Store, key: str) -> None:
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "create": lambda: store.create(key, b""),
        "replace": lambda: store.replace(key, b"", Version("1")),
        "put": lambda: store.put(key, b""),
        "get": lambda: store.get(key),
        "head": lambda: store.head(key),
        "delete": lambda: store.delete(key),
    }
    if key:
        calls["list"] = lambda: listed(store, key)

    for call in calls.values():
        with pytest.raises(InvalidKey):
            await call()
    assert await keys_of(store) == []


@async_test
async def test_a_get_never_mixes_two_versions(store: Store) -> None:
    bodies = [letter.encode() * (300_000 + n) for n, letter in enumerate("abc")]

    versions: dict[Version, bytes] = {}
    stop = asyncio.Event()

    async def write() -> None:
        while not stop.is_set():
            for body in bodies:
                versions[await store.put("torn", body)] = body
            await asyncio.sleep(0)  # a store in memory never lets anybody else run

    async def read() -> list[Object]:
        return [there for _ in range(40) if (there := await store.get("torn")) is not None]

    versions[await store.put("torn", bodies[0])] = bodies[0]
    writer = asyncio.create_task(write())
    seen = await asyncio.gather(*(read() for _ in range(3)))
    stop.set()
    await writer
    for there in (there for reader in seen for there in reader):
        assert versions[there.meta.version] == there.body
        assert there.meta.size == len(there.body)
