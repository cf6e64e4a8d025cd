"""What S3 tells reconcilers and garbage collection, on real servers: notifications on SQS, reports of S3 Inventory."""

import csv
import gzip
import io
import json
import time
from collections.abc import Mapping
from hashlib import md5
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus
from uuid import uuid4

import pytest

from lakehead.accept.acceptance import Accepted, Submission
from lakehead.run.config.config_file import read_config
from lakehead.run.gateway_wiring import GatewayWiring, gateway_config
from lakehead.run.reconcile_wiring import ReconcileWiring
from lakehead.storage.connect import StoreSettings
from lakehead.storage.s3_client import open_s3_client
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import decode_frame
from lakehead.wire.index_records import AcceptedByBlob, AcceptedByTime
from tests.consumer import aws
from tests.servers.seaweed import Seaweed
from tests.servers.sqs import REGION, SqsServer
from tests.support.async_tests import async_test
from tests.support.commands import lakehead_command
from tests.support.gateways import sample_frame
from tests.unit.accept.support import submitted

PREFIX = "prod/eu 1"


class Deployment:
    """An authority below a prefix of a bucket of its own."""

    def __init__(self, folder: Path, settings: StoreSettings, env: Mapping[str, str], **config: Any) -> None:
        self.folder, self.env, self.bucket = folder, dict(env), f"b{uuid4().hex}"
        self.client = open_s3_client(settings, purpose="Tests", attempts=1)
        self.client.create_bucket(Bucket=self.bucket)
        listeners = {"ingest_listener": {"port": 0}, "private_listener": {"port": 0}}
        self.file = folder / "lakehead.json"
        gateway = {"store": f"s3://{self.bucket}/{quote(PREFIX)}"}
        self.file.write_text(json.dumps({"gateway": {**gateway, **listeners}, **config}))
        done = lakehead_command("gateway", "init", self.file, env=self.env)
        assert done.returncode == 0, done.stderr

    async def accept(self, *numbers: int) -> list[IdentityManifest]:
        """Accept batches, with nothing that follows from it."""
        found = []
        for number in numbers:
            identity = BatchIdentity("agent-a", "boot", 10 * number, 10 * number + 9)
            wiring = self.wiring()
            answer = await wiring.acceptor(wiring.store).accept(submitted(f"frame {number}".encode(), identity))
            assert isinstance(answer, Accepted)
            found.append(answer.manifest)
        return found

    def wiring(self) -> GatewayWiring:
        return GatewayWiring(gateway_config(read_config(self.file)), self.env)

    def sizes(self, folder: str = "") -> dict[str, int]:
        """The sizes of all objects in a folder, by their keys below the prefix."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=f"{PREFIX}/{folder}")
        found = (each for page in pages for each in page.get("Contents", ()))
        return {each["Key"].removeprefix(f"{PREFIX}/"): each["Size"] for each in found}

    def keys(self, folder: str) -> list[str]:
        """The keys of all objects in a folder."""
        return list(self.sizes(f"{folder}/"))


def report_of(there: Deployment, listed: Mapping[str, int], reports: str) -> str:
    """Store a report of these keys, as S3 Inventory does, in a bucket of reports. Return the URL of its manifest."""
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(
        (there.bucket, quote_plus(f"{PREFIX}/{key}"), size) for key, size in listed.items()
    )
    body = gzip.compress(text.getvalue().encode())
    there.client.create_bucket(Bucket=reports)
    there.client.put_object(Bucket=reports, Key="all/data/1.csv.gz", Body=body)
    manifest = {
        "sourceBucket": there.bucket,
        "destinationBucket": f"arn:aws:s3:::{reports}",
        "version": "2016-11-30",
        "creationTimestamp": str(time.time_ns() // 1_000_000),
        "fileFormat": "CSV",
        "fileSchema": "Bucket, Key, Size",
        "files": [
            {"key": "all/data/1.csv.gz", "size": len(body), "MD5checksum": md5(body, usedforsecurity=False).hexdigest()}
        ],
    }
    there.client.put_object(Bucket=reports, Key="all/2025-10-09T00-00Z/manifest.json", Body=json.dumps(manifest))
    return f"s3://{reports}/all/2025-10-09T00-00Z/manifest.json"


@pytest.mark.slow
@async_test
async def test_a_batch_that_s3_announces_is_looked_at_and_its_message_is_gone(
    tmp_path: Path, sqs_server: SqsServer
) -> None:
    queue = sqs_server.new_queue()
    settings = sqs_server.s3_settings()
    env = {
        "AWS_ENDPOINT_URL": settings.endpoint or "",
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    events = {"queue_url": queue, "region": REGION, "endpoint": settings.endpoint}
    there = Deployment(tmp_path, settings, env, reconcile={"events": events})
    there.client.put_bucket_notification_configuration(
        Bucket=there.bucket,
        NotificationConfiguration={
            "QueueConfigurations": [
                {"QueueArn": f"arn:aws:sqs:{REGION}:000000000000:{queue}", "Events": ["s3:ObjectCreated:*"]}
            ]
        },
    )
    [manifest] = await there.accept(1)
    assert sqs_server.left(queue) > (0, 0), "S3 has said so"
    assert there.keys("accepted-by-time") == []
    wiring = ReconcileWiring(read_config(there.file), there.env)
    accepted = 0

    async with wiring.opened() as reconciler, wiring.events() as received:
        assert received is not None
        for _ in range(20):  # the reconciler's own writes are announced too
            report = await reconciler.take_events(received)
            accepted += report.accepted
            if sqs_server.left(queue) == (0, 0):
                break

    assert sqs_server.left(queue) == (0, 0)
    assert accepted == 1
    assert there.keys("accepted-by-time") == [AcceptedByTime.of(manifest).key]
    assert there.keys("accepted-by-blob") == [AcceptedByBlob.of(manifest).key]


@pytest.mark.slow
@async_test
async def test_a_report_of_s3_inventory_is_an_audit_and_finds_orphans(tmp_path: Path, seaweed: Seaweed) -> None:
    there = Deployment(tmp_path, seaweed.settings(), aws(seaweed), gc={"retry_horizon_days": 1e-9})
    manifests = await there.accept(1, 2)
    body = sample_frame(BatchIdentity("agent-a", "boot", 100, 109))
    orphan = Submission.of(body, decode_frame(body))
    wiring = there.wiring()
    await wiring.acceptor(wiring.store).store_blob(orphan)
    url = report_of(there, there.sizes(), f"r{uuid4().hex}")
    some = report_of(there, {each.key: 1 for each in manifests}, f"r{uuid4().hex}")

    filtered = lakehead_command("reconcile", there.file, "--inventory", some, "--json", env=there.env)
    done = lakehead_command("reconcile", there.file, "--inventory", url, "--json", env=there.env)
    words = ("gc", there.file, "--source", "inventory", "--inventory", url, "--audit", "--json")
    planned = lakehead_command(*words, "--dry-run", env=there.env)
    collected = lakehead_command(*words, env=there.env)

    assert (filtered.returncode, done.returncode, collected.returncode) == (1, 0, 0), done.stderr + collected.stderr
    assert json.loads(filtered.stdout)["done"]["accepted_by_blob"] == 2
    assert sorted(there.keys("accepted-by-blob")) == sorted(AcceptedByBlob.of(each).key for each in manifests)
    assert there.keys("reconciler/v1") != []
    assert json.loads(planned.stdout)["outcomes"]["orphan"] == json.loads(collected.stdout)["outcomes"]["orphan"]
    assert sorted(there.keys("raw-blobs")) == sorted(each.raw_blob_key for each in manifests)
    assert keys.accepted(orphan.identity) in there.keys("accepted"), "it is void"
