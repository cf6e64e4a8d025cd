"""`lakehead queue` against real stores: what it tells is what is stored, and it changes nothing that it need not."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import CollectorConfig, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.consumer import Mode
from lakehead.buffer.ingestor import Ingestor
from lakehead.clock import SystemClock
from lakehead.run.main import main
from lakehead.wire.batch import KeyValueEntry, Limits, encode_json

GOLDEN = Path(__file__).parents[2] / "golden" / "buffer"
LAKEHEAD = Path(sys.executable).with_name("lakehead")
PRODUCER, CONSUMER = "ingest/manifest.json", "ingest/manifest.consumer.json"
FIRST, SECOND, THIRD = (
    "data/f47ac10b-58cc-4372-a567-0e02b2c3d479.batch",
    "data/9b2e1c4d-83f5-4a1e-b9d7-6f8e2a3c5b10.batch",
    "data/3d6f4a9e-c2b7-41d8-9e5f-7a1b3c8d2e6f.batch",
)
"""In the order of the specification's producer manifest."""
BATCH = encode_json([KeyValueEntry(b"key", b"value")])

T = TypeVar("T")


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def told(self) -> Any:
        return json.loads(self.out)


class Lake:
    """A folder with one queue in it, and the command beside it."""

    def __init__(self, folder: Path, run: Callable[..., Done]) -> None:
        self.folder, self._run = folder, run
        self.url = f"file://{folder}"
        self.where = ObjectStoreConfig(url=self.url)
        folder.mkdir()

    def queue(self, *arguments: str) -> Done:
        return self._run("queue", *arguments, "--store", self.url)

    def write(self, key: str, body: bytes | dict[str, Any]) -> Path:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body if isinstance(body, bytes) else json.dumps(body).encode())
        return path

    def read(self, key: str) -> Any:
        return json.loads((self.folder / key).read_bytes())

    def change(self, key: str, **changes: Any) -> None:
        self.write(key, {**self.read(key), **changes})

    def everything(self) -> dict[str, tuple[bytes, int]]:
        """What is stored, and when it was; without what belongs to the store itself."""
        return {
            str(path.relative_to(self.folder)): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in self.folder.rglob("*")
            if path.is_file() and ".lakehead" not in path.parts
        }

    def batches(self) -> set[str]:
        return {key for key in self.everything() if key.endswith(".batch") and key.count("/") == 1}

    def by_hand(self) -> None:
        """The queue of the specification, as somebody else's software would have made it."""
        self.write(PRODUCER, (GOLDEN / "producer-manifest.spec.json").read_bytes())
        self.write(CONSUMER, (GOLDEN / "consumer-manifest.spec.json").read_bytes())
        for location in (FIRST, SECOND, THIRD):
            self.write(location, BATCH)

    def ingest(self, *values: str, **settings: Any) -> None:
        """One flush for each value, by an ingestor."""

        async def story() -> None:
            config = IngestorConfig(
                object_store_config=self.where, flush_interval=timedelta(milliseconds=1), **settings
            )
            async with Ingestor(config, SystemClock()) as ingestor:
                for value in values:
                    entries = [KeyValueEntry(f"key-{number}".encode(), value.encode()) for number in range(8)]
                    await (await ingestor.ingest(entries)).await_durable()

        asyncio.run(story())

    def collect(
        self, story: Callable[[Collector], Coroutine[Any, Any, T]], *, limits: Limits | None = None, **settings: Any
    ) -> T:
        async def told() -> T:
            config = CollectorConfig(object_store_config=self.where, **settings)
            async with Collector(config, SystemClock(), limits=limits) as collector:
                return await story(collector)

        return asyncio.run(told())


async def everything(collector: Collector) -> list[CollectedBatch]:
    """All batches, acknowledged."""
    found = []
    while (batch := await collector.next_batch()) is not None:
        found.append(batch)
        await collector.ack(batch)
    return found


def make_older(path: Path, *, hours: float) -> None:
    then = path.stat().st_mtime - hours * 3600
    os.utime(path, (then, then))


