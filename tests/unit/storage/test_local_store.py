"""The local store where its folder is not what it should be: links, pipes, odd names."""

import asyncio
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.storage.local_store import LocalStore
from lakehead.storage.object_keys import MAX_KEY_BYTES, MAX_SEGMENT_BYTES, InvalidKey
from lakehead.storage.port import Created, Stale, Version
from tests.support.async_tests import async_test
from tests.unit.storage.local_folder import (
    CALLS,
    KEY,
    NEW,
    OLD,
    READS,
    awaited,
    body,
    everything,
    keys,
    open_local,
    temporaries,
)

pytestmark = pytest.mark.timeout(60)


# --- keys


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "key",
    [
        "..",
        "../outside/file",
        "folder/../../outside/file",
        "folder/..",
        ".",
        "./file",
        "/etc/hostname",
        "folder//file",
        "folder/",
        "folder\\..\\file",
        "zero\0byte",
        "surrogate\udcff",
        ".lakehead/tmp/file",
        ".lakehead",
        "n" * (MAX_SEGMENT_BYTES + 1),
        "ü" * (MAX_SEGMENT_BYTES // 2 + 1),
        "folder/" * (MAX_KEY_BYTES // 7) + "too-long",
    ],
)
def test_an_unsafe_key_is_refused_and_nothing_is_made(call: str, key: str, tmp_path: Path, store: LocalStore) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(OLD)
    before = everything(tmp_path)

    with pytest.raises(InvalidKey):
        asyncio.run(awaited(CALLS[call](store, key)))

    assert everything(tmp_path) == before


@pytest.mark.parametrize("call", ["get", "head", "create", "replace", "put", "delete"])
def test_the_empty_key_is_no_object(call: str, root: Path, store: LocalStore) -> None:
    with pytest.raises(InvalidKey):
        asyncio.run(awaited(CALLS[call](store, "")))

    assert not root.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    [
        "n" * MAX_SEGMENT_BYTES,
        "ü" * (MAX_SEGMENT_BYTES // 2),
        "/".join(["n" * 255] * 3 + ["n" * 128]),
        "/".join("n" * (MAX_KEY_BYTES // 2)),
    ],
    ids=["long name", "long name of two-byte letters", "long key", "deep key"],
)
@async_test
async def test_the_longest_keys_are_stored_listed_and_deleted(key: str, store: LocalStore) -> None:
    assert isinstance(await store.create(key, OLD), Created)
    assert await body(store, key) == OLD
    assert await keys(store) == [key]
    await store.delete(key)
    assert await keys(store) == []


@pytest.mark.parametrize("call", ["create", "put"])
@async_test
async def test_a_key_that_is_the_folder_of_another_is_refused(call: str, store: LocalStore) -> None:
    await store.put("a/b/c", OLD)
    with pytest.raises(InvalidKey, match="folder"):
        await CALLS[call](store, "a/b")
    assert await body(store, "a/b") is None
    assert await store.replace("a/b", NEW, Version("1.2.3")) == Stale(None)
    await store.delete("a/b")
    assert await body(store, "a/b/c") == OLD
    assert await keys(store) == ["a/b/c"]


@pytest.mark.parametrize("call", ["create", "put"])
@async_test
async def test_nothing_is_written_below_an_object(call: str, store: LocalStore) -> None:
    await store.put("a/b", OLD)
    with pytest.raises(InvalidKey, match="object"):
        await CALLS[call](store, "a/b/c/d")
    assert await body(store, "a/b") == OLD
    assert await keys(store) == ["a/b"]


# --- links that lead out


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "inner").mkdir(parents=True)
    (folder / "secret").write_bytes(OLD)
    (folder / "inner" / "secret").write_bytes(OLD)
    return folder


@pytest.mark.parametrize("target", ["absolute", "relative"])
@pytest.mark.parametrize("key", ["link/secret", "link/inner/secret", "link/new", "link/new/new", "deep/link/secret"])
@pytest.mark.parametrize("call", CALLS)
def test_a_key_through_a_link_to_a_folder_is_refused(
    call: str, key: str, target: str, outside: Path, root: Path, store: LocalStore
) -> None:
    link = root.joinpath(key[: key.index("link")]) / "link"
    link.parent.mkdir(parents=True)
    link.symlink_to(outside if target == "absolute" else os.path.relpath(outside, link.parent))
    before = everything(outside)

    with pytest.raises(InvalidKey, match="link"):
        asyncio.run(awaited(CALLS[call](store, key)))

    assert everything(outside) == before
    assert link.is_symlink()


@async_test
async def test_a_link_to_a_folder_is_neither_an_object_nor_a_folder(
    outside: Path, root: Path, store: LocalStore
) -> None:
    root.mkdir()
    (root / "link").symlink_to(outside)
    before = everything(outside)

    assert await store.get("link") is None
    assert await store.head("link") is None
    assert await keys(store) == []
    with pytest.raises(InvalidKey):
        await keys(store, "link")
    with pytest.raises(InvalidKey):
        await store.create("link", NEW)
    await store.delete("link")
    assert everything(outside) == before


@async_test
async def test_a_link_to_a_file_is_no_object_and_its_file_stays_as_it_is(
    outside: Path, root: Path, store: LocalStore
) -> None:
    root.mkdir()
    (root / "link").symlink_to(outside / "secret")
    before = everything(outside)

    behind = await open_local(outside).head("secret")
    assert behind is not None
    assert await store.get("link") is None
    assert await store.head("link") is None
    assert await keys(store) == []
    assert await store.replace("link", NEW, behind.version) == Stale(None)
    with pytest.raises(InvalidKey, match="link"):
        await store.create("link", NEW)
    await store.delete("link")
    assert everything(outside) == before
    assert temporaries(root) == []


@async_test
async def test_a_put_over_a_link_takes_the_links_place_and_not_its_files(
    outside: Path, root: Path, store: LocalStore
) -> None:
    root.mkdir()
    (root / "link").symlink_to(outside / "secret")
    before = everything(outside)

    await store.put("link", NEW)
    assert await body(store, "link") == NEW
    assert everything(outside) == before
    assert not (root / "link").is_symlink()


@pytest.mark.parametrize("call", ["create", "put"])
def test_a_link_to_nothing_does_not_make_a_file_there(call: str, outside: Path, root: Path, store: LocalStore) -> None:
    root.mkdir()
    (root / "link").symlink_to(outside / "new")
    before = everything(outside)

    with suppress(InvalidKey):
        asyncio.run(awaited(CALLS[call](store, "link")))

    assert everything(outside) == before


@pytest.mark.parametrize("own", [".lakehead", ".lakehead/tmp", ".lakehead/locks"])
def test_a_link_in_place_of_the_stores_own_folder_is_not_followed(
    own: str, outside: Path, root: Path, store: LocalStore
) -> None:
    link = root / own
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    before = everything(outside)

    with suppress(LakeheadError):
        asyncio.run(store.put(KEY, NEW))

    assert everything(outside) == before


@async_test
async def test_the_root_itself_may_be_a_link(tmp_path: Path, root: Path, store: LocalStore) -> None:
    (tmp_path / "elsewhere").mkdir()
    root.symlink_to(tmp_path / "elsewhere")

    assert isinstance(await store.create(KEY, NEW), Created)
    assert await body(open_local(tmp_path / "elsewhere"), KEY) == NEW
    assert await keys(store) == [KEY]


# --- what else may lie or happen in the folder


@async_test
async def test_a_pipe_in_the_folder_is_no_object_and_blocks_nobody(root: Path, store: LocalStore) -> None:
    await store.put("object", OLD)
    os.mkfifo(root / "pipe")
    assert await store.get("pipe") is None
    assert await store.head("pipe") is None
    assert await keys(store) == ["object"]
    assert await store.replace("pipe", NEW, Version("1.2.3")) == Stale(None)
    with pytest.raises(InvalidKey):
        await store.create("pipe", NEW)
    with pytest.raises(InvalidKey):
        await store.get("pipe/object")
    await store.delete("pipe")
    assert stat.S_ISFIFO((root / "pipe").lstat().st_mode)


@async_test
async def test_what_has_no_valid_key_is_not_listed(root: Path, store: LocalStore) -> None:
    await store.put("folder/object", OLD)
    undecodable = Path(os.fsdecode(b"undecodable-\xff"))
    for name in (undecodable, Path("back\\slash"), Path("dot."), Path("new\nline")):
        (root / "folder" / name).write_bytes(OLD)
        (root / name).mkdir()
        (root / name / "object").write_bytes(OLD)

    assert await keys(store) == ["folder/object"]


@async_test
async def test_the_stores_own_folder_is_not_listed(root: Path, store: LocalStore) -> None:
    await store.put("object", OLD)
    (root / ".lakehead" / "tmp" / "left-behind").write_bytes(OLD)
    await store.put("deeper/.lakehead/object", OLD)

    assert await keys(store) == ["deeper/.lakehead/object", "object"]


@async_test
async def test_a_temporary_file_that_is_swept_before_it_is_locked_is_made_again(
    root: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = os.open, list[bool]()

    def opened_and_swept(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        file = real(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_EXCL:
            made.append(True)
            if len(made) == 1:
                open_local(root)._prepare()
                assert temporaries(root) == []
        return file

    monkeypatch.setattr(os, "open", opened_and_swept)
    await store.put(KEY, NEW)
    assert await body(store, KEY) == NEW
    assert len(made) == 2
    assert temporaries(root) == []


def test_what_somebody_left_among_the_temporary_files_blocks_nobody(root: Path, store: LocalStore) -> None:
    own = root / ".lakehead" / "tmp"
    (own / "folder").mkdir(parents=True)
    os.mkfifo(own / "pipe")
    (own / "link").symlink_to(root)

    asyncio.run(store.put(KEY, NEW))

    assert asyncio.run(body(store, KEY)) == NEW


# --- roots that cannot be used, yet or at all


@pytest.mark.parametrize("call", CALLS)
def test_a_root_without_a_parent_is_misconfigured_and_nothing_is_made(call: str, tmp_path: Path) -> None:
    store = open_local(tmp_path / "missing" / "store")

    with pytest.raises(Misconfigured, match="parent"):
        asyncio.run(awaited(CALLS[call](store, KEY)))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", CALLS)
def test_a_root_below_a_file_is_misconfigured(call: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OLD)
    store = open_local(tmp_path / "file" / "store")

    with pytest.raises(Misconfigured):
        asyncio.run(awaited(CALLS[call](store, KEY)))

    assert (tmp_path / "file").read_bytes() == OLD


@pytest.mark.parametrize("call", [*READS, "replace", "delete", "create", "put"])
def test_a_root_that_is_a_file_is_misconfigured_and_the_file_is_kept(call: str, root: Path, store: LocalStore) -> None:
    root.write_bytes(OLD)

    with pytest.raises(Misconfigured):
        asyncio.run(awaited(CALLS[call](store, KEY)))

    assert root.read_bytes() == OLD


@pytest.mark.parametrize("call", ["create", "put"])
def test_a_root_that_is_a_link_to_nothing_is_misconfigured(
    call: str, tmp_path: Path, root: Path, store: LocalStore
) -> None:
    root.symlink_to(tmp_path / "nothing")

    with pytest.raises(Misconfigured):
        asyncio.run(awaited(CALLS[call](store, KEY)))

    assert list(tmp_path.iterdir()) == [root]


@async_test
async def test_a_root_that_is_missing_reads_as_empty_and_is_not_made(root: Path, store: LocalStore) -> None:
    assert await store.get(KEY) is None
    assert await store.head(KEY) is None
    assert await keys(store) == []
    assert await keys(store, "folder") == []
    assert await store.replace(KEY, NEW, Version("1.2.3")) == Stale(None)
    await store.delete(KEY)
    assert not root.exists()


@pytest.mark.parametrize("call", ["create", "put"])
@async_test
async def test_a_root_that_is_missing_is_made_with_the_first_write(call: str, store: LocalStore) -> None:
    assert await body(store, KEY) is None
    await CALLS[call](store, KEY)
    assert await body(store, KEY) == NEW
    assert await keys(store) == [KEY]


@pytest.mark.parametrize("call", ["create", "put"])
@async_test
async def test_a_root_that_is_removed_beneath_a_store_is_not_made_again_and_named(
    call: str, root: Path, store: LocalStore
) -> None:
    """It may be a disk that is not mounted any more: what would be written below it would be lost to everybody."""
    await store.put(KEY, OLD)
    shutil.rmtree(root)
    with pytest.raises(Unavailable, match=f"No such file or directory: '{root}"):
        await CALLS[call](store, KEY)
    assert await body(store, KEY) is None
    assert not root.exists()
