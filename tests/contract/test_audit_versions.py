"""Delete markers and older versions of accepted keys, planted in versioned buckets of real servers, are found."""

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from lakehead.accept.s3_object_versions import S3ObjectVersions, VersionsUnread
from lakehead.errors import Unavailable
from lakehead.maintain.acceptance_audit import AuditParts
from lakehead.maintain.acceptance_audit_report import FindingKind
from lakehead.storage.open_store import open_store
from lakehead.storage.s3_client import open_s3_client
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.index_records import AcceptedByBlob, AcceptedByTime
from tests.servers.ports import free_ports
from tests.servers.seaweed import Seaweed
from tests.support.async_tests import async_test
from tests.unit.maintain.audit_support import BOOT, Authority, found

PREFIX = "prod"


@pytest.fixture
def bucket(seaweed: Seaweed) -> tuple[str, Any]:
    """A new versioned bucket, and a client."""
    client, name = open_s3_client(seaweed.settings(), purpose="Tests", attempts=1), f"b{uuid4().hex}"
    client.create_bucket(Bucket=name)
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return name, client


@async_test
async def test_what_was_deleted_or_replaced_below_accepted_is_found(seaweed: Seaweed, bucket: tuple[str, Any]) -> None:
    name, client = bucket
    authority = Authority(open_store(f"s3://{name}/{PREFIX}", seaweed.settings()))
    parts = AuditParts(versions=S3ObjectVersions(client, name, PREFIX))
    for number in range(3):
        await authority.accept(BatchIdentity(*BOOT, 10 * number, 10 * number + 9))
    batches = [BatchIdentity("agent-b", "b", number, number) for number in range(2)]
    manifests = [await authority.accept(batch) for batch in batches]
    assert (await authority.audit(parts)).counts == {}

    client.delete_object(Bucket=name, Key=f"{PREFIX}/{manifests[0].key}")
    client.put_object(Bucket=name, Key=f"{PREFIX}/{manifests[1].key}", Body=manifests[1].encode())
    client.delete_object(Bucket=name, Key=f"{PREFIX}/elsewhere")
    report = await authority.audit(parts)

    errors = {kind: names for kind, names in found(report).items() if kind.is_error}
    gone = manifests[0]
    assert errors == {
        FindingKind.ACCEPTED_GONE: [AcceptedByTime.of(gone).key, AcceptedByBlob.of(gone).key],
        FindingKind.DELETE_MARKER: [manifests[0].key],
        FindingKind.OLDER_VERSION: sorted(each.key for each in manifests),
    }
    assert report.accepted == 4, "the deleted one is listed no more"


@async_test
async def test_versions_are_listed_page_by_page(seaweed: Seaweed, bucket: tuple[str, Any]) -> None:
    name, client = bucket
    for number in range(7):
        client.put_object(Bucket=name, Key=f"{PREFIX}/accepted/v1/{number}", Body=b"1")
        client.put_object(Bucket=name, Key=f"{PREFIX}/accepted/v1/{number}", Body=b"2")

    class Small:
        """Answers with few versions at a time."""

        def list_object_versions(self, **asked: Any) -> Any:
            return client.list_object_versions(MaxKeys=3, **asked)

    pages = [page async for page in S3ObjectVersions(Small(), name, PREFIX).list("accepted/v1")]

    versions = [(each.key, each.is_latest) for page in pages for each in page]
    assert sorted(versions) == sorted((f"accepted/v1/{n}", latest) for n in range(7) for latest in (True, False))
    assert len(pages) > 1
    assert seaweed.endpoint


@async_test
async def test_a_refusal_and_a_silence_are_told_apart(seaweed: Seaweed) -> None:
    settings = seaweed.settings()
    wrong = replace(settings, credentials={"access_key_id": "other", "secret_access_key": "wrong"})
    gone = replace(settings, endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")
    for tried, expected in ((wrong, VersionsUnread), (gone, Unavailable)):
        listing = S3ObjectVersions(open_s3_client(tried, purpose="Tests", attempts=1), "lake")
        with pytest.raises(expected):
            [page async for page in listing.list("accepted/v1")]