async def one_of_three(collector: Collector) -> None:
    """One is acknowledged, one is held, and what was only read ahead is given back when the collector is closed."""
    first = await collector.next_batch()
    await collector.next_batch()
    assert first is not None
    await collector.ack(first)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lake:
    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["lakehead", *arguments])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return Lake(tmp_path / "lake", run)


# --- dump


def test_dump_shows_a_queue_that_was_made_by_hand_from_the_specification(lake: Lake) -> None:
    lake.by_hand()

    done = lake.queue("dump")

    assert (done.code, done.err) == (0, "")
    headline, head, *rows = done.out.splitlines()
    assert headline == f"partition 0, {PRODUCER}, version 0, gc 0, 0 producers, epoch 0"
    assert head.split() == ["LOCATION", "STATE", "OWNER", "REFRESHED"]
    assert [row.split()[:3] for row in rows] == [
        [FIRST, "claimed", "unknown"],
        [SECOND, "claimed", "unknown"],
        [THIRD, "done"],
    ]


@pytest.mark.parametrize("mode", Mode)
def test_dump_tells_what_ingestors_and_collectors_have_stored(lake: Lake, mode: Mode) -> None:
    lake.ingest("one", "two", "three")
    lake.collect(one_of_three, mode=mode)

    table, told = lake.queue("dump"), lake.queue("dump", "--json")

    producer, consumer = lake.read(PRODUCER), lake.read(CONSUMER)
    assert told.told == {
        "partitions": [
            {
                "partition": 0,
                "producer_manifest": PRODUCER,
                "producer": producer,
                "consumer_manifest": CONSUMER,
                "consumer": consumer,
            }
        ]
    }
    [claimed] = consumer["claimed"]
    states = dict(row.split()[:2] for row in table.out.splitlines()[2:])
    assert states == {consumer["done"][0]: "done", claimed: "claimed", producer["pending"][2]: "pending"}
    assert list(states) == producer["pending"]
    assert consumer["owners"][claimed] in table.out
    assert ("owned by" in table.out) is (mode is Mode.ORDERED)


def test_dump_keeps_keys_that_it_does_not_know(lake: Lake) -> None:
    lake.by_hand()
    lake.change(PRODUCER, theirs={"a": [1, 2]})

    assert lake.queue("dump", "--json").told["partitions"][0]["producer"]["theirs"] == {"a": [1, 2]}


def test_dump_shows_every_partition_and_those_that_can_be_read_beside_one_that_cannot(lake: Lake) -> None:
    lake.ingest("value", partitions=3)
    lake.write("ingest/manifest.p1.json", b"{")

    done, told = lake.queue("dump"), lake.queue("dump", "--json")

    assert done.code == told.code == 1
    assert [line.split(",")[0] for line in done.out.splitlines() if line.startswith("partition")] == [
        "partition 0",
        "partition 1",
        "partition 2",
    ]
    assert done.err.startswith("lakehead: The producer manifest ingest/manifest.p1.json cannot be read")
    assert done.err.count("\n") == 1
    assert [each["producer"] for each in told.told["partitions"]] == [
        lake.read(PRODUCER),
        None,
        lake.read("ingest/manifest.p2.json"),
    ]


def test_a_location_cannot_speak_to_the_terminal(lake: Lake) -> None:
    lake.write(PRODUCER, {"pending": ["data/\x1b[2J\rgone.batch"]})

    for command in ("dump", "verify"):
        assert not {"\x1b", "\r"} & set(lake.queue(command).out)


# --- lag


def test_lag_tells_what_waits(lake: Lake) -> None:
    lake.ingest("one", "two", "three")
    lake.collect(one_of_three)
    waiting = lake.read(PRODUCER)["pending"][1:]
    make_older(lake.folder / waiting[0], hours=2.1)

    table, told = lake.queue("lag"), lake.queue("lag", "--json")

    [partition] = told.told["partitions"]
    size = sum((lake.folder / location).stat().st_size for location in waiting)
    oldest = partition.pop("oldest_seconds")
    assert partition == {
        "partition": 0,
        "manifest": PRODUCER,
        "pending": 3,
        "waiting": 2,
        "claimed": 1,
        "done": 1,
        "waiting_bytes": size,
    }
    assert oldest >= 7200
    assert table.out.splitlines()[1].split()[:6] == [PRODUCER, "3", "2", "1", "1", str(size)]
    assert table.out.splitlines()[1].split()[6] == "2h"


