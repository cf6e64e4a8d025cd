"""Requests to one bucket through one obstore client, with its results and errors translated into ours."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import obstore

from lakehead.errors import Misconfigured
from lakehead.storage.connect import Client
from lakehead.storage.obstore_errors import ObstoreErrors, RangePastEnd
from lakehead.storage.port import ListedObject, Object, ObjectMeta, Version
from lakehead.storage.reliable_writes import KeyState, WriteRefused

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, PutMode, PutResult
    from obstore import ObjectMeta as ObstoreMeta

PAGE_SIZE = 1000
NONCE = "nonce"
"""The key of the object's metadata that identifies the write that stored it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ObstoreRequests:
    """Requests through one client, which retries them or not. Implements `WriteRequests`."""

    def __init__(self, client: Client, *, name: str, versioned_by: Literal["e_tag", "version"]) -> None:
        """`name` is the store's, for messages; `versioned_by` is the field of obstore's results with the version."""
        self._client = client
        self._name = name
        self._versioned_by = versioned_by
        self._errors = ObstoreErrors(name)

    # --- reading

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        """Return the object or a range of it, or None if it is absent."""
        options: GetOptions = {}
        if end is not None:
            options = {"range": (start, max(start + 1, end))}
        elif start:
            options = {"range": {"offset": start}}
        try:
            with self._errors.translated():
                result = await obstore.get_async(self._client, key, options=options)
                body = (await result.bytes_async()).to_bytes()
        except FileNotFoundError:
            return None
        except RangePastEnd:
            meta = await self.head(key)
            return Object(meta, b"") if meta else None
        return Object(self._meta(result.meta), body if end is None else body[: max(0, end - start)])

    async def head(self, key: str) -> ObjectMeta | None:
        """Return the object's metadata, or None if it is absent."""
        result = await self._head(key)
        return self._meta(result.meta) if result else None

    async def list(self, folder: str, start_after: str) -> AsyncIterator[Sequence[ListedObject]]:
        """Yield pages of the objects in a folder, in the store's order."""
        try:
            with self._errors.translated():
                pages = obstore.list(self._client, folder or None, offset=start_after or None, chunk_size=PAGE_SIZE)
                async for page in pages:
                    # Not every server honours the offset: Azure supports it only in recent versions.
                    yield [
                        ListedObject(found["path"], found["size"], _nanoseconds(found["last_modified"]))
                        for found in page
                        if found["path"] > start_after
                    ]
        except FileNotFoundError as error:
            raise self._errors.no_bucket() from error

    # --- writing

    async def put(self, key: str, body: bytes) -> Version:
        """Store the object unconditionally."""
        try:
            with self._errors.translated(writing=key):
                return self._version(await obstore.put_async(self._client, key, body, use_multipart=False))
        except FileNotFoundError as error:
            raise self._errors.no_bucket() from error

    async def delete(self, key: str) -> None:
        """Delete the object. It is no error if it is absent."""
        with suppress(FileNotFoundError), self._errors.translated(writing=key):
            await obstore.delete_async(self._client, key)

    async def write_once(self, key: str, body: bytes, *, nonce: str, expected: Version | None) -> Version:
        """Write if the object is the expected version; None means that the key must be absent."""
        mode: PutMode = "create"
        if expected is not None:
            mode = {"e_tag": expected} if self._versioned_by == "e_tag" else {"version": expected}
        try:
            with self._errors.translated(writing=key):
                result = await obstore.put_async(
                    self._client, key, body, attributes={NONCE: nonce}, mode=mode, use_multipart=False
                )
                return self._version(result)
        except FileNotFoundError as error:
            if expected is None:
                raise self._errors.no_bucket() from error
            raise WriteRefused("the object is gone") from None

    async def key_state(self, key: str) -> KeyState | None:
        """Return the object that the key holds now and the nonce of its write, or None if it is absent."""
        result = await self._head(key)
        return KeyState(self._version(result.meta), result.attributes.get(NONCE)) if result else None

    async def _head(self, key: str) -> "GetResult | None":
        """Send HEAD, and GET if it found nothing: only GET's response tells a missing bucket from a missing object."""
        for head in (True, False):
            with suppress(FileNotFoundError), self._errors.translated():
                return await obstore.get_async(self._client, key, options={"head": head})
        return None

    def _version(self, result: "ObstoreMeta | PutResult") -> Version:
        version = result["e_tag"] if self._versioned_by == "e_tag" else result["version"]
        if version is None:
            raise Misconfigured(f"{self._name} does not return object versions. Use a store that does.")
        return Version(version)

    def _meta(self, found: "ObstoreMeta") -> ObjectMeta:
        return ObjectMeta(found["path"], found["size"], self._version(found), _nanoseconds(found["last_modified"]))


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000
