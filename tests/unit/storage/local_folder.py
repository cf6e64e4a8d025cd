"""Looking at a local store and at the folder that it lives in."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from lakehead.clock import SystemClock
from lakehead.ids import Random, RandomIds
from lakehead.storage.local_store import LocalStore
from lakehead.storage.port import Version

KEY = "folder/object"
OLD = b"the old body"
NEW = b"the new and longer body"


def open_local(root: Path) -> LocalStore:
    return LocalStore(root, clock=SystemClock(), ids=RandomIds(), random=Random())


async def keys(store: LocalStore, folder: str = "") -> list[str]:
    return [meta.key async for page in store.list(folder) for meta in page]


async def body(store: LocalStore, key: str) -> bytes | None:
    there = await store.get(key)
    return there.body if there else None


def everything(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every name below a folder, with what would change if somebody wrote there."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [folder, *folder.rglob("*")]
    }


def temporaries(root: Path) -> list[Path]:
    return list((root / ".lakehead" / "tmp").iterdir())


Call = Callable[[LocalStore, str], Awaitable[object]]

READS: dict[str, Call] = {
    "get": lambda store, key: store.get(key),
    "get a range": lambda store, key: store.get(key, start=1, end=3),
    "head": lambda store, key: store.head(key),
    "list": keys,
}
WRITES: dict[str, Call] = {
    "create": lambda store, key: store.create(key, NEW),
    "replace": lambda store, key: store.replace(key, NEW, Version("1.2.3")),
    "put": lambda store, key: store.put(key, NEW),
    "delete": lambda store, key: store.delete(key),
}
CALLS = READS | WRITES


async def awaited(call: Awaitable[object]) -> object:
    return await call