def test_lag_of_a_queue_that_is_drained_has_no_age(lake: Lake) -> None:
    lake.ingest("one", "two", partitions=2)
    lake.collect(everything)

    for partition in lake.queue("lag", "--json").told["partitions"]:
        assert (partition["waiting"], partition["waiting_bytes"], partition["oldest_seconds"]) == (0, 0, None)


def test_lag_counts_what_others_have_queued_whatever_it_is(lake: Lake) -> None:
    lake.by_hand()

    [partition] = lake.queue("lag", "--json").told["partitions"]

    assert (partition["pending"], partition["waiting"], partition["claimed"], partition["done"]) == (3, 2, 2, 1)
    assert partition["oldest_seconds"] >= 0


# --- verify


@pytest.mark.parametrize("make", ["by hand", "one", "many"])
def test_verify_finds_nothing_wrong_with_a_queue_that_works(lake: Lake, make: str) -> None:
    if make == "by hand":
        lake.by_hand()
    else:
        lake.ingest("one", "two", "three", partitions=1 if make == "one" else 5)
        lake.collect(one_of_three)

    done, told = lake.queue("verify"), lake.queue("verify", "--json")

    assert (done.code, done.err, told.told["faults"]) == (0, "", [])
    assert done.out.startswith("no faults: ")


def test_verify_counts_batches_that_are_not_queued_which_is_no_fault(lake: Lake) -> None:
    lake.ingest("one")
    lake.write("ingest/1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed.batch", b"12345")
    lake.write("ingest/somebody.batch", b"not the queue's")

    done, told = lake.queue("verify"), lake.queue("verify", "--json").told

    assert done.code == 0
    assert "1 batches (5 bytes) are stored and not queued" in done.out
    assert (told["unqueued"], told["unqueued_bytes"]) == (1, 5)


def missing(lake: Lake) -> str:
    location: str = lake.read(PRODUCER)["pending"][1]
    (lake.folder / location).unlink()
    return f"missing: {location} is pending in {PRODUCER} and is not in the store"


def no_key(lake: Lake) -> str:
    lake.change(PRODUCER, pending=[*lake.read(PRODUCER)["pending"], "../secret"])
    return f"missing: ../secret is pending in {PRODUCER} and is no key that a store takes"


def twice(lake: Lake) -> str:
    pending = lake.read(PRODUCER)["pending"]
    lake.change(PRODUCER, pending=[*pending, pending[2]])
    return f"twice: {pending[2]} stands more than once in the 'pending' of {PRODUCER}"


def done_twice(lake: Lake) -> str:
    done = lake.read(CONSUMER)["done"]
    lake.change(CONSUMER, done=[*done, *done])
    return f"twice: {done[0]} stands more than once in the 'done' of {CONSUMER}"


def in_two_partitions(lake: Lake) -> str:
    pending = lake.read(PRODUCER)["pending"]
    lake.change(PRODUCER, partitions=2)
    lake.write("ingest/manifest.p1.json", {"pending": [pending[2]], "partitions": 2, "data_path_prefix": "ingest"})
    return f"twice: {pending[2]} is pending in {PRODUCER} and in ingest/manifest.p1.json"


def claimed_and_gone(lake: Lake) -> str:
    now = lake.read(CONSUMER)
    owner, gone = now["owner"], "ingest/1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed.batch"
    lake.change(CONSUMER, claimed={**now["claimed"], gone: 1}, owners={**now["owners"], gone: owner})
    return f"claim: {gone} is claimed in {CONSUMER} and is neither pending nor done"


def claimed_by_nobody(lake: Lake) -> str:
    [location] = lake.read(CONSUMER)["claimed"]
    lake.change(CONSUMER, owners={})
    return f"owner: The claim on {location} in {CONSUMER} has no owner"


def claimed_by_another(lake: Lake) -> str:
    [location] = lake.read(CONSUMER)["claimed"]
    lake.change(CONSUMER, owners={location: "another"})
    return f"owner: The claim on {location} in {CONSUMER} is that of another"


