"""After landing: objects are deleted or moved once their rows are in the table, in a bucket and in a folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import obstore
import pytest

from lakehead.clock import SystemClock
from lakehead.consume.after_landing import AfterLanding
from lakehead.consume.object_clients import ObjectClients
from lakehead.consume.object_reader import ObjectReader, ReplacedWhileRead
from lakehead.consume.objects import ObjectRef
from lakehead.consume.ports import ActionReport
from lakehead.consume.s3_tags import S3Tags
from lakehead.consume.uris import Identity, unit_id
from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds
from lakehead.retry import Backoff
from lakehead.state.opening import open_state
from lakehead.storage.connect import Bucket, connect
from tests.integration.consume_support import TABLE as NAME
from tests.integration.consume_support import Pipeline
from tests.servers.seaweed import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, Seaweed
from tests.support.async_tests import run_bounded
from tests.support.state_tools import FIRST, hold, landing

TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"


def act(seaweed: Seaweed, folder: Path, action: Any, move_to: str = "") -> tuple[ActionReport, dict[str, bytes]]:
    """Put two objects, land both, replace one, and act. Returns the report and what is in the bucket."""
    prefix, settings = str(uuid4()), seaweed.settings()
    client, clients = connect(Bucket("s3", BUCKET, ""), settings, retries=2), ObjectClients({"s3": settings})
    keys = [f"{prefix}/in/{name}" for name in ("a b.json", "replaced.json")]
    reports: list[ActionReport] = []

    async def all_of_it() -> None:
        units = []
        for key in keys:
            await obstore.put_async(client, key, b"old")
            head = await clients.head(f"s3://{BUCKET}/{key}")
            etag = head.etag if head else ""
            units.append(unit_id(ObjectRef(uri=f"s3://{BUCKET}/{key}", etag=etag), by=Identity.URI_AND_ETAG))
        opened = ObjectReader({"s3": settings}).open(f"s3://{BUCKET}/{keys[1]}", etag=etag)
        assert opened.source.read() == b"old"
        await obstore.put_async(client, keys[1], b"new")
        with pytest.raises(ReplacedWhileRead):
            ObjectReader({"s3": settings}).open(f"s3://{BUCKET}/{keys[1]}", etag=etag)
        with open_state(f"sqlite:///{folder}/state.db", SystemClock(), RandomIds()) as state:
            hold(state, TABLE, *units)
            assert state.landings.settle(TABLE, None, FIRST, [landing(FIRST, *units)])
            after = AfterLanding(action, state, clients, move_to.format(prefix=prefix))
            reports.append(await after.act(TABLE, units))

    run_bounded(all_of_it())
    found = [entry["path"] for page in obstore.list(client, prefix) for entry in page]
    return reports[0], {key.removeprefix(f"{prefix}/"): bytes(obstore.get(client, key).bytes()) for key in found}


def test_a_landed_object_of_a_bucket_is_deleted_and_one_that_was_replaced_is_left(
    seaweed: Seaweed, tmp_path: Path
) -> None:
    report, objects = act(seaweed, tmp_path, "delete")

    assert report == ActionReport(done=1)
    assert objects == {"in/replaced.json": b"new"}


def test_a_landed_object_of_a_bucket_is_moved_and_one_that_was_replaced_is_left(
    seaweed: Seaweed, tmp_path: Path
) -> None:
    report, objects = act(seaweed, tmp_path, "move", f"s3://{BUCKET}/{{prefix}}/done")

    assert report == ActionReport(done=1)
    assert {name.rpartition("/")[2]: body for name, body in objects.items()} == {
        "a b.json": b"old",
        "replaced.json": b"new",
    }
    assert [name.startswith("done/") for name in sorted(objects)] == [True, False]


def test_an_object_can_be_moved_to_another_bucket(seaweed: Seaweed, tmp_path: Path) -> None:
    bucket = f"done-{uuid4()}"
    s3(seaweed).create_bucket(Bucket=bucket)
    other = connect(Bucket("s3", bucket, ""), seaweed.settings(), retries=2)

    report, objects = act(seaweed, tmp_path, "move", f"s3://{bucket}/")

    assert report == ActionReport(done=1)
    assert list(objects) == ["in/replaced.json"]
    [moved] = [entry["path"] for page in obstore.list(other) for entry in page]
    assert moved.endswith("/in/a b.json")
    assert bytes(obstore.get(other, moved).bytes()) == b"old"


def test_an_object_that_is_moved_overwrites_none_and_is_not_copied_twice(seaweed: Seaweed, tmp_path: Path) -> None:
    bucket, client = f"done-{uuid4()}", s3(seaweed)
    client.create_bucket(Bucket=bucket)
    etags = {key: client.put_object(Bucket=bucket, Key=key, Body=key.encode())["ETag"].strip('"') for key in ("a", "b")}
    client.put_object(Bucket=bucket, Key="done/a", Body=b"of another bucket")
    client.put_object(Bucket=bucket, Key="done/b", Body=b"b")  # as after a crash

    async def move() -> None:
        units = [
            unit_id(ObjectRef(uri=f"s3://{bucket}/{key}", etag=etag), by=Identity.URI_AND_ETAG)
            for key, etag in etags.items()
        ]
        with open_state(f"sqlite:///{tmp_path}/state.db", SystemClock(), RandomIds()) as state:
            hold(state, TABLE, *units)
            assert state.landings.settle(TABLE, None, FIRST, [landing(FIRST, *units)])
            after = AfterLanding("move", state, ObjectClients({"s3": seaweed.settings()}), f"s3://{bucket}/done")
            assert await after.act(TABLE, units) == ActionReport(done=2)

    run_bounded(move())
    names = [each["Key"] for each in client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert names == ["done/a", f"done/a.{etags['a']}", "done/b"]
    assert client.get_object(Bucket=bucket, Key="done/a")["Body"].read() == b"of another bucket"


def s3(seaweed: Seaweed) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=seaweed.endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )


def tags_of(client: Any, bucket: str, key: str, **version: str) -> dict[str, str]:
    found = client.get_object_tagging(Bucket=bucket, Key=key, **version)["TagSet"]
    return {each["Key"]: each["Value"] for each in found}


def tag(seaweed: Seaweed, folder: Path, tags: S3Tags, bucket: str, *objects: tuple[str, str]) -> list[ActionReport]:
    """Let objects, by key and ETag, have landed, and tag them twice."""
    reports: list[ActionReport] = []

    async def twice() -> None:
        refs = [ObjectRef(uri=f"s3://{bucket}/{key}", etag=etag.strip('"')) for key, etag in objects]
        units = [unit_id(ref, by=Identity.URI_AND_ETAG) for ref in refs]
        with open_state(f"sqlite:///{folder}/state.db", SystemClock(), RandomIds()) as state:
            hold(state, TABLE, *units)
            assert state.landings.settle(TABLE, None, FIRST, [landing(FIRST, *units)])
            after = AfterLanding("tag", state, ObjectClients({"s3": seaweed.settings()}), tags=tags)
            reports.extend([await after.act(TABLE, units) for _ in range(2)])

    run_bounded(twice())
    return reports


ODD_KEYS = ("a b+c.json", "50%2B%.json", "größe/#1?x=y.json", "in/plain.json")


def test_landed_objects_of_s3_are_tagged_beside_the_tags_that_they_have_and_once(
    seaweed: Seaweed, tmp_path: Path
) -> None:
    client, bucket = s3(seaweed), f"tags-{uuid4()}"
    client.create_bucket(Bucket=bucket)
    etags = [
        client.put_object(Bucket=bucket, Key=key, Body=b"x", Tagging="team=web&state=new")["ETag"] for key in ODD_KEYS
    ]
    replaced = ("replaced.json", client.put_object(Bucket=bucket, Key="replaced.json", Body=b"x")["ETag"])
    client.put_object(Bucket=bucket, Key="replaced.json", Body=b"another")
    gone = ("gone.json", etags[0])

    reports = tag(
        seaweed,
        tmp_path,
        S3Tags.open({"state": "landed", "by": "us"}, seaweed.settings()),
        bucket,
        *zip(ODD_KEYS, etags, strict=True),
        replaced,
        gone,
    )

    assert reports == [ActionReport(done=len(ODD_KEYS)), ActionReport()]
    for key in ODD_KEYS:
        assert tags_of(client, bucket, key) == {"team": "web", "state": "landed", "by": "us"}
    assert tags_of(client, bucket, "replaced.json") == {}


def test_the_version_that_has_landed_is_tagged(seaweed: Seaweed, tmp_path: Path) -> None:
    client, bucket = s3(seaweed), f"tags-{uuid4()}"
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    landed = client.put_object(Bucket=bucket, Key="a", Body=b"landed")
    tags = S3Tags.open({"state": "landed"}, seaweed.settings())

    class Late(S3Tags):
        """Another version comes right before the tags."""

        def add(self, bucket: str, key: str, version: str | None) -> bool:
            client.put_object(Bucket=bucket, Key=key, Body=b"another")
            return tags.add(bucket, key, version)

    [report, _] = tag(seaweed, tmp_path, Late(tags.tags, None), bucket, ("a", landed["ETag"]))

    assert report == ActionReport(done=1)
    assert tags_of(client, bucket, "a", VersionId=landed["VersionId"]) == {"state": "landed"}
    assert tags_of(client, bucket, "a") == {}


def test_tags_that_s3_refuses_or_that_cannot_be_sent_are_counted(seaweed: Seaweed, tmp_path: Path) -> None:
    client, bucket = s3(seaweed), f"tags-{uuid4()}"
    client.create_bucket(Bucket=bucket)
    full = "&".join(f"tag{number}=x" for number in range(10))
    etag = client.put_object(Bucket=bucket, Key="full", Body=b"x", Tagging=full)["ETag"]
    settings = replace(seaweed.settings(), endpoint="http://127.0.0.1:1", backoff=Backoff(attempts=1))

    for number, tags in enumerate(S3Tags.open({"state": "landed"}, each) for each in (seaweed.settings(), settings)):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert tag(seaweed, folder, tags, bucket, ("full", etag)) == [ActionReport(failed=1)] * 2
    assert len(tags_of(client, bucket, "full")) == 10


def test_a_pipeline_moves_what_has_landed_and_again_after_a_crash_in_between(tmp_path: Path) -> None:
    target = tmp_path / "done"
    pipeline = Pipeline(
        tmp_path,
        table={"prefixes": [f"{(tmp_path / 'in').as_uri()}/"]},
        after_landing="move",
        move_to=str(target),
    )
    first, second = pipeline.write("a.json", {"n": 1}), pipeline.write("b.json", {"n": 2})
    pipeline.configure([first, second])

    assert pipeline.run() == 0
    moved = sorted(path.name for path in target.rglob("*.json"))
    # As if the process had been killed between the landing and the move: the file is there, its message comes again.
    whole = target / (pipeline.inbox / "a.json").relative_to("/")
    whole.rename(pipeline.inbox / "a.json")
    assert pipeline.run() == 0

    assert moved == ["a.json", "b.json"]
    assert pipeline.files() == ["a.json", "b.json"]
    assert (list(pipeline.inbox.iterdir()), whole.exists()) == ([], True)


def test_a_message_for_an_object_that_landed_and_was_deleted_is_a_duplicate_and_no_dead_letter(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, after_landing="delete", retry_delay_seconds=0.01, max_tries=3)
    landed, never = pipeline.write("a.json", {"n": 1}), (pipeline.inbox / "never.json").as_uri()
    pipeline.configure([landed])
    assert pipeline.run() == 0
    assert list(pipeline.inbox.iterdir()) == []

    pipeline.configure([landed, never])
    assert pipeline.run() == 0

    with pipeline.state() as state:
        letters = state.history.dead_letters(pipeline.uuid)
    assert [(letter.unit, letter.tries) for letter in letters] == [(f"{never}?etag=", 3)]
    assert pipeline.files() == ["a.json"]


def test_objects_are_not_moved_to_where_they_would_land_again(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, after_landing="move", move_to=str(tmp_path / "in" / "done"))

    with pytest.raises(Misconfigured, match=f"would land again in {NAME}"):
        pipeline.run()
