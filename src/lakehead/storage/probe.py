"""Whether a store keeps its word: asked once, at start."""

import asyncio

from lakehead.errors import Misconfigured
from lakehead.ids import Ids
from lakehead.storage.port import Created, Object, Replaced, Stale, Store, Version

RACERS = 4
FOLDER = "_probe"

ADVICE = (
    "Lakehead would lose data there. Use a store with conditional writes, such as AWS S3, GCS, Azure Blob Storage "
    "or a recent MinIO or SeaweedFS, and check that nothing between here and there strips the headers If-Match "
    "and If-None-Match."
)


async def probe(store: Store, *, ids: Ids) -> None:
    """Prove that the store honours both preconditions, also when writers race; raise `Misconfigured` if it does not.

    It writes two objects below `_probe/` and deletes them again. A missing bucket, refused credentials or an
    unreachable server come out as the error of the first write, and then nothing has been written.
    """
    first, raced = (f"{FOLDER}/{ids.uuid()}" for _ in range(2))
    await store.create(first, b"")
    try:
        body, version = await _only_winner(store, raced, "create one object", _bodies(ids), None)
        await _expect(store, raced, body, version)
        body, newest = await _only_winner(store, raced, "replace one version", _bodies(ids), version)
        await _expect(store, raced, body, newest)
        if not isinstance(await store.replace(raced, b"late", version), Stale):
            raise Misconfigured(f"The store let a writer replace a version that was gone. {ADVICE}")
        await _expect(store, raced, body, newest)
    finally:
        await store.delete(first)
        await store.delete(raced)


def _bodies(ids: Ids) -> list[bytes]:
    """A different body for each racer and each race: a store may take equal bodies for one version."""
    return [ids.uuid().encode() for _ in range(RACERS)]


async def _only_winner(
    store: Store, key: str, deed: str, bodies: list[bytes], version: Version | None
) -> tuple[bytes, Version]:
    answers = await asyncio.gather(
        *(store.create(key, body) if version is None else store.replace(key, body, version) for body in bodies),
        return_exceptions=True,  # so that none is still under way when we clean up
    )
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    winners = [
        (body, answer.version)
        for body, answer in zip(bodies, answers, strict=True)
        if isinstance(answer, Created | Replaced)
    ]
    if len(winners) != 1:
        raise Misconfigured(f"The store let {len(winners)} of {RACERS} writers at once {deed}. {ADVICE}")
    return winners[0]


async def _expect(store: Store, key: str, body: bytes, version: Version) -> None:
    match await store.get(key):
        case Object(meta, there) if there == body and meta.version == version:
            return
        case _:
            raise Misconfigured(f"The store does not give back what the winning writer stored. {ADVICE}")