def owned_and_not_claimed(lake: Lake) -> str:
    [location] = lake.read(CONSUMER)["claimed"]
    lake.change(CONSUMER, claimed={})
    return f"owner: {location} has an owner in {CONSUMER} and is not claimed"


def another_prefix(lake: Lake) -> str:
    lake.change(PRODUCER, partitions=2)
    lake.write("ingest/manifest.p1.json", {"pending": [], "partitions": 2, "data_path_prefix": "elsewhere"})
    return "prefix: ingest/manifest.p1.json keeps its batches below 'elsewhere'"


def another_number(lake: Lake) -> str:
    lake.change(PRODUCER, partitions=2)
    lake.write("ingest/manifest.p1.json", {"pending": [], "partitions": 3})
    return f"partitions: ingest/manifest.p1.json says that the queue has 3 partitions, and {PRODUCER} says 2"


def sealed(lake: Lake) -> str:
    lake.change(PRODUCER, sealed=True)
    return f"partitions: {PRODUCER} is sealed"


def beyond_the_last(lake: Lake) -> str:
    lake.write("other/left.batch", BATCH)
    lake.write("ingest/manifest.p7.json", {"pending": ["other/left.batch"]})
    return "partitions: Locations wait in ingest/manifest.p7.json, which is none of the 1 partitions"


def not_json(lake: Lake) -> str:
    lake.write(CONSUMER, b"no JSON")
    return f"unreadable: The consumer manifest {CONSUMER} cannot be read"


def wrong_type(lake: Lake) -> str:
    lake.change(PRODUCER, pending={"a": 1})
    return f"unreadable: The producer manifest {PRODUCER} cannot be read: its 'pending' is no such thing"


def no_note(lake: Lake) -> str:
    lake.write("ingest/manifest.quarantine/00.json", b"[]")
    return "unreadable: The note ingest/manifest.quarantine/00.json"


def no_copy(lake: Lake) -> str:
    note = {"location": "ingest/x.batch", "reason": "bad", "at_ms": 1, "keys": ["ingest/manifest.quarantine/0.batch"]}
    lake.write("ingest/manifest.quarantine/0.json", note)
    return "quarantine: What was set aside of ingest/x.batch is not at ingest/manifest.quarantine/0.batch"


@pytest.mark.parametrize(
    "spoil",
    [
        missing,
        no_key,
        twice,
        done_twice,
        in_two_partitions,
        claimed_and_gone,
        claimed_by_nobody,
        claimed_by_another,
        owned_and_not_claimed,
        another_prefix,
        another_number,
        sealed,
        beyond_the_last,
        not_json,
        wrong_type,
        no_note,
        no_copy,
    ],
)
def test_verify_tells_a_fault_in_one_sentence_and_mends_nothing(lake: Lake, spoil: Callable[[Lake], str]) -> None:
    lake.ingest("one", "two", "three")
    lake.collect(one_of_three)
    kind, _, sentence = spoil(lake).partition(": ")
    before = lake.everything()

    done, told = lake.queue("verify"), lake.queue("verify", "--json")

    assert done.code == told.code == 1
    [fault] = told.told["faults"]
    assert fault["kind"] == kind
    assert fault["sentence"].startswith(sentence)
    assert done.out.splitlines()[:-1] == [fault["sentence"]]
    assert done.out.splitlines()[-1].startswith("1 fault: ")
    assert lake.everything() == before


def test_verify_finds_the_other_partitions_where_the_first_cannot_be_read(lake: Lake) -> None:
    lake.ingest("value", partitions=12)
    gone = lake.read("ingest/manifest.p11.json")["pending"] or lake.read("ingest/manifest.p10.json")["pending"]
    (lake.folder / gone[0]).unlink()
    lake.write(PRODUCER, b"")

    told = lake.queue("verify", "--json").told

    assert {fault["kind"] for fault in told["faults"]} == {"unreadable", "missing"}
    assert gone[0] in [fault["location"] for fault in told["faults"]]


# --- gc


