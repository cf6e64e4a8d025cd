"""Pipelines on real servers: objects on S3, messages on SQS as S3 writes them, tables in Iceberg."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote_plus
from uuid import uuid4

import obstore
import pytest
from pyspark.sql import SparkSession

from lakehead.consume import object_stager
from lakehead.consume.uris import inline_id
from lakehead.storage.connect import Bucket, connect
from tests.chaos.consume_child import consuming
from tests.consumer import TABLE, Consumer, aws, lines, sqs
from tests.faults.deadly_decoder import DEADLY, ENDLESS, with_deadly_decoder
from tests.faults.proxy import Proxy, Request, Silence, failure, served
from tests.lakehouse import Lakehouse
from tests.servers.seaweed import BUCKET, Seaweed
from tests.servers.sqs import SqsServer
from tests.support.commands import lakehead_command
from tests.support.spark import Borrowed, shared_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # the very first start fetches jars, and the server of SQS

RESCUE = {"schema_mode": "rescue"}
LAKEHEAD = Path(sys.executable).with_name("lakehead")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    return shared_session(Lakehouse.settings(tmp_path_factory.mktemp("spark")))


@pytest.fixture(scope="module")
def jvm(spark: SparkSession) -> Borrowed:
    return Borrowed.of(spark)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServer]:
    server = SqsServer(tmp_path_factory.mktemp("sqs"))
    server.start()
    yield server
    server.stop()


class Inbox:
    """A folder of a bucket whose new objects are announced on a queue of its own, as S3 announces them."""

    def __init__(self, seaweed: Seaweed, server: SqsServer) -> None:
        self.prefix = f"in {uuid4().hex}"
        self.queue = server.new_queue()
        self._server = server
        self._client = connect(Bucket("s3", BUCKET, ""), seaweed.settings(), retries=3)

    def put(self, name: str, body: bytes) -> dict[str, object]:
        """Store an object; the record of a notification that announces it."""
        stored = obstore.put(self._client, f"{self.prefix}/{name}", body)
        return record(BUCKET, f"{self.prefix}/{name}", size=len(body), etag=stored["e_tag"])

    def announce(self, *records: dict[str, object], times: int = 1) -> None:
        """Send a notification of these objects, as often as told."""
        self._server.send(self.queue, *[json.dumps({"Records": records})] * times)

    def uri(self, name: str) -> str:
        return f"s3://{BUCKET}/{self.prefix}/{name}"

    @property
    def left(self) -> int:
        return sum(self._server.left(self.queue))


def record(bucket: str, key: str, *, size: int, etag: str | None = None) -> dict[str, object]:
    """An event of a new object, as S3 writes it."""
    created = {"key": quote_plus(key, safe="/"), "size": size, "eTag": (etag or "0" * 32).strip('"')}
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": "us-east-1",
        "eventTime": "2026-01-01T00:00:00.000Z",
        "eventName": "ObjectCreated:Put",
        "s3": {
            "s3SchemaVersion": "1.0",
            "bucket": {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"},
            "object": created,
        },
    }


@pytest.fixture
def inbox(seaweed: Seaweed, server: SqsServer) -> Inbox:
    return Inbox(seaweed, server)


@pytest.fixture
def consumer(tmp_path: Path, inbox: Inbox, seaweed: Seaweed, server: SqsServer) -> Consumer:
    return Consumer(tmp_path, sqs(server, inbox.queue), aws(seaweed))


def every_row(inbox: Inbox, names: list[str], rows: int) -> Counter[tuple[str, int]]:
    return Counter({(inbox.uri(name), row): 1 for name in names for row in range(rows)})


def test_ten_files_of_which_two_are_announced_twice_are_ten_thousand_rows_and_stay_so(
    consumer: Consumer, inbox: Inbox, spark: SparkSession
) -> None:
    names = [f"{number}.json" for number in range(10)]
    for number, name in enumerate(names):
        inbox.announce(inbox.put(name, lines(1_000, first=number * 1_000)), times=2 if number < 2 else 1)

    assert consumer.run(spark) == 0

    rows = consumer.rows()
    assert sorted(rows["id"].to_pylist()) == list(range(10_000))
    assert consumer.counts() == every_row(inbox, names, 1_000)
    assert inbox.left == 0
    landings = consumer.landings()
    for number, name in enumerate(names):
        inbox.announce(inbox.put(name, lines(1_000, first=number * 1_000)))

    assert consumer.run(spark) == 0

    assert consumer.landings() == landings, "nothing lands again"
    assert inbox.left == 0


def test_content_in_messages_lands_once_with_what_does_not_fit_kept_beside_it(
    consumer: Consumer, inbox: Inbox, server: SqsServer, spark: SparkSession
) -> None:
    consumer.settings = {"messages": "inline"}
    consumer.tables = [{"table": TABLE, "format": "ndjson", "columns": [{"name": "id", "type": "int"}], **RESCUE}]
    first, second = '{"id": 1}\n{"id": "two", "more": [2]}', '{"id": 3}'
    server.send(inbox.queue, first, first, second)
    before = datetime.now(UTC)

    assert consumer.run(spark) == 0

    rows = sorted(consumer.rows().to_pylist(), key=lambda row: (row["_uri"] != inline_id(first.encode()), row["_row"]))
    assert [(row["_uri"], row["_row"], row["id"]) for row in rows] == [
        (inline_id(first.encode()), 0, 1),
        (inline_id(first.encode()), 1, None),
        (inline_id(second.encode()), 0, 3),
    ]
    assert [row["_rescued"] and json.loads(row["_rescued"]) for row in rows] == [None, {"id": "two", "more": [2]}, None]
    assert all(before <= row["_landed_at"] <= datetime.now(UTC) for row in rows)
    assert inbox.left == 0
    assert consumer.letters() == []


def test_a_corrupt_object_among_a_hundred_becomes_a_dead_letter_that_says_where(
    consumer: Consumer, inbox: Inbox, spark: SparkSession
) -> None:
    names = [f"{number}.json" for number in range(99)]
    inbox.announce(*(inbox.put(name, lines(3)) for name in names))
    inbox.announce(inbox.put("bad.json", b'{"id": 1, "name": "n"}\n{"id": 2, "name": n}\n'))

    assert consumer.run(spark) == 0

    assert consumer.counts() == every_row(inbox, names, 3)
    [letter] = consumer.letters()
    assert letter.uri == inbox.uri("bad.json")
    assert "Line 2, column 19: this is not JSON" in letter.reason
    assert letter.tries == 3
    assert inbox.left == 0


def test_an_object_that_kills_its_worker_is_found_by_halves_and_takes_nobody_with_it(
    consumer: Consumer, inbox: Inbox, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_stager, "read_objects", with_deadly_decoder())
    names = [f"{number}.json" for number in range(3)]
    inbox.announce(*(inbox.put(name, lines(3)) for name in names), inbox.put("deadly.json", DEADLY))

    assert consumer.run(spark) == 0

    assert consumer.counts() == every_row(inbox, names, 3)
    [letter] = consumer.letters()
    assert letter.uri == inbox.uri("deadly.json")
    assert letter.reason.startswith("The task that reads it dies: ")
    assert inbox.left == 0


def test_a_bucket_that_refuses_does_not_stall_objects_of_another(
    consumer: Consumer, inbox: Inbox, seaweed: Seaweed, jvm: Borrowed
) -> None:
    forward = Proxy(seaweed.endpoint, None)

    async def handle(request: Request) -> bytes | Silence:
        if request.target.startswith("/denied"):
            return failure(request, 403, "AccessDenied")
        return await forward.handle(request)

    names = [f"{number}.json" for number in range(3)]
    with served(handle) as endpoint:
        consumer.environment = aws(endpoint=endpoint)
        inbox.announce(record("denied", "a.json", size=10), record("no-such-bucket", "b.json", size=10))
        inbox.announce(*(inbox.put(name, lines(3)) for name in names))
        with consuming(consumer, jvm) as running:
            running.until(lambda: consumer.counts() == every_row(inbox, names, 3), "the others land")
            running.until(lambda: running.said.count("AccessDenied") > 3, "the refused object is tried again and again")
            counts = running.stop()

    assert counts["dead_letters"] == 0, "it is not the fault of the objects, however often they are tried"
    assert "The bucket of s3://no-such-bucket does not exist." in running.said
    assert inbox.left == 1
    assert consumer.counts() == every_row(inbox, names, 3)


def test_a_message_with_objects_of_two_tables_is_acknowledged_only_when_both_have_landed(
    consumer: Consumer, inbox: Inbox, jvm: Borrowed
) -> None:
    consumer.tables = [
        {"table": "raw.one", "format": "ndjson", "include": ["*.one"]},
        {"table": "raw.other", "format": "ndjson"},
    ]
    consumer.settings = {"visibility_seconds": 2.0}
    inbox.announce(inbox.put("a.one", lines(3)), inbox.put("b.other", lines(4)))

    with consuming(consumer, jvm, die_at="before publish raw.other", after="after history") as doomed:
        doomed.dead()

    assert (len(consumer.rows("raw.one")), len(consumer.rows("raw.other"))) == (3, 0)
    assert inbox.left == 1
    with consuming(consumer, jvm) as successor:
        successor.until(lambda: inbox.left == 0, "it is acknowledged")
        successor.stop()
    assert consumer.counts("raw.one") == every_row(inbox, ["a.one"], 3)
    assert consumer.counts("raw.other") == every_row(inbox, ["b.other"], 4)


def test_a_file_of_a_folder_whose_letter_is_replayed_lands_though_the_consumer_was_not_started_again(
    tmp_path: Path, jvm: Borrowed
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    file = folder / "a.json"
    file.write_bytes(b'{"id": \n')
    queue = {"type": "folder", "url": str(folder), "rest_seconds": 0.1, "scan_seconds": 0.1}
    consumer = Consumer(tmp_path, queue)

    with consuming(consumer, jvm) as running:
        running.until(lambda: '"dead_letters": 1' in running.said, "it is a dead letter")
        file.write_bytes(lines(2))
        running.until(lambda: '"duplicates": 1' in running.said, "its new content is not taken")
        done = lakehead_command("dead-letters", "replay", consumer.config(), file.as_uri())
        assert (done.returncode, done.stderr) == (0, "")
        running.until(lambda: len(consumer.rows()) == 2, "it lands")
        counts = running.stop()

    assert (counts["landed"], counts["dead_letters"]) == (1, 1)
    assert consumer.counts() == Counter({(file.as_uri(), row): 1 for row in range(2)})


@pytest.mark.parametrize("since", ["since they were received", "since before it knew of them"])
def test_a_stopped_consumer_ends_soon_and_gives_back_at_once_what_it_holds(
    consumer: Consumer, inbox: Inbox, server: SqsServer, jvm: Borrowed, since: str
) -> None:
    consumer.settings = {"visibility_seconds": 600.0, "commit_timeout_seconds": 600.0}
    for number in range(25):
        inbox.announce(inbox.put(f"{number}.json", lines(3)))

    with consuming(consumer, jvm) as running:
        running.until(lambda: server.left(inbox.queue) == (0, 25), "all messages are received")
        if since == "since they were received":
            running.until(lambda: running.held == 25, "it holds them")
        counts = running.stop()

    assert (counts["landed"], counts["acknowledged"]) == (0, 0)
    assert server.left(inbox.queue) == (25, 0), running.said


def test_a_stopped_consumer_does_not_wait_for_an_object_that_is_read_for_ever(
    consumer: Consumer, inbox: Inbox, server: SqsServer, jvm: Borrowed
) -> None:
    consumer.settings = {"visibility_seconds": 600.0}
    began = consumer.folder / "began"
    inbox.announce(inbox.put("endless.json", ENDLESS + str(began).encode()))

    with consuming(consumer, jvm, deadly_decoder=True) as running:
        running.until(began.exists, "it is read")
        counts = running.stop()

    assert counts["landed"] == 0
    assert server.left(inbox.queue) == (1, 0), running.said


def test_a_consumer_that_is_stopped_before_its_queue_is_empty_though_it_was_to_empty_it_has_failed(
    tmp_path: Path, jvm: Borrowed
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_bytes(lines(3))
    queue = {"type": "folder", "url": str(folder), "rest_seconds": 0.1, "scan_seconds": 0.1}
    consumer = Consumer(tmp_path, queue, settings={"commit_timeout_seconds": 600.0})

    with consuming(consumer, jvm, until_empty=True) as running:
        running.until(lambda: running.held == 1, "it holds the message")
        counts = running.stop(code=1)

    assert (counts["received"], counts["landed"]) == (1, 0)
    assert "was stopped by SIGTERM before its queue was empty. Run it again" in running.said


def test_the_command_as_people_start_it_ends_when_its_queue_is_empty(consumer: Consumer, inbox: Inbox) -> None:
    inbox.announce(inbox.put("a.json", lines(3)), inbox.put("b.json", lines(4)), times=2)

    done = subprocess.run(
        [LAKEHEAD, "consume", consumer.config(), "--until-empty"],
        env={**os.environ, **consumer.environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert consumer.counts() == every_row(inbox, ["a.json"], 3) + every_row(inbox, ["b.json"], 4)
    assert inbox.left == 0
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["kind"] for line in told][:: len(told) - 1] == ["pipeline_started", "pipeline_ended"]
    assert told[-1]["payload"]["counts"]["rows"] == 7
