"""Whether a store keeps its word: asked once, at start."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Sequence

from lakehead.errors import LakeheadError, Misconfigured
from lakehead.ids import Ids
from lakehead.storage.port import Created, Meta, Object, Replaced, Stale, Store, Version

RACERS = 4
FOLDER = "_probe"
LEFT_BEHIND_NS = 3_600 * 10**9
"""How old an object of a probe must be, by the store's clock, for another probe to delete it."""

_OURS = re.compile(rf"{FOLDER}/[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")
_log = logging.getLogger("lakehead.storage")

ADVICE = (
    "Lakehead would lose data there. Use a store with conditional writes, such as AWS S3, GCS, Azure Blob Storage "
    "or a recent MinIO or SeaweedFS, and check that nothing between here and there strips the headers If-Match "
    "and If-None-Match."
)


async def probe(store: Store, *, ids: Ids) -> None:
    """Prove that the store honours both preconditions, also when writers race; raise `Misconfigured` if it does not.

    It writes two objects below `_probe/` and deletes them again, and those that probes of an hour ago or more left
    behind; what cannot be deleted is logged. A missing bucket, refused credentials or an unreachable server come out
    as the error of the first write, and then nothing has been written.
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
        now = (await _expect(store, raced, body, newest)).modified_ns
        await _delete(store, await _left_behind(store, now))
    finally:
        await _delete(store, [first, raced])


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


async def _expect(store: Store, key: str, body: bytes, version: Version) -> Meta:
    match await store.get(key):
        case Object(meta, there) if there == body and meta.version == version:
            return meta
        case _:
            raise Misconfigured(f"The store does not give back what the winning writer stored. {ADVICE}")


async def _left_behind(store: Store, now_ns: int) -> list[str]:
    """Keys of the objects that crashed probes left: of a page at most, the rest is for the next probe."""
    pages = store.list(FOLDER)
    try:
        page = await anext(pages)
    except StopAsyncIteration:
        return []
    except LakeheadError as error:
        _log.warning("Objects below %s/ could not be listed (%s). Allow this user to list the store.", FOLDER, error)
        return []
    if isinstance(pages, AsyncGenerator):
        await pages.aclose()  # else the event loop does it, some time later
    return [each.key for each in page if _OURS.fullmatch(each.key) and now_ns - each.modified_ns > LEFT_BEHIND_NS]


async def _delete(store: Store, keys: Sequence[str]) -> None:
    """Delete objects of probes. One that stays says nothing about preconditions, so it is no error."""
    for key in keys:
        try:
            await store.delete(key)
        except LakeheadError as error:
            _log.warning(
                "The probe of the store left %s behind (%s). Allow this user to delete objects; "
                "a later probe deletes what is older than an hour.",
                key,
                error,
            )
            return  # a store that does not answer would make us wait for each