def orphan(lake: Lake, name: str, *, hours: float) -> str:
    key = f"ingest/{name}-bbfd-4b2d-9b5d-ab8dfbbd4bed.batch"
    make_older(lake.write(key, BATCH), hours=hours)
    return key


def test_gc_deletes_what_was_never_queued_and_is_old_enough_and_nothing_else(lake: Lake) -> None:
    lake.ingest("one", "two", partitions=2)
    live = lake.batches()
    old, young = orphan(lake, "1b9d6bcd", hours=13), orphan(lake, "2b9d6bcd", hours=1)
    before = lake.everything()

    would = lake.queue("gc", "--dry-run", "--grace", "12h")
    assert would.out.splitlines() == [old, "1 batches would be deleted"]
    assert lake.everything() == before
    assert lake.queue("gc", "--dry-run").out == "0 batches would be deleted\n"

    done = lake.queue("gc", "--grace", "12h", "--json")

    assert done.told == {"orphans": [old], "deleted": True}
    assert lake.batches() == {*live, young}
    assert [lake.read(key)["gc"] for key in (PRODUCER, "ingest/manifest.p1.json")] == [1, 1]
    assert lake.queue("verify").code == 0


@pytest.mark.parametrize("manifest", ["ingest/typo.json", "other/manifest.json"])
def test_gc_of_a_queue_that_is_not_there_deletes_nothing(lake: Lake, manifest: str) -> None:
    lake.ingest("one")
    orphan(lake, "1b9d6bcd", hours=100)
    before = lake.everything()

    done = lake.queue("gc", "--manifest", manifest, "--grace", "0s")

    assert done.code == 2
    assert done.err.startswith(f"lakehead: There is no queue at {manifest}")
    assert lake.everything() == before


def test_gc_leaves_a_queue_alone_whose_ingestors_do_not_know_of_it(lake: Lake) -> None:
    lake.by_hand()
    before = lake.everything()

    done = lake.queue("gc", "--grace", "0s")

    assert done.code == 2
    assert "does not say where the batches of its queue lie" in done.err
    assert lake.everything() == before


def test_gc_stops_at_a_manifest_that_cannot_be_read(lake: Lake) -> None:
    lake.ingest("one", partitions=2)
    orphan(lake, "1b9d6bcd", hours=100)
    lake.write("ingest/manifest.p1.json", b"{")
    batches = lake.batches()

    done = lake.queue("gc")

    assert done.code == 1
    assert "ingest/manifest.p1.json cannot be read" in done.err
    assert lake.batches() == batches


# --- quarantine


def set_aside(lake: Lake) -> str:
    """A batch that is too large for its collector."""
    lake.ingest("value")
    [location] = lake.read(PRODUCER)["pending"]
    assert lake.collect(everything, limits=Limits(entries=1)) == []
    return str(location)


def test_quarantine_list_shows_what_was_set_aside_and_why(lake: Lake) -> None:
    location = set_aside(lake)

    done, told = lake.queue("quarantine", "list"), lake.queue("quarantine", "list", "--json").told

    [note] = [json.loads(body) for key, (body, _) in lake.everything().items() if "quarantine" in key and "json" in key]
    assert note["location"] == location
    assert told == {"set_aside": [{**note, "queued_again": False}]}
    assert location in done.out
    assert note["reason"] in done.out
    assert done.out.splitlines()[-1] == "1 are set aside"


def test_quarantine_list_of_a_queue_without_trouble_is_empty(lake: Lake) -> None:
    lake.ingest("value")

    assert lake.queue("quarantine", "list").out == "0 are set aside\n"
    assert lake.queue("quarantine", "list", "--json").told == {"set_aside": []}


def test_quarantine_list_shows_the_others_beside_a_note_that_cannot_be_read(lake: Lake) -> None:
    location = set_aside(lake)
    lake.write("ingest/manifest.quarantine/00.json", b"{")

    done = lake.queue("quarantine", "list")

    assert done.code == 1
    assert location in done.out
    assert "ingest/manifest.quarantine/00.json" in done.err


