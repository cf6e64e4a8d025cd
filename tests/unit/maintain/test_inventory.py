"""S3 Inventory reports, CSV and Parquet, find accepted batches without a listing, and prove nothing that is newer."""

import gzip
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from hashlib import md5
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehead.clock import SystemClock
from lakehead.maintain import inventory as module
from lakehead.maintain.inventory import SAFE_SECONDS, AcceptedInventory, InventoryReport
from lakehead.maintain.reconcile_report import ProblemKind, ReconcileReport
from lakehead.storage.memory_store import MemoryStore
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.errors import Unreadable
from lakehead.wire.s3_inventory import decode_manifest
from tests.support.async_tests import async_test
from tests.unit.maintain.reconcile_support import NOON, Authority, identity

Row = tuple[str, bool, bool]
"""A key, whether it is the current version, and whether that is a delete marker."""


def csv_file(rows: Sequence[Row]) -> bytes:
    lines = [f'"lake","{quote_plus(key)}","v1","{str(a).lower()}","{str(b).lower()}"' for key, a, b in rows]
    return gzip.compress("\n".join(lines).encode() + b"\n")


def parquet_file(rows: Sequence[Row]) -> bytes:
    names = ("key", "is_latest", "is_delete_marker")
    table = pa.table({name: [row[number] for row in rows] for number, name in enumerate(names)})
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


async def inventory(*files: bytes, form: str = "CSV", prefix: str = "") -> AcceptedInventory:
    store = MemoryStore(clock=SystemClock())
    listed = []
    for number, body in enumerate(files):
        await store.put(f"reports/data/{number}", body)
        checksum = md5(body, usedforsecurity=False).hexdigest()
        listed.append({"key": f"reports/data/{number}", "size": len(body), "MD5checksum": checksum})
    fields = {
        "sourceBucket": "lake",
        "destinationBucket": "arn:aws:s3:::reports",
        "version": "2016-11-30",
        "creationTimestamp": str(NOON // 1_000_000),
        "fileFormat": form,
        "fileSchema": "Bucket, Key, VersionId, IsLatest, IsDeleteMarker"
        if form == "CSV"
        else "message s3.inventory {}",
        "files": listed,
    }
    manifest = decode_manifest(json.dumps(fields).encode())
    return AcceptedInventory(InventoryReport(store=store, manifest=manifest, prefix=prefix))


KEYS = [keys.accepted(identity(number)) for number in range(3)]


@pytest.mark.parametrize("prefix", ["", "prod/eu 1+2%/"])
@pytest.mark.parametrize(("form", "file"), [("CSV", csv_file), ("Parquet", parquet_file)])
@async_test
async def test_the_current_identity_manifests_of_a_report_are_found(form: str, file: Any, prefix: str) -> None:
    rows = [
        (prefix + KEYS[0], True, False),
        (prefix + KEYS[0], False, False),
        (prefix + "raw-blobs/v1/sha256/other", True, False),
        ("other/" + KEYS[1], True, False),
        (prefix + KEYS[2], True, True),
        (prefix + keys.AUTHORITY, True, False),
    ]
    found = await inventory(file(rows), file([(prefix + KEYS[1], True, False)]), form=form, prefix=prefix)
    report = ReconcileReport()

    listed = [key async for page in found.pages(report) for key in page]

    assert listed == KEYS[:2]
    assert [(each.kind, each.key) for each in report.problems] == [(ProblemKind.DELETED, KEYS[2])]


@async_test
async def test_batches_of_a_report_are_reconciled_and_it_is_an_audit_of_the_time_before_it() -> None:
    authority = Authority()
    manifests = await authority.accept(1, 2, indexed=False)
    listed = [keys.AUTHORITY, *(each.key for each in manifests)]
    found = await inventory(csv_file([(each, True, False) for each in listed]))
    reconciler = authority.reconciler()

    report = await reconciler.inventory_scan(found)

    audit = await reconciler.records.completed_audit()
    assert (report.accepted, len(await authority.store.keys("accepted-by-blob"))) == (2, 2)
    assert audit is not None
    assert audit.begun_at_unix_ns == NOON - int(SAFE_SECONDS * 1e9)
    await reconciler.cold_scan()
    await reconciler.inventory_scan(found)
    later = await reconciler.records.completed_audit()
    assert later is not None
    assert later.begun_at_unix_ns >= NOON, "an old report does not replace a newer audit"


@async_test
async def test_a_report_of_some_folders_alone_is_no_audit() -> None:
    authority = Authority()
    await authority.accept(1, indexed=False)
    found = await inventory(csv_file([("raw-blobs/v1/sha256/other", True, False)]))
    reconciler = authority.reconciler()

    report = await reconciler.inventory_scan(found)

    assert [(each.kind, each.key) for each in report.problems] == [(ProblemKind.FAILED, keys.AUTHORITY)]
    assert await reconciler.records.completed_audit() is None


@async_test
async def test_a_file_in_parts_is_read_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 50)
    rows = [(keys.accepted(identity(number)), True, False) for number in range(100)]
    # S3 may write several gzip members, and no line break at the end.
    found = await inventory(csv_file(rows[:40]) + csv_file(rows[40:]))

    listed = [key async for page in found.pages(ReconcileReport()) for key in page]

    assert listed == [row[0] for row in rows]


@pytest.mark.parametrize("form", ["CSV", "Parquet"])
@async_test
async def test_a_damaged_file_is_an_error(form: str) -> None:
    rows = [(KEYS[0], True, False)]
    whole = csv_file(rows) if form == "CSV" else parquet_file(rows)
    for body in (whole[:-9], b"nonsense" * 10):
        found = await inventory(body, form=form)
        with pytest.raises(Unreadable):
            [page async for page in found.pages(ReconcileReport())]


@async_test
async def test_a_file_with_another_hash_or_that_is_missing_is_an_error() -> None:
    found = await inventory(csv_file([(KEYS[0], True, False)]))
    [file] = found.report.manifest.files
    await found.report.store.put(file.key, csv_file([(KEYS[1], True, False)]))
    with pytest.raises(Unreadable, match="its MD5 is another"):
        [page async for page in found.pages(ReconcileReport())]
    await found.report.store.delete(file.key)
    with pytest.raises(Unreadable, match="is missing"):
        [page async for page in found.pages(ReconcileReport())]


@pytest.mark.parametrize("written", [b"", csv_file([])], ids=["empty", "shorter"])
@async_test
async def test_a_file_of_another_size_is_an_error_also_without_a_hash(written: bytes) -> None:
    found = await inventory(csv_file([(KEYS[0], True, False)]))
    [file] = found.report.manifest.files
    manifest = replace(found.report.manifest, files=(replace(file, md5=""),))
    await found.report.store.put(file.key, written)

    with pytest.raises(Unreadable, match=f"it has {len(written)} bytes"):
        [page async for page in AcceptedInventory(replace(found.report, manifest=manifest)).pages(ReconcileReport())]


@async_test
async def test_a_listing_for_garbage_collection_has_no_delete_markers() -> None:
    found = await inventory(csv_file([("a", True, False), ("b", True, True), ("c", False, False)]))

    assert [each.key async for page in found.report.listed() for each in page] == ["a"]
