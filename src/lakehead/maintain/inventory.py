"""S3 Inventory reports of a bucket: what they list, fetched file by file, for reconcilers and garbage collection.

A report is a day old or older, and may miss what was written shortly before it was made. So it finds batches and blobs
without a listing of the bucket, and proves nothing about what was accepted since.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from hashlib import md5
from typing import IO

from lakehead.maintain.reconcile_report import ProblemKind, ReconcileReport
from lakehead.storage.port import ListedObject, Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.errors import Unreadable
from lakehead.wire.s3_inventory import InventoryFile, InventoryManifest, InventoryObject, inventory_objects

PART_BYTES = 8 << 20
"""Bytes of a data file that are held in memory at once."""

SAFE_SECONDS = 48 * 3600.0
"""What is accepted this long before a report was begun is in it: S3 promises no more than eventual consistency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryReport:
    """A report, by its manifest."""

    store: Store
    """In which the keys of its data files are."""

    manifest: InventoryManifest
    prefix: str = ""
    """Of the objects that are wanted, in the bucket that was listed; with a slash at its end, or empty."""

    async def objects(self) -> AsyncIterator[Sequence[InventoryObject]]:
        """Yield what is below the prefix, delete markers too, with keys relative to it.

        Raises `Unavailable`, and `Unreadable` if a data file is missing or damaged.
        """
        for file in self.manifest.files:
            with tempfile.TemporaryFile() as copy:
                await self._fetch(file, copy)
                rows = inventory_objects(copy, self.manifest)
                while (page := await asyncio.to_thread(next, rows, None)) is not None:
                    yield [
                        replace(each, key=each.key.removeprefix(self.prefix))
                        for each in page
                        if each.key.startswith(self.prefix)
                    ]

    async def listed(self) -> AsyncIterator[Sequence[ListedObject]]:
        """Yield the objects below the prefix as a listing does: without delete markers. Raises what `objects` does."""
        async for page in self.objects():
            yield [
                ListedObject(each.key, each.size or 0, each.modified_ns or 0)
                for each in page
                if not each.is_delete_marker
            ]

    async def _fetch(self, file: InventoryFile, copy: IO[bytes]) -> None:
        """Copy a data file, checked as far as the manifest tells its size and its hash."""
        what = f"The file {file.key} of the S3 Inventory report"
        digest, read = md5(usedforsecurity=False), 0
        while True:
            found = await self.store.get(file.key, start=read, end=read + PART_BYTES)
            if found is None:
                raise Unreadable(f"{what} is missing. Use a newer report.")
            digest.update(found.body)
            await asyncio.to_thread(copy.write, found.body)
            read += len(found.body)
            if read >= found.meta.size or not found.body:
                break
        if file.md5 and digest.hexdigest() != file.md5:
            raise Unreadable(f"{what} is damaged: its MD5 is another.")
        if not read or (file.size and read != file.size):
            raise Unreadable(f"{what} is damaged: it has {read} bytes, and its manifest says {file.size}.")
        copy.seek(0)


@dataclass(frozen=True, slots=True)
class AcceptedInventory:
    """The identity manifests that a report lists."""

    report: InventoryReport

    @property
    def complete_through_unix_ns(self) -> int:
        """What was accepted before this time is in it."""
        return self.report.manifest.created_ms * 1_000_000 - int(SAFE_SECONDS * 1e9)

    async def pages(self, report: ReconcileReport) -> AsyncIterator[Sequence[str]]:
        """Yield the keys of identity manifests, relative to the authority's prefix.

        A delete marker on one is a problem in the report: it hides an accepted batch. So is a report without the
        authority record: it does not list everything. Raises `Unavailable`, and `Unreadable` if a file of the inventory
        is missing or damaged.
        """
        is_whole = False
        async for page in self.report.objects():
            found: list[str] = []
            for each in page:
                is_whole |= each.key == keys.AUTHORITY
                if keys.parse_accepted(each.key) is None:
                    continue
                if each.is_delete_marker:
                    text = f"{each.key} has a delete marker, so that its batch looks as if never accepted. Remove it."
                    report.found(ProblemKind.DELETED, each.key, text)
                else:
                    found.append(each.key)
            if found:
                yield found
        if not is_whole:
            text = (
                f"The report does not list {self.report.prefix}{keys.AUTHORITY}, so it is of some objects alone, and "
                "no audit. Let S3 Inventory list everything below the prefix of the store."
            )
            report.found(ProblemKind.FAILED, keys.AUTHORITY, text)