def test_what_is_replayed_is_handed_out_once_more(lake: Lake) -> None:
    location = set_aside(lake)

    done = lake.queue("quarantine", "replay", location)

    [entry] = [each for each in lake.read(PRODUCER)["pending"] if "#" in each]
    assert (done.code, done.out) == (0, f"{location} is queued again as {entry}\n")
    assert lake.queue("quarantine", "list", "--json").told["set_aside"][0]["queued_again"] is True
    assert lake.queue("verify").code == 0
    [batch] = lake.collect(everything)
    assert [each.value for each in batch.entries] == [b"value"] * 8
    assert lake.queue("quarantine", "list", "--json").told["set_aside"][0]["queued_again"] is False


def test_a_queue_with_many_partitions_takes_what_is_replayed(lake: Lake) -> None:
    lake.ingest("value", partitions=3)
    assert lake.collect(everything, limits=Limits(stored_bytes=1)) == []
    aside = [each["location"] for each in lake.queue("quarantine", "list", "--json").told["set_aside"]]

    done = lake.queue("quarantine", "replay", *aside, "--json")

    assert list(done.told["queued"]) == aside
    assert {batch.location for batch in lake.collect(everything)} == set(done.told["queued"].values())


def test_what_was_replayed_before_one_that_cannot_be_is_told(lake: Lake) -> None:
    location = set_aside(lake)

    done = lake.queue("quarantine", "replay", location, "ingest/never.batch")

    assert done.code == 1
    assert done.out.startswith(f"{location} is queued again as ")
    assert "What was set aside of ingest/never.batch cannot be queued again" in done.err


def test_replay_into_a_queue_of_others_needs_to_know_where_its_batches_lie(lake: Lake) -> None:
    lake.by_hand()
    lake.write(CONSUMER, b"{}")
    assert lake.collect(everything, limits=Limits(stored_bytes=1)) == []

    refused = lake.queue("quarantine", "replay", FIRST)
    done = lake.queue("quarantine", "replay", FIRST, "--data-prefix", "data")

    assert refused.code == 2
    assert "--data-prefix" in refused.err
    assert (done.code, lake.read(PRODUCER)["data_path_prefix"]) == (0, "data")


# --- all of them


READING = (["dump"], ["lag"], ["verify"], ["quarantine", "list"])


def test_commands_that_look_write_nothing(lake: Lake) -> None:
    set_aside(lake)
    lake.ingest("one", "two")
    lake.collect(one_of_three)
    orphan(lake, "1b9d6bcd", hours=100)
    before = lake.everything()

    for command in (*READING, ["gc", "--dry-run"]):
        for machine in ([], ["--json"]):
            assert lake.queue(*command, *machine).code == 0

    assert lake.everything() == before


@pytest.mark.parametrize("command", [*READING, ["gc"], ["quarantine", "replay", "x"]])
def test_a_queue_that_is_not_there_is_one_sentence(lake: Lake, command: list[str]) -> None:
    done = lake.queue(*command)

    assert (done.code, done.out.strip()) == (2, "")
    assert done.err.startswith("lakehead: There is no queue at ingest/manifest.json")
    assert done.err.count("\n") == 1
    assert lake.everything() == {}


@pytest.mark.parametrize("command", ["dump", "lag", "verify", "gc", "quarantine list", "quarantine replay"])
def test_help_has_an_example_that_can_be_typed(lake: Lake, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    shown = lake._run("queue", *command.split(), "--help").out

    example = re.search(rf"Example: lakehead (queue {command} .*?) *$", shown, re.MULTILINE)
    assert example is not None, shown
    lake.by_hand()
    typed = re.sub(r"(file|s3)://\S+", lake.url, example[1])
    done = lake._run(*typed.split())
    assert "Usage" not in done.err


def test_the_command_itself_runs_without_a_jvm_and_without_spark(lake: Lake) -> None:
    lake.ingest("value")
    code = (
        "import sys; from lakehead.run.main import app; app(standalone_mode=False); assert 'pyspark' not in sys.modules"
    )

    for command in ([LAKEHEAD], [sys.executable, "-c", code]):
        ran = subprocess.run(
            [*command, "queue", "lag", "--store", lake.url], capture_output=True, text=True, check=False, timeout=60
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert PRODUCER in ran.stdout
