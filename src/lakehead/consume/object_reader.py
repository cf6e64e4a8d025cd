"""Opens the objects of a landing, inside Spark's tasks."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import obstore
import pyarrow as pa

from lakehead.consume.decode.rows import ObjectRefused
from lakehead.consume.object_clients import NO_SUCH_FILE, ObjectClients, file_etag, unquoted
from lakehead.consume.uris import split_uri
from lakehead.errors import Misconfigured, Unavailable
from lakehead.storage.connect import Client, StoreSettings
from lakehead.storage.obstore_errors import ObstoreErrors, RangePastEnd

WHOLE_BYTES = 32 * 2**20
"""An object up to this size is fetched by one request."""

RANGE_BYTES = 8 * 2**20
"""How much of a larger object is fetched at a time."""


class ReplacedWhileRead(Unavailable):
    """Read the object again: it is another one than when it was opened."""


class OpenedObject(NamedTuple):
    """An object that is open for reading."""

    source: pa.NativeFile
    size: int
    """Its bytes."""

    etag: str | None
    """What tells this content of it from others. Of a file: its times and size."""

    def check_unchanged(self) -> None:
        """Raise `ReplacedWhileRead` if a file was written to since it was opened. Buckets refuse each such request."""
        if isinstance(self.source, pa.OSFile) and file_etag(os.fstat(self.source.fileno())) != self.etag:
            raise _replaced()


class ObjectReader:
    """Opens objects of any bucket. Each task has its own, which connects to a bucket once."""

    def __init__(self, settings: Mapping[str, StoreSettings]) -> None:
        """`settings` say how to reach the buckets of a scheme: s3, gs or az."""
        self._clients = ObjectClients(settings)

    def open(self, uri: str, *, version: str | None = None, etag: str | None = None) -> OpenedObject:
        """Open an object for reading; with an ETag, only if it still has that one.

        Raises `ObjectRefused` if it does not exist, `Misconfigured` if it may not be read, and `Unavailable` if the
        store does not answer. An object that is replaced while it is read, or has another ETag, raises
        `ReplacedWhileRead`.
        """
        scheme, bucket, key = split_uri(uri)
        if scheme == "file":
            return _open_file(f"/{key}", etag)
        client, errors = self._clients.of(scheme, bucket), ObstoreErrors(f"{scheme}://{bucket}")
        remote = _Remote(client, key, errors, version, etag)
        return OpenedObject(remote.open(), remote.size, remote.etag)


def _replaced() -> ReplacedWhileRead:
    return ReplacedWhileRead("It was replaced while it was read.")


def _open_file(path: str, etag: str | None) -> OpenedObject:
    try:
        source = pa.OSFile(path, "rb")
        status = os.fstat(source.fileno())  # of what was opened, though another file may have its name by now
        found = file_etag(status)
        if etag not in (None, found):
            raise _replaced()
        return OpenedObject(source, status.st_size, found)
    except OSError as error:
        if error.errno in NO_SUCH_FILE:
            raise ObjectRefused("It does not exist.") from None
        if Path(path).is_dir():  # PyArrow has no error of its own for that
            raise ObjectRefused("It is a folder.") from None
        raise Misconfigured(f"It cannot be opened ({error.strerror or error}).") from None


class _Remote:
    """One object of a bucket, read by requests that all require the same version of it."""

    def __init__(self, client: Client, key: str, errors: ObstoreErrors, version: str | None, etag: str | None) -> None:
        self._client = client
        self._key = key
        self._errors = errors
        self._version = version
        self._is_open = False
        self.etag = etag
        self.size = 0

    def open(self) -> pa.NativeFile:
        first = self.get(0, WHOLE_BYTES)
        if len(first) == self.size:
            return pa.BufferReader(first)
        return pa.PythonFile(io.BufferedReader(_Ranges(self, first), RANGE_BYTES), mode="r")

    def get(self, start: int, end: int) -> bytes:
        options: dict[str, object] = {"range": (start, end)}
        if self.etag is not None:
            options["if_match"] = f'"{unquoted(self.etag)}"'
        if self._version is not None:
            options["version"] = self._version
        try:
            with self._errors.translated():
                found = obstore.get(self._client, self._key, options=options)  # type: ignore[arg-type]
                body = bytes(found.bytes())
        except FileNotFoundError:
            raise ObjectRefused("It does not exist.") from None
        except RangePastEnd:
            return b""  # an empty object
        except Unavailable as error:
            if self.etag is not None and "Precondition" in str(error):
                raise _replaced() from None
            raise
        if not self._is_open:
            self._is_open, self.etag, self.size = True, found.meta.get("e_tag"), found.meta["size"]
        return body


class _Ranges(io.RawIOBase):
    """A large object, fetched by ranges as it is read."""

    def __init__(self, remote: _Remote, first: bytes) -> None:
        self._remote = remote
        self._first = first
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._remote.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
        end = min(self._position + len(buffer), self._remote.size)
        if end <= self._position:
            return 0
        is_fetched = end <= len(self._first)
        data = self._first[self._position : end] if is_fetched else self._remote.get(self._position, end)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
