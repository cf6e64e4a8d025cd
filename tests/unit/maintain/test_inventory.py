"""S3 Inventory reports, CSV and Parquet, find accepted batches without a listing, and prove nothing that is newer."""

import gzip
import io
import json
from collections.abc import Sequence
from hashlib import md5
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured, Unavailable
from lakehead.maintain import inventory as module
from lakehead.maintain.inventory import SAFE_SECONDS, Inventory, decode_manifest
from lakehead.maintain.reconcile_report import ProblemKind, ReconcileReport
from lakehead.storage.memory_store import MemoryStore
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.errors import Unreadable
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


async def inventory(*files: bytes, form: str = "CSV", prefix: str = "", **changed: Any) -> Inventory:
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
    manifest = decode_manifest(json.dumps(fields | changed).encode(), "manifest.json")
    return Inventory(store=store, manifest=manifest, prefix=prefix)


KEYS = [keys.accepted(identity(number)) for number in range(3)]


@pytest.mark.parametrize("prefix", ["", "prod/eu 1"])
@pytest.mark.parametrize(("form", "file"), [("CSV", csv_file), ("Parquet", parquet_file)])
@async_test
async def test_the_current_identity_manifests_of_a_report_are_found(form: str, file: Any, prefix: str) -> None:
    folder = f"{prefix}/" if prefix else ""
    rows = [
        (folder + KEYS[0], True, False),
        (folder + KEYS[0], False, False),
        (folder + "raw-blobs/v1/sha256/other", True, False),
        ("other/" + KEYS[1], True, False),
        (folder + KEYS[2], True, True),
    ]
    found = await inventory(file(rows), file([(folder + KEYS[1], True, False)]), form=form, prefix=prefix)
    report = ReconcileReport()

    listed = [key async for page in found.pages(report) for key in page]

    assert listed == KEYS[:2]
    assert [(each.kind, each.key) for each in report.problems] == [(ProblemKind.DELETED, KEYS[2])]


@async_test
async def test_batches_of_a_report_are_reconciled_and_it_is_an_audit_of_the_time_before_it() -> None:
    authority = Authority()
    manifests = await authority.accept(1, 2, indexed=False)
    found = await inventory(csv_file([(each.key, True, False) for each in manifests]))
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
    [file] = found.manifest.files
    await found.store.put(file.key, csv_file([(KEYS[1], True, False)]))
    with pytest.raises(Unreadable, match="another MD5"):
        [page async for page in found.pages(ReconcileReport())]
    await found.store.delete(file.key)
    with pytest.raises(Unavailable, match="does not exist"):
        [page async for page in found.pages(ReconcileReport())]


@pytest.mark.parametrize(
    "changed", [{"fileFormat": "ORC"}, {"creationTimestamp": "today"}, {"files": 1}, {"fileSchema": "Bucket, Size"}]
)
@async_test
async def test_a_manifest_that_cannot_be_used_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match=r"manifest\.json"):
        await inventory(csv_file([]), **changed)
