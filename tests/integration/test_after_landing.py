"""After landing: objects are deleted or moved once their rows are in the table, in a bucket and in a folder."""

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
from lakehead.consume.uris import Identity, unit_id
from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds
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
    boto3.client(
        "s3",
        endpoint_url=seaweed.endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    ).create_bucket(Bucket=bucket)
    other = connect(Bucket("s3", bucket, ""), seaweed.settings(), retries=2)

    report, objects = act(seaweed, tmp_path, "move", f"s3://{bucket}/")

    assert report == ActionReport(done=1)
    assert list(objects) == ["in/replaced.json"]
    [moved] = [entry["path"] for page in obstore.list(other) for entry in page]
    assert moved.endswith("/in/a b.json")
    assert bytes(obstore.get(other, moved).bytes()) == b"old"


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


def test_objects_are_not_moved_to_where_they_would_land_again(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, after_landing="move", move_to=str(tmp_path / "in" / "done"))

    with pytest.raises(Misconfigured, match=f"would land again in {NAME}"):
        pipeline.run()
