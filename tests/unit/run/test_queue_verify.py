"""`lakehead queue verify`: each fault is explained in a sentence, a working queue has none, and nothing is changed."""

from collections.abc import Callable

import pytest

from tests.unit.run.queue_support import BATCH, CONSUMER, PRODUCER, Lake, one_of_three


@pytest.mark.parametrize("make", ["by hand", "one", "many"])
def test_verify_finds_nothing_wrong_with_a_queue_that_works(lake: Lake, make: str) -> None:
    if make == "by hand":
        lake.by_hand()
    else:
        lake.ingest("one", "two", "three", partitions=1 if make == "one" else 5)
        lake.collect(one_of_three)

    done, printed = lake.queue("verify"), lake.queue("verify", "--json")

    assert (done.code, done.err, printed.json["faults"]) == (0, "", [])
    assert done.out.startswith("no faults: ")


def test_verify_counts_batches_that_are_not_queued_which_is_no_fault(lake: Lake) -> None:
    lake.ingest("one")
    lake.write("ingest/1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed.batch", b"12345")
    lake.write("ingest/somebody.batch", b"not the queue's")

    done, printed = lake.queue("verify"), lake.queue("verify", "--json").json

    assert done.code == 0
    assert "1 batches (5 bytes) stored and not queued" in done.out
    assert (printed["unqueued"], printed["unqueued_bytes"]) == (1, 5)


def missing(lake: Lake) -> str:
    location: str = lake.read(PRODUCER)["pending"][1]
    (lake.folder / location).unlink()
    return f"missing: {location} is pending in {PRODUCER} and is not in the store"


def no_key(lake: Lake) -> str:
    lake.change(PRODUCER, pending=[*lake.read(PRODUCER)["pending"], "../secret"])
    return f"missing: ../secret is pending in {PRODUCER} and is not a valid key"


def twice(lake: Lake) -> str:
    pending = lake.read(PRODUCER)["pending"]
    lake.change(PRODUCER, pending=[*pending, pending[2]])
    return f"twice: {pending[2]} is duplicated in 'pending' of {PRODUCER}"


def done_twice(lake: Lake) -> str:
    done = lake.read(CONSUMER)["done"]
    lake.change(CONSUMER, done=[*done, *done])
    return f"twice: {done[0]} is duplicated in 'done' of {CONSUMER}"


def in_two_partitions(lake: Lake) -> str:
    pending = lake.read(PRODUCER)["pending"]
    lake.change(PRODUCER, partitions=2)
    lake.write("ingest/manifest.p1.json", {"pending": [pending[2]], "partitions": 2, "data_path_prefix": "ingest"})
    return f"twice: {pending[2]} is pending in {PRODUCER} and in ingest/manifest.p1.json"


def claimed_and_gone(lake: Lake) -> str:
    now = lake.read(CONSUMER)
    owner, gone = now["owner"], "ingest/1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed.batch"
    lake.change(CONSUMER, claimed={**now["claimed"], gone: 1}, owners={**now["owners"], gone: owner})
    return f"claim: {gone} is claimed in {CONSUMER} but neither pending nor done"


def claimed_by_nobody(lake: Lake) -> str:
    [location] = lake.read(CONSUMER)["claimed"]
    lake.change(CONSUMER, owners={})
    return f"owner: The claim on {location} in {CONSUMER} has no owner"


def claimed_by_another(lake: Lake) -> str:
    [location] = lake.read(CONSUMER)["claimed"]
    lake.change(CONSUMER, owners={location: "another"})
    return f"owner: The claim on {location} in {CONSUMER} belongs to another"


def owned_and_not_claimed(lake: Lake) -> str:
    [location] = lake.read(CONSUMER)["claimed"]
    lake.change(CONSUMER, claimed={})
    return f"owner: {location} has an owner in {CONSUMER} but is not claimed"


def another_prefix(lake: Lake) -> str:
    lake.change(PRODUCER, partitions=2)
    lake.write("ingest/manifest.p1.json", {"pending": [], "partitions": 2, "data_path_prefix": "elsewhere"})
    return "prefix: ingest/manifest.p1.json has its batches under 'elsewhere'"


def prefix_of_another_queue(lake: Lake) -> str:
    lake.write("ingest/_owner.json", {"manifest_path": "other/manifest.json"})
    return (
        f"prefix: {PRODUCER} has its batches under 'ingest', which belongs to other/manifest.json according to "
        "ingest/_owner.json"
    )


def owner_that_says_nothing(lake: Lake) -> str:
    lake.write("ingest/_owner.json", b"[]")
    return "unreadable: ingest/_owner.json, which names the queue that owns the prefix, cannot be read"


def another_number(lake: Lake) -> str:
    lake.change(PRODUCER, partitions=2)
    lake.write("ingest/manifest.p1.json", {"pending": [], "partitions": 3})
    return f"partitions: According to ingest/manifest.p1.json the queue has 3 partitions, according to {PRODUCER} 2"


def sealed(lake: Lake) -> str:
    lake.change(PRODUCER, sealed=True)
    return f"partitions: {PRODUCER} is sealed"


def beyond_the_last(lake: Lake) -> str:
    lake.write("other/left.batch", BATCH)
    lake.write("ingest/manifest.p7.json", {"pending": ["other/left.batch"]})
    return "partitions: ingest/manifest.p7.json has unacknowledged locations but is not one of the 1 partitions"


def not_json(lake: Lake) -> str:
    lake.write(CONSUMER, b"no JSON")
    return f"unreadable: The consumer manifest {CONSUMER} cannot be read"


def wrong_type(lake: Lake) -> str:
    lake.change(PRODUCER, pending={"a": 1})
    return f"unreadable: The producer manifest {PRODUCER} cannot be read: its key 'pending' is invalid"


def no_note(lake: Lake) -> str:
    lake.write("ingest/manifest.quarantine/00.json", b"[]")
    return "unreadable: The quarantine note ingest/manifest.quarantine/00.json"


def no_copy(lake: Lake) -> str:
    note = {"location": "ingest/x.batch", "reason": "bad", "at_ms": 1, "keys": ["ingest/manifest.quarantine/0.batch"]}
    lake.write("ingest/manifest.quarantine/0.json", note)
    return "quarantine: The copy of ingest/x.batch in quarantine is missing: ingest/manifest.quarantine/0.batch"


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
        prefix_of_another_queue,
        owner_that_says_nothing,
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

    done, printed = lake.queue("verify"), lake.queue("verify", "--json")

    assert done.code == printed.code == 1
    [fault] = printed.json["faults"]
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

    printed = lake.queue("verify", "--json").json

    assert {fault["kind"] for fault in printed["faults"]} == {"unreadable", "missing"}
    assert gone[0] in [fault["location"] for fault in printed["faults"]]
