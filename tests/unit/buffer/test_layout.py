"""Where a queue keeps what."""

import pytest

from lakehead.buffer.layout import (
    ManifestKeys,
    entry_location,
    is_batch_key,
    new_batch_key,
    object_key,
    quarantine_folder,
    quarantine_name,
)
from lakehead.ids import RandomIds
from lakehead.storage.object_keys import check_key

UUID = "f47ac10b-58cc-4372-a567-0e02b2c3d479"


@pytest.mark.parametrize(
    ("producer", "consumer"),
    [
        ("ingest/manifest.json", "ingest/manifest.consumer.json"),
        ("ingest/manifest", "ingest/manifest.consumer"),
        ("a.b/manifest", "a.b/manifest.consumer"),
        ("manifest.v1.json", "manifest.v1.consumer.json"),
        (".hidden", ".hidden.consumer"),
    ],
)
def test_the_consumer_manifest_stands_beside_the_producer_manifest(producer: str, consumer: str) -> None:
    assert ManifestKeys.of(producer) == ManifestKeys(producer, consumer)


def test_other_partitions_have_pairs_of_their_own() -> None:
    assert ManifestKeys.of("q/m.json", 3) == ManifestKeys("q/m.p3.json", "q/m.p3.consumer.json")


def test_a_batch_has_a_new_uuid_as_its_name() -> None:
    first, second = (new_batch_key("a/b", RandomIds()) for _ in range(2))

    assert first != second
    assert is_batch_key(first, "a/b")


@pytest.mark.parametrize(
    "location",
    [
        f"ingest/{UUID}.json",
        f"ingest/deeper/{UUID}.batch",
        f"ingestion/{UUID}.batch",
        f"ingest/{UUID}.batch#{UUID}",
        f"ingest/{UUID}.batch\n",
        f"ingest/x{UUID}.batch",
        "ingest/notes.batch",
        "ingest/manifest.json",
        f"other/{UUID}.batch",
        f"{UUID}.batch",
        "",
    ],
)
def test_nothing_else_is_taken_for_a_batch_of_the_queue(location: str) -> None:
    assert not is_batch_key(location, "ingest")
    assert not is_batch_key(location, None)


def test_each_time_that_a_key_is_queued_is_an_entry_of_its_own() -> None:
    first, second = (entry_location("accepted/v1/x#y", RandomIds()) for _ in range(2))

    assert first != second
    assert object_key(first) == object_key(second) == "accepted/v1/x#y"


@pytest.mark.parametrize("location", ["a#b", "a#", f"a#{UUID}x", f"in#gest/{UUID}.batch"])
def test_a_hash_in_a_key_is_no_mark_of_ours(location: str) -> None:
    assert object_key(location) == location


@pytest.mark.parametrize("location", ["", "../x", "a" * 5000, "\ud800", "ünï/c\\de"])
def test_whatever_is_set_aside_gets_a_legal_name(location: str) -> None:
    check_key(f"{quarantine_folder('ingest/manifest.json')}/{quarantine_name(location)}.batch")
