"""Reads an S3 Inventory report from where S3 has written it: the keys of raw blobs, for garbage collection."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from lakehead.errors import Misconfigured
from lakehead.run.environment import store_settings
from lakehead.storage.open_store import open_store
from lakehead.storage.port import ListedObject, Store
from lakehead.wire.errors import Unreadable
from lakehead.wire.s3_inventory import InventoryFile, InventoryManifest, decode_manifest, inventory_objects

CHUNK = 8 << 20
"""Bytes of a data file that are held in memory at once."""

MANIFEST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class InventoryReport:
    """A report, by its manifest."""

    store: Store
    """In which the keys of its data files are."""

    manifest: InventoryManifest
    prefix: str
    """Of the objects that are wanted, in the source bucket; with a slash at its end, or empty."""

    async def pages(self) -> AsyncIterator[Sequence[ListedObject]]:
        """Yield the objects below the prefix, with keys relative to it. Raises `Unavailable` and `Unreadable`."""
        for file in self.manifest.files:
            with tempfile.TemporaryFile() as copy:
                await self._fetch(file, copy)
                rows = inventory_objects(copy, self.manifest)
                while (page := await asyncio.to_thread(next, rows, None)) is not None:
                    yield [
                        ListedObject(each.key.removeprefix(self.prefix), each.size or 0, each.modified_ns or 0)
                        for each in page
                        if each.key.startswith(self.prefix)
                    ]

    async def _fetch(self, file: InventoryFile, copy: IO[bytes]) -> None:
        digest, read = md5(usedforsecurity=False), 0
        while True:
            found = await self.store.get(file.key, start=read, end=read + CHUNK)
            if found is None:
                raise Unreadable(f"The file {file.key} of the S3 Inventory report is missing. Use a newer report.")
            digest.update(found.body)
            await asyncio.to_thread(copy.write, found.body)
            read += len(found.body)
            if read >= found.meta.size or not found.body:
                break
        if file.md5 and digest.hexdigest() != file.md5:
            raise Unreadable(f"The file {file.key} of the S3 Inventory report is damaged: its MD5 is another.")
        copy.seek(0)


async def open_report(url: str, store_url: str, environment: Mapping[str, str]) -> InventoryReport:
    """Open the report with this `manifest.json`, for the store of an authority.

    Raises `Misconfigured` if there is none, or it is one of another bucket.
    """
    parts = urlsplit(url)
    path = unquote(parts.path).strip("/")
    if not parts.scheme or not path.endswith(".json"):
        raise Misconfigured(f"{url} is not the URL of a report's manifest.json, as S3 Inventory writes it.")
    wanted = urlsplit(store_url)
    root = f"{parts.scheme}://{parts.netloc}"
    if parts.scheme == "file":
        root, path = await asyncio.to_thread(_local_root, Path(f"/{path}"))
    store = open_store(root, store_settings(root, environment))
    found = await store.get(path, end=MANIFEST_BYTES)
    if found is None:
        raise Misconfigured(f"There is no report at {url}. Name its manifest.json.")
    try:
        manifest = decode_manifest(found.body)
    except Unreadable as error:
        raise Misconfigured(f"{url}: {error}") from error
    if wanted.scheme != "file" and manifest.source_bucket != wanted.netloc:
        raise Misconfigured(
            f"The report {url} is of the bucket {manifest.source_bucket}, and the gateway's store is {wanted.netloc}."
        )
    prefix = unquote(wanted.path).strip("/")
    return InventoryReport(store, manifest, f"{prefix}/" if prefix else "")


def _local_root(path: Path) -> tuple[str, str]:
    """The folder that stands for the bucket of a copied report, and the key of its manifest there.

    Keys of data files are those of the bucket: the folder is the one below which they are.
    """
    try:
        files = decode_manifest(path.read_bytes()).files
    except (OSError, Unreadable):
        files = ()  # whoever reads it says what is wrong
    folder = next((each for each in path.parents if files and (each / files[0].key).exists()), path.parent)
    return f"file://{folder}", str(path.relative_to(folder))
