"""Stores on the other side of a network, through obstore: S3, GCS and Azure."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import obstore

from lakehead.clock import Clock
from lakehead.errors import Misconfigured
from lakehead.ids import Ids, Random
from lakehead.storage.backoff import Backoff
from lakehead.storage.connect import Client
from lakehead.storage.keys import check_key, check_listing, check_start
from lakehead.storage.port import Created, Entry, Exists, Meta, Object, Replaced, Stale, Version
from lakehead.storage.sentences import PastTheEnd, Sentences
from lakehead.storage.writes import Refused, Seen, Writes

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta, PutMode, PutResult

PAGE_SIZE = 1000
NONCE = "nonce"
"""The name of the object's metadata that says which write stored it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RemoteStore:
    """One bucket, seen through two clients: one that retries by itself, for reads, and one that never does.

    A retry hidden in the client could turn our own successful conditional write into a refusal, or a write that was
    applied into a failure. So writes go through the client that tries once, and `Writes` makes sense of the answers.
    """

    def __init__(
        self,
        *,
        name: str,
        once: Client,
        retrying: Client,
        versioned_by: Literal["e_tag", "version"],
        backoff: Backoff,
        clock: Clock,
        ids: Ids,
        random: Random,
    ) -> None:
        """Name the store for messages; `versioned_by` is the field of obstore's answers that names a version."""
        self._name = name
        self._sentences = Sentences(name)
        self._once = once
        self._retrying = retrying
        self._versioned_by = versioned_by
        self._writes = Writes(remote=self, clock=clock, ids=ids, random=random, backoff=backoff)

    async def create(self, key: str, body: bytes) -> Created | Exists:
        """Store the object only if the key is absent."""
        check_key(key)
        return await self._writes.create(key, body)

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        """Store the object only if it is still that version."""
        check_key(key)
        return await self._writes.replace(key, body, version)

    async def put(self, key: str, body: bytes) -> Version:
        """Store the object whatever is there."""
        check_key(key)

        async def request() -> Version:
            try:
                with self._sentences(writing=key):
                    return self._version(await obstore.put_async(self._once, key, body, use_multipart=False))
            except FileNotFoundError as error:
                raise self._sentences.no_bucket() from error

        return await self._writes.unconditional(key, request)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        """The object or a range of it, or None where it is absent."""
        check_key(key)
        check_start(start)
        options: GetOptions = {}
        if end is not None:
            options = {"range": (start, max(start + 1, end))}
        elif start:
            options = {"range": {"offset": start}}
        try:
            with self._sentences():
                answer = await obstore.get_async(self._retrying, key, options=options)
                body = (await answer.bytes_async()).to_bytes()
        except FileNotFoundError:
            return None
        except PastTheEnd:
            meta = await self.head(key)
            return Object(meta, b"") if meta else None
        return Object(self._meta(answer.meta), body if end is None else body[: max(0, end - start)])

    async def head(self, key: str) -> Meta | None:
        """What is known of the object without its body, or None where it is absent."""
        check_key(key)
        answer = await self._head(self._retrying, key)
        return self._meta(answer.meta) if answer else None

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[Entry]]:
        """Pages of the objects below a folder, in the store's order."""
        check_listing(folder, start_after)
        try:
            with self._sentences():
                pages = obstore.list(self._retrying, folder or None, offset=start_after or None, chunk_size=PAGE_SIZE)
                async for page in pages:
                    # Not every server starts where it is told to: Azure's know that word only of late.
                    yield [
                        Entry(found["path"], found["size"], _nanoseconds(found["last_modified"]))
                        for found in page
                        if found["path"] > start_after
                    ]
        except FileNotFoundError as error:
            raise self._sentences.no_bucket() from error

    async def delete(self, key: str) -> None:
        """Make the object absent."""
        check_key(key)

        async def request() -> None:
            with suppress(FileNotFoundError), self._sentences(writing=key):
                await obstore.delete_async(self._once, key)

        await self._writes.unconditional(key, request)

    # --- one request each, for Writes

    async def attempt(self, key: str, body: bytes, *, nonce: str, expected: Version | None) -> Version:
        """Write once, with `expected` as the precondition; None means that the key must be absent."""
        mode: PutMode = "create"
        if expected is not None:
            mode = {"e_tag": expected} if self._versioned_by == "e_tag" else {"version": expected}
        try:
            with self._sentences(writing=key):
                answer = await obstore.put_async(
                    self._once, key, body, attributes={NONCE: nonce}, mode=mode, use_multipart=False
                )
                return self._version(answer)
        except FileNotFoundError as error:
            if expected is None:
                raise self._sentences.no_bucket() from error
            raise Refused("the object is gone") from None

    async def look(self, key: str) -> Seen | None:
        """What the key holds now, and which write stored it."""
        answer = await self._head(self._once, key)
        return Seen(self._version(answer.meta), answer.attributes.get(NONCE)) if answer else None

    async def _head(self, client: Client, key: str) -> "GetResult | None":
        """HEAD, and a GET where it found nothing: only a GET's answer tells a missing bucket from a missing object."""
        for head in (True, False):
            with suppress(FileNotFoundError), self._sentences():
                return await obstore.get_async(client, key, options={"head": head})
        return None

    # --- obstore's words into ours

    def _version(self, answer: "ObjectMeta | PutResult") -> Version:
        version = answer["e_tag"] if self._versioned_by == "e_tag" else answer["version"]
        if version is None:
            raise Misconfigured(f"{self._name} does not tell the versions of objects. Use a store that does.")
        return Version(version)

    def _meta(self, found: "ObjectMeta") -> Meta:
        return Meta(found["path"], found["size"], self._version(found), _nanoseconds(found["last_modified"]))


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000
