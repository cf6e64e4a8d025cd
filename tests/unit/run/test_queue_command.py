"""`lakehead queue` against real stores: what it tells is what is stored, and it changes nothing that it need not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lakehead.buffer.config import CollectorMode
from tests.unit.run.queue_support import (
    CONSUMER,
    FIRST,
    PRODUCER,
    SECOND,
    THIRD,
    Lake,
    everything,
    make_older,
    one_of_three,
    orphan,
    quarantine_one,
)

LAKEHEAD = Path(sys.executable).with_name("lakehead")


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


@pytest.mark.parametrize("mode", CollectorMode)
def test_dump_tells_what_ingestors_and_collectors_have_stored(lake: Lake, mode: CollectorMode) -> None:
    lake.ingest("one", "two", "three")
    lake.collect(one_of_three, mode=mode)

    table, printed = lake.queue("dump"), lake.queue("dump", "--json")

    producer, consumer = lake.read(PRODUCER), lake.read(CONSUMER)
    assert printed.json == {
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
    assert ("owned by" in table.out) is (mode is CollectorMode.ORDERED)


def test_dump_keeps_keys_that_it_does_not_know(lake: Lake) -> None:
    lake.by_hand()
    lake.change(PRODUCER, theirs={"a": [1, 2]})

    assert lake.queue("dump", "--json").json["partitions"][0]["producer"]["theirs"] == {"a": [1, 2]}


def test_dump_shows_every_partition_and_those_that_can_be_read_beside_one_that_cannot(lake: Lake) -> None:
    lake.ingest("value", partitions=3)
    lake.write("ingest/manifest.p1.json", b"{")

    done, printed = lake.queue("dump"), lake.queue("dump", "--json")

    assert done.code == printed.code == 1
    assert [line.split(",")[0] for line in done.out.splitlines() if line.startswith("partition")] == [
        "partition 0",
        "partition 1",
        "partition 2",
    ]
    assert done.err.startswith("lakehead: The producer manifest ingest/manifest.p1.json cannot be read")
    assert done.err.count("\n") == 1
    assert [each["producer"] for each in printed.json["partitions"]] == [
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

    table, printed = lake.queue("lag"), lake.queue("lag", "--json")

    [partition] = printed.json["partitions"]
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

    for partition in lake.queue("lag", "--json").json["partitions"]:
        assert (partition["waiting"], partition["waiting_bytes"], partition["oldest_seconds"]) == (0, 0, None)


def test_lag_counts_what_others_have_queued_whatever_it_is(lake: Lake) -> None:
    lake.by_hand()

    [partition] = lake.queue("lag", "--json").json["partitions"]

    assert (partition["pending"], partition["waiting"], partition["claimed"], partition["done"]) == (3, 2, 2, 1)
    assert partition["oldest_seconds"] >= 0


# --- all of them


READING = (["dump"], ["lag"], ["verify"], ["quarantine", "list"])


@pytest.mark.slow
def test_commands_that_look_write_nothing(lake: Lake) -> None:
    quarantine_one(lake)
    lake.ingest("one", "two")
    lake.collect(one_of_three)
    orphan(lake, "1b9d6bcd", hours=100)
    before = lake.everything()

    for command in (*READING, ["gc", "--dry-run"]):
        for machine in ([], ["--json"]):
            assert lake.queue(*command, *machine).code == 0

    assert lake.everything() == before


def test_commands_that_look_do_not_probe_the_store(lake: Lake) -> None:
    lake.by_hand()

    for command in (*READING, ["gc", "--dry-run"]):
        lake.queue(*command)

    # A probe leaves empty folders in a folder of files: its own, and that of the store's locks.
    assert sorted(path.name for path in lake.folder.iterdir()) == ["data", "ingest"]


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


@pytest.mark.slow
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
