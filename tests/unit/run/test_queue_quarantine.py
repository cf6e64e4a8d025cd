"""`lakehead queue quarantine`: what was set aside is shown with its reason, and is queued again on request."""

import json

import pytest

from lakehead.wire.batch import BatchLimits
from tests.unit.run.queue_support import CONSUMER, FIRST, PRODUCER, Lake, everything, quarantine_one


def test_quarantine_list_shows_what_was_set_aside_and_why(lake: Lake) -> None:
    location = quarantine_one(lake)

    done, printed = lake.queue("quarantine", "list"), lake.queue("quarantine", "list", "--json").json

    [note] = [json.loads(body) for key, (body, _) in lake.everything().items() if "quarantine" in key and "json" in key]
    assert note["location"] == location
    assert printed == {"set_aside": [{**note, "queued_again": False}]}
    assert location in done.out
    assert note["reason"] in done.out
    assert done.out.splitlines()[-1] == "1 batches in quarantine"


def test_quarantine_list_of_a_queue_without_trouble_is_empty(lake: Lake) -> None:
    lake.ingest("value")

    assert lake.queue("quarantine", "list").out == "0 batches in quarantine\n"
    assert lake.queue("quarantine", "list", "--json").json == {"set_aside": []}


def test_quarantine_list_shows_the_others_beside_a_note_that_cannot_be_read(lake: Lake) -> None:
    location = quarantine_one(lake)
    lake.write("ingest/manifest.quarantine/00.json", b"{")

    done = lake.queue("quarantine", "list")

    assert done.code == 1
    assert location in done.out
    assert "ingest/manifest.quarantine/00.json" in done.err


def test_what_is_replayed_is_handed_out_once_more(lake: Lake) -> None:
    location = quarantine_one(lake)

    done = lake.queue("quarantine", "replay", location)

    [entry] = [each for each in lake.read(PRODUCER)["pending"] if "#" in each]
    assert (done.code, done.out) == (0, f"{location} is queued again as {entry}\n")
    assert lake.queue("quarantine", "list", "--json").json["set_aside"][0]["queued_again"] is True
    assert lake.queue("verify").code == 0
    [batch] = lake.collect(everything)
    assert [each.value for each in batch.entries] == [b"value"] * 8
    assert lake.queue("quarantine", "list", "--json").json["set_aside"][0]["queued_again"] is False


def test_a_queue_with_many_partitions_takes_what_is_replayed(lake: Lake) -> None:
    lake.ingest("value", partitions=3)
    assert lake.collect(everything, limits=BatchLimits(stored_bytes=1)) == []
    aside = [each["location"] for each in lake.queue("quarantine", "list", "--json").json["set_aside"]]

    done = lake.queue("quarantine", "replay", *aside, "--json")

    assert list(done.json["queued"]) == aside
    assert {batch.location for batch in lake.collect(everything)} == set(done.json["queued"].values())


def test_what_was_replayed_before_one_that_cannot_be_is_told(lake: Lake) -> None:
    location = quarantine_one(lake)

    done = lake.queue("quarantine", "replay", location, "ingest/never.batch")

    assert done.code == 1
    assert done.out.startswith(f"{location} is queued again as ")
    assert "Cannot queue ingest/never.batch again" in done.err


def test_replay_into_a_queue_of_others_needs_to_know_where_its_batches_lie(lake: Lake) -> None:
    lake.by_hand()
    lake.write(CONSUMER, b"{}")
    assert lake.collect(everything, limits=BatchLimits(stored_bytes=1)) == []

    refused = lake.queue("quarantine", "replay", FIRST)
    done = lake.queue("quarantine", "replay", FIRST, "--data-prefix", "data")

    assert refused.code == 2
    assert "--data-prefix" in refused.err
    assert (done.code, lake.read(PRODUCER)["data_path_prefix"]) == (0, "data")


@pytest.mark.parametrize("prefix", ["//bad", "", "others"])
def test_replay_puts_no_prefix_into_a_manifest_that_readers_would_refuse(lake: Lake, prefix: str) -> None:
    lake.by_hand()
    lake.write(CONSUMER, b"{}")
    lake.write("others/_owner.json", {"manifest_path": "others/manifest.json"})
    assert lake.collect(everything, limits=BatchLimits(stored_bytes=1)) == []

    refused = lake.queue("quarantine", "replay", FIRST, "--data-prefix", prefix)

    assert refused.code == 2
    assert "data_path_prefix" not in lake.read(PRODUCER)
