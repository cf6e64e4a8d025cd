"""Probing a store: does it honour conditional writes?"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Sequence

from lakehead.errors import LakeheadError, Misconfigured
from lakehead.ids import Ids
from lakehead.storage.port import Created, Object, ObjectMeta, Replaced, Stale, Store, Version

RACERS = 4
FOLDER = "_probe"
MIN_LEFTOVER_AGE_NS = 3_600 * 10**9
"""A probe deletes an earlier probe's object once it is this old by the store's clock."""

_PROBE_KEY = re.compile(rf"{FOLDER}/[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")
_log = logging.getLogger("lakehead.storage")

ADVICE = (
    "Lakehead would lose data there. Use a store with conditional writes, such as AWS S3, GCS, Azure Blob Storage "
    "or a recent MinIO or SeaweedFS, and check that nothing between here and there strips the headers If-Match "
    "and If-None-Match."
)


async def probe(store: Store, *, ids: Ids) -> None:
    """Check with racing writers that the store honours both preconditions; raise `Misconfigured` if it does not.

    It writes two objects under `_probe/` and deletes them, and also what probes left there an hour ago or earlier.
    Objects that cannot be deleted are logged. A missing bucket, rejected credentials or an unreachable server raise
    the error of the first write; nothing has been written then.
    """
    first, raced = (f"{FOLDER}/{ids.uuid()}" for _ in range(2))
    await store.create(first, b"")
    try:
        body, version = await _only_winner(store, raced, "create one object", _bodies(ids), None)
        await _expect(store, raced, body, version)
        body, newest = await _only_winner(store, raced, "replace one version", _bodies(ids), version)
        await _expect(store, raced, body, newest)
        if not isinstance(await store.replace(raced, b"late", version), Stale):
            raise Misconfigured(f"The store let a writer replace an outdated version. {ADVICE}")
        now = (await _expect(store, raced, body, newest)).modified_ns
        await _delete(store, await _leftovers(store, now))
    finally:
        await _delete(store, [first, raced])


def _bodies(ids: Ids) -> list[bytes]:
    """Return a different body for each racer: a store may give equal bodies the same version."""
    return [ids.uuid().encode() for _ in range(RACERS)]


async def _only_winner(
    store: Store, key: str, operation: str, bodies: list[bytes], version: Version | None
) -> tuple[bytes, Version]:
    answers = await asyncio.gather(
        *(store.create(key, body) if version is None else store.replace(key, body, version) for body in bodies),
        return_exceptions=True,  # wait for all of them before we clean up
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
        raise Misconfigured(f"The store let {len(winners)} of {RACERS} concurrent writers {operation}. {ADVICE}")
    return winners[0]


async def _expect(store: Store, key: str, body: bytes, version: Version) -> ObjectMeta:
    match await store.get(key):
        case Object(meta, there) if there == body and meta.version == version:
            return meta
        case _:
            raise Misconfigured(f"The store does not return what the winning writer stored. {ADVICE}")


async def _leftovers(store: Store, now_ns: int) -> list[str]:
    """Return keys of objects that crashed probes left: one page at most, the next probe finds the rest."""
    pages = store.list(FOLDER)
    try:
        page = await anext(pages)
    except StopAsyncIteration:
        return []
    except LakeheadError as error:
        _log.warning("Could not list objects under %s/ (%s). Allow this user to list the store.", FOLDER, error)
        return []
    if isinstance(pages, AsyncGenerator):
        await pages.aclose()  # otherwise the event loop closes it at some later time
    return [
        each.key for each in page if _PROBE_KEY.fullmatch(each.key) and now_ns - each.modified_ns > MIN_LEFTOVER_AGE_NS
    ]


async def _delete(store: Store, keys: Sequence[str]) -> None:
    """Delete objects of probes. A failure is only logged: it says nothing about preconditions."""
    for key in keys:
        try:
            await store.delete(key)
        except LakeheadError as error:
            _log.warning(
                "The probe of the store could not delete %s (%s). Allow this user to delete objects; "
                "a later probe deletes what is older than an hour.",
                key,
                error,
            )
            return  # if the store does not respond, each further delete would wait for its timeout
