"""What tests of maintenance share: a lakehouse with three kinds of catalogs, time that has passed, files that stray."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyarrow.fs import FileSelector, FileType, LocalFileSystem

from lakehead.clock import SystemClock
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.stagers import filesystem_of
from lakehead.maintain.sweep import Swept, sweep
from lakehead.spark.settings import EMBEDDED
from tests.lakehouse import Lakehouse
from tests.servers.seaweed import Seaweed
from tests.support.spark import shared_session

CATALOGS = [EMBEDDED, pytest.param("sqlite_on_s3", marks=pytest.mark.soak), "rest"]
AGES_AGO = 1_000_000_000
FOUR_DAYS = timedelta(days=4)


@dataclass(frozen=True)
class Later(SystemClock):
    """The machine's clock, some time from now: what is there has become old."""

    by: timedelta = FOUR_DAYS

    def now_ns(self) -> int:
        return super().now_ns() + int(self.by.total_seconds() * 1e9)


@contextmanager
def opened(folder: Path, seaweed: Seaweed) -> Iterator[Lakehouse]:
    """A lakehouse in the folder, with a catalog of its own on S3 and the server's REST catalog."""
    warehouse = f"s3://lake/{folder.name}"
    more = {
        "sqlite_on_s3": seaweed.sqlite_catalog(folder / "catalog.sqlite", warehouse=warehouse),
        "rest": seaweed.rest_catalog(),
    }
    settings = Lakehouse.settings(folder, more)
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    try:
        yield lakehouse
    finally:
        lakehouse.close()


def swept(table: IcebergTable, clock: SystemClock | None = None, *, dry_run: bool = False) -> Swept:
    return asyncio.run(sweep(table, clock or SystemClock(), dry_run=dry_run))


def files_of(table: IcebergTable) -> set[str]:
    """Everything that lies where the table does; without the checksums that Hadoop keeps beside local files."""
    filesystem, folder = filesystem_of(table.load(), table.load().location())
    found = filesystem.get_file_info(FileSelector(folder, recursive=True))
    return {file.path for file in found if file.type is FileType.File and not file.path.endswith(".crc")}


def plant(table: IcebergTable, *names: str) -> list[str]:
    """Files that nothing refers to."""
    filesystem, folder = filesystem_of(table.load(), table.load().location())
    for name in names:
        if isinstance(filesystem, LocalFileSystem):
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
        with filesystem.open_output_stream(f"{folder}/{name}") as stray:
            stray.write(b"nobody's")
    return sorted(f"{folder}/{name}" for name in names)


def make_old(*paths: str) -> None:
    for path in paths:
        os.utime(path, (AGES_AGO, AGES_AGO))


def snapshots_of(table: IcebergTable) -> list[int]:
    return [snapshot.snapshot_id for snapshot in table.load().metadata.snapshots]
