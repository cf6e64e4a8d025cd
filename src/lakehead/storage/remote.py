"""Stores on the other side of a network, through obstore: S3, GCS and Azure."""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from lakehead.clock import Clock
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import Ids, Random
from lakehead.storage.backoff import Backoff
from lakehead.storage.connect import Client
from lakehead.storage.keys import check_key, check_listing, check_start
from lakehead.storage.port import Created, Exists, Meta, Object, Replaced, Stale, Version
from lakehead.storage.writes import Refused, Seen, Writes

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta, PutMode, PutResult

PAGE_SIZE = 1000
NONCE = "nonce"
"""The name of the object's metadata that says which write stored it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STATUS = re.compile(r"status code: (\d{3})")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")


class _PastTheEnd(Exception):
    """A range starts behind the last byte of the object."""


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
            with self._sentences(writing=key):
                return self._version(await obstore.put_async(self._once, key, body, use_multipart=False))

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
        except _PastTheEnd:
            meta = await self.head(key)
            return Object(meta, b"") if meta else None
        return Object(self._meta(answer.meta), body if end is None else body[: max(0, end - start)])

    async def head(self, key: str) -> Meta | None:
        """What is known of the object without its body, or None where it is absent."""
        check_key(key)
        answer = await self._head(self._retrying, key)
        return self._meta(answer.meta) if answer else None

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[Meta]]:
        """Pages of the objects below a folder, in the store's order."""
        check_listing(folder, start_after)
        try:
            with self._sentences():
                pages = obstore.list(self._retrying, folder or None, offset=start_after or None, chunk_size=PAGE_SIZE)
                async for page in pages:
                    yield [self._meta(found) for found in page]
        except FileNotFoundError as error:
            raise self._no_bucket() from error

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
        except FileNotFoundError:
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
        modified_ns = (found["last_modified"] - _EPOCH) // timedelta(microseconds=1) * 1000
        return Meta(found["path"], found["size"], self._version(found), modified_ns)

    @contextmanager
    def _sentences(self, *, writing: str | None = None) -> Iterator[None]:
        """Turn what obstore raises into our errors. A missing object stays `FileNotFoundError`, for the caller."""
        try:
            yield
        except FileNotFoundError as error:
            if any(sign in str(error) for sign in _NO_BUCKET):
                raise self._no_bucket() from error
            raise
        except (AlreadyExistsError, PreconditionError) as error:
            raise (Refused if writing else Unavailable)(_gist(error)) from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise self._denied(error) from error
        except BaseError as error:
            raise self._translated(error, writing) from error

    def _translated(self, error: BaseError, writing: str | None) -> Exception:
        """An error that obstore leaves to its text. Whatever we do not recognise may have been applied."""
        text = str(error)
        status = int(found.group(1)) if (found := _STATUS.search(text)) else 0
        match status:
            case 401 | 403:
                return self._denied(error)
            case 404 if any(sign in text for sign in _NO_BUCKET):
                return self._no_bucket()
            case 404:
                return FileNotFoundError(_gist(error))
            case 416:
                return _PastTheEnd()
            case 501:
                return Misconfigured(f"{self._name} does not know a request that Lakehead needs ({_gist(error)}).")
            case 408 | 429:
                pass
            case _ if 300 <= status < 500 and "RequestTimeout" not in text:
                return Misconfigured(f"{self._name} refused a request ({_gist(error)}). Check endpoint and region.")
        if writing is None or "kind: Connect" in text:
            return Unavailable(f"{self._name} did not answer ({_gist(error)}). Check the endpoint and that it is up.")
        return OutcomeUnknown(f"{self._name} left a write to {writing} without a clear answer ({_gist(error)}).")

    def _no_bucket(self) -> Misconfigured:
        return Misconfigured(f"The bucket of {self._name} does not exist: create it, or correct the URL.")

    def _denied(self, error: Exception) -> Misconfigured:
        return Misconfigured(
            f"{self._name} refused the credentials ({_gist(error)}). Check the access key and its secret, and that "
            "they may list the bucket and read, write and delete objects below the prefix."
        )


def _gist(error: Exception) -> str:
    """What a person needs of obstore's long message: the server's own code, or what went wrong on the way."""
    text = str(error)
    if found := re.search(r"<Code>([^<]+)</Code>", text):
        return found.group(1)
    if found := re.search(r"kind: (Connect|Timeout|Interrupted)", text):
        return {"Connect": "could not connect", "Timeout": "timed out", "Interrupted": "connection lost"}[
            found.group(1)
        ]
    if found := re.search(r"status code: (\d{3} [A-Za-z ]+)", text):
        return found.group(1).strip()
    return text.partition("\n")[0]
