"""A consumer that is killed at each step: nothing is lost or lands twice, or is acknowledged before it has landed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.consume_checker import faults, stored
from tests.chaos.consume_child import Plant, consuming
from tests.consumer import TABLE, Consumer, aws, lines, sqs
from tests.lakehouse import Lakehouse
from tests.servers.sqs import SqsServer
from tests.support.effort import effort
from tests.support.spark import Borrowed, shared_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # the very first start fetches jars

ROWS = 3
BROKEN = b'{"id": 1}\n{"id": \n'

MOMENTS = effort(
    (
        "after receive",
        "after open",
        "after count try",
        "after stage",
        f"after publish {TABLE}",
        "after settle",
        "after acknowledge",
    ),
    soak=(
        "after receive",
        "before open",
        "after open",
        "before count try",
        "after count try",
        "before plan",
        "after plan",
        "before stage",
        "after stage",
        f"before publish {TABLE}",
        f"after publish {TABLE}",
        "before record",
        "after record",
        "after settle",
        "before history",
        "after history",
        "before acknowledge",
        "after acknowledge",
        "before window",
        "after window",
    ),
)
"""Where consumer after consumer dies, each with a message of its own and with those that the last ones left."""

LETTER_MOMENTS = effort(
    ("after letter",), soak=("before letter", "after letter", "before bury", "after bury", "after history")
)
"""Where those die that give an object up: the letter is written, but the state does not have it; both have it."""


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Borrowed:
    return Borrowed.of(shared_session(Lakehouse.settings(tmp_path_factory.mktemp("spark"))))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServer]:
    server = SqsServer(tmp_path_factory.mktemp("sqs"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def queue(server: SqsServer) -> str:
    return server.new_queue()


@pytest.fixture
def consumer(tmp_path: Path, server: SqsServer, queue: str) -> Consumer:
    return Consumer(
        tmp_path,
        sqs(server, queue),
        aws(),
        settings={"messages": "raw_uri", "visibility_seconds": 1.0, "max_tries": 100},
    )


def landed(consumer: Consumer) -> set[str]:
    """The objects of which the table has rows."""
    return {uri for uri, _ in consumer.counts()}


def finish(consumer: Consumer, server: SqsServer, queue: str, jvm: Borrowed, **order: object) -> None:
    """Let a consumer do what is left, until the queue is empty."""
    with consuming(consumer, jvm, **order) as last:
        last.until(lambda: server.left(queue) == (0, 0), "the queue is empty")
        last.stop()


def test_a_consumer_killed_at_any_step_is_followed_by_one_that_loses_and_doubles_nothing(
    consumer: Consumer, server: SqsServer, queue: str, jvm: Borrowed, tmp_path: Path
) -> None:
    sent: list[str] = []
    for number, moment in enumerate(MOMENTS):
        uri = stored(tmp_path / "in", f"{number}.json", lines(ROWS))
        sent.append(uri)
        server.send(queue, uri)
        with consuming(consumer, jvm, die_at=moment) as doomed:
            doomed.dead()
        assert sum(server.left(queue)) >= len(set(sent) - landed(consumer)), f"{moment}: acknowledged before it landed"

    server.send(queue, *sent)
    finish(consumer, server, queue, jvm)
    assert faults(consumer, sent, [], rows=ROWS) == []


def test_a_consumer_killed_between_the_parts_of_an_object_is_followed_by_one_that_goes_on(
    consumer: Consumer, server: SqsServer, queue: str, jvm: Borrowed, tmp_path: Path
) -> None:
    many = 40 * ROWS
    uri = stored(tmp_path / "in", "large.json", lines(many))
    consumer = replace(consumer, settings={**consumer.settings, "max_object_bytes": len(lines(many)) // 8})
    server.send(queue, uri)
    before = 0
    for moment in (f"after publish {TABLE}", "after settle", "after stage", f"after publish {TABLE}"):
        with consuming(consumer, jvm, die_at=moment) as doomed:
            doomed.dead()
        assert sum(server.left(queue)) == 1, f"{moment}: acknowledged before all of it has landed"
        there = len(consumer.counts())
        assert there < many
        assert there > before or not moment.startswith("after publish")  # what was published before is settled first
        before = there

    finish(consumer, server, queue, jvm)
    assert faults(consumer, [uri], [], rows=many) == []


def test_a_consumer_killed_while_it_gives_an_object_up_is_followed_by_one_that_does(
    consumer: Consumer, server: SqsServer, queue: str, jvm: Borrowed, tmp_path: Path
) -> None:
    once = {"max_tries": 1}
    broken: list[str] = []
    for number, moment in enumerate(LETTER_MOMENTS):
        uri = stored(tmp_path / "in", f"broken {number}.json", BROKEN)
        broken.append(uri)
        server.send(queue, uri)
        with consuming(consumer, jvm, die_at=moment, settings=once) as doomed:
            doomed.dead()
        assert sum(server.left(queue)) >= 1, f"{moment}: acknowledged before it is a dead letter"

    finish(consumer, server, queue, jvm, settings=once)
    assert faults(consumer, [], broken, rows=ROWS) == []


def test_a_consumer_that_acknowledges_before_it_lands_is_found_out(
    consumer: Consumer, server: SqsServer, queue: str, jvm: Borrowed, tmp_path: Path
) -> None:
    uri = stored(tmp_path / "in", "a.json", lines(1))
    server.send(queue, uri)

    with consuming(consumer, jvm, plant=Plant.ACKNOWLEDGES_FIRST, die_at="after open") as doomed:
        doomed.dead()

    assert server.left(queue) == (0, 0)
    assert faults(consumer, [uri], [], rows=1) == [f"lost: row 0 of {uri}"]


def test_a_consumer_that_does_not_ask_what_has_landed_is_found_out(
    consumer: Consumer, server: SqsServer, queue: str, jvm: Borrowed, tmp_path: Path
) -> None:
    uri = stored(tmp_path / "in", "a.json", lines(1))
    with consuming(consumer, jvm, plant=Plant.ASKS_NOBODY) as careless:
        for _ in range(2):
            server.send(queue, uri)
            careless.until(lambda: server.left(queue) == (0, 0), "the queue is empty")
        careless.stop()

    assert faults(consumer, [uri], [], rows=1) == [f"2 times: row 0 of {uri}"]
