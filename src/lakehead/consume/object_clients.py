"""Clients for the buckets that objects are in, and what is known of an object without reading it."""

import asyncio
import errno
from collections.abc import Mapping
from os import stat_result
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import obstore

from lakehead.consume.uris import split_uri
from lakehead.errors import Misconfigured
from lakehead.storage.connect import Bucket, Client, StoreSettings, connect
from lakehead.storage.obstore_errors import ObstoreErrors

if TYPE_CHECKING:
    from obstore import GetOptions

NO_SUCH_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
"""Errors of the system that say that no file has, or can have, a path."""


class ObjectHead(NamedTuple):
    """An object as it is at the moment."""

    etag: str
    """What tells this content from others, without quotes. Of a file: its time, its number and its size."""

    size: int
    version: str | None = None
    """The version id or generation, in a bucket that keeps versions."""


class ObjectClients:
    """Connects to each bucket once. Threads do not share one."""

    def __init__(self, settings: Mapping[str, StoreSettings]) -> None:
        """`settings` say how to reach the buckets of a scheme: s3, gs or az."""
        self._settings = settings
        self._clients: dict[Bucket, Client] = {}

    def of(self, scheme: str, bucket: str) -> Client:
        """Return the client of a bucket. Raises `Misconfigured`."""
        place = Bucket(scheme, bucket, "")
        if place not in self._clients:
            settings = self._settings.get(scheme, StoreSettings())
            self._clients[place] = connect(place, settings, retries=max(0, settings.backoff.attempts - 1))
        return self._clients[place]

    async def head(self, uri: str, *, version: str | None = None) -> ObjectHead | None:
        """Look up an object, or one version of it; None if it does not exist. Raises `Unavailable`, `Misconfigured`."""
        scheme, bucket, key = split_uri(uri)
        if scheme == "file":
            return await asyncio.to_thread(_file_head, f"/{key}")
        try:
            with ObstoreErrors(f"{scheme}://{bucket}").translated():
                options: GetOptions = {"head": True} if version is None else {"head": True, "version": version}
                found = (await obstore.get_async(self.of(scheme, bucket), key, options=options)).meta
        except FileNotFoundError:
            return None
        return ObjectHead(unquoted(found["e_tag"] or ""), found["size"], found["version"])


def file_etag(status: stat_result) -> str:
    """Return what stands for the ETag of a file."""
    return f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"


def unquoted(etag: str) -> str:
    """Return an ETag as messages have it: without quotes, and without the mark of a weak one."""
    return etag.removeprefix("W/").strip('"')


def _file_head(path: str) -> ObjectHead | None:
    try:
        status = Path(path).stat()
    except OSError as error:
        if error.errno in NO_SUCH_FILE:
            return None
        raise Misconfigured(f"The file {path} cannot be looked up ({error.strerror or error}).") from None
    return ObjectHead(file_etag(status), status.st_size)
