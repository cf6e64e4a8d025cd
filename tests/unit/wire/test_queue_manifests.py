"""Manifests come back as they were, those of the specification are read, and what we do not know is kept."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.wire.errors import Unreadable
from lakehead.wire.queue_manifests import ConsumerManifest, ProducerManifest, record_last_number

GOLDEN = Path(__file__).parents[2] / "golden" / "buffer"
FIRST = "data/f47ac10b-58cc-4372-a567-0e02b2c3d479.batch"
SECOND = "data/9b2e1c4d-83f5-4a1e-b9d7-6f8e2a3c5b10.batch"
THIRD = "data/3d6f4a9e-c2b7-41d8-9e5f-7a1b3c8d2e6f.batch"
OWNER = "7d9f6c1e-2f57-4a39-9f43-0f1f5f9f6a01"

PRODUCER = ProducerManifest(
    pending=(FIRST, SECOND),
    version=17,
    nonce="0c8a1c2e-5f0b-4a51-8a5a-1b2c3d4e5f60",
    gc=3,
    producers={"old": 4, "new": 9},
    forgotten=2,
    data_path_prefix="data",
    partitions=4,
    sealed=True,
)
CONSUMER = ConsumerManifest(
    claimed={FIRST: 1719400000000, SECOND: 1719400005000},
    done=(THIRD,),
    version=5,
    nonce="0c8a1c2e-5f0b-4a51-8a5a-1b2c3d4e5f60",
    owners={FIRST: OWNER, SECOND: OWNER},
    epoch=2,
    owner=OWNER,
    heartbeat=1719400006000,
    acks={OWNER: 1},
)

counts = st.integers(0, 2**63)
texts = st.text(max_size=20)
producers = st.builds(
    ProducerManifest,
    pending=st.lists(texts).map(tuple),
    version=counts,
    nonce=texts,
    gc=counts,
    producers=st.dictionaries(texts, counts),
    forgotten=counts,
    data_path_prefix=st.none() | texts.filter(bool),
    partitions=st.integers(0, 4096),
    sealed=st.booleans(),
)
consumers = st.builds(
    ConsumerManifest,
    claimed=st.dictionaries(texts, st.integers()),
    done=st.lists(texts).map(tuple),
    version=counts,
    nonce=texts,
    owners=st.dictionaries(texts, texts),
    epoch=counts,
    owner=st.none() | texts.filter(bool),
    heartbeat=st.integers(),
    acks=st.dictionaries(texts, counts),
    deliveries=st.dictionaries(texts, counts),
    bad_in_a_row=counts,
)


@given(producers)
def test_a_producer_manifest_comes_back_as_it_was(manifest: ProducerManifest) -> None:
    assert ProducerManifest.decode(manifest.encode(), "q") == manifest


@given(consumers)
def test_a_consumer_manifest_comes_back_as_it_was(manifest: ConsumerManifest) -> None:
    assert ConsumerManifest.decode(manifest.encode(), "q") == manifest


def test_the_manifests_are_written_as_they_always_were() -> None:
    assert PRODUCER.encode() == (GOLDEN / "producer-manifest.v1.json").read_bytes()
    assert CONSUMER.encode() == (GOLDEN / "consumer-manifest.v1.json").read_bytes()


def test_the_samples_of_the_specification_are_read() -> None:
    producer = ProducerManifest.decode((GOLDEN / "producer-manifest.spec.json").read_bytes(), "q")
    consumer = ConsumerManifest.decode((GOLDEN / "consumer-manifest.spec.json").read_bytes(), "q")

    assert producer == ProducerManifest(pending=(FIRST, SECOND, THIRD))
    assert consumer == ConsumerManifest(claimed={FIRST: 1719400000000, SECOND: 1719400005000}, done=(THIRD,))


def test_an_empty_manifest_has_the_keys_of_the_specification_and_no_others() -> None:
    assert ProducerManifest().encode() == b'{"pending":[]}'
    assert ConsumerManifest().encode() == b'{"claimed":{},"done":[]}'


def test_keys_that_we_do_not_know_survive() -> None:
    body = b'{"theirs": {"deep": [1, 2.50, 1e400]}, "pending": ["a"], "unknown": null}'

    again = msgspec.json.decode(ProducerManifest.decode(body, "q").encode(), type=dict[str, msgspec.Raw])

    assert bytes(again["theirs"]) == b'{"deep": [1, 2.50, 1e400]}'
    assert bytes(again["unknown"]) == b"null"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        b"[]",
        b"null",
        b'{"pending": 1}',
        b'{"pending": [1]}',
        b'{"pending": null}',
        b'{"version": -1}',
        b'{"producers": {"p": "1"}}',
        b'{"partitions": -1}',
        b'{"sealed": 1}',
        b'{"pending": []',
        b"\xff",
        b'{"gc": 1.5}',
        b'{"x": ' + b"[" * 100_000,
        b'{"pending": ["\xff"]}',
    ],
)
def test_what_is_no_producer_manifest_is_unreadable_and_says_where(body: bytes) -> None:
    with pytest.raises(Unreadable, match=r"ingest/manifest\.json"):
        ProducerManifest.decode(body, "ingest/manifest.json")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"7",
        b'{"claimed": []}',
        b'{"claimed": {"a": "1"}}',
        b'{"done": {}}',
        b'{"owners": {"a": 1}}',
        b'{"epoch": -1}',
        b'{"owner": 1}',
        b'{"heartbeat": "now"}',
        b'{"acks": 1}',
    ],
)
def test_what_is_no_consumer_manifest_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        ConsumerManifest.decode(body, "q")


@given(st.binary(max_size=200))
def test_whatever_bytes_there_are_the_answer_is_a_manifest_or_unreadable(body: bytes) -> None:
    for decode in (ProducerManifest.decode, ConsumerManifest.decode):
        try:
            decode(body, "q")
        except Unreadable:
            continue


def test_the_longest_silent_is_forgotten_first() -> None:
    kept, dropped = record_last_number({"a": 1, "b": 2, "c": 3}, "a", 4, limit=3)
    assert (list(kept.items()), dropped) == ([("b", 2), ("c", 3), ("a", 4)], 0)

    kept, dropped = record_last_number(kept, "d", 1, limit=3)
    assert (list(kept.items()), dropped) == ([("c", 3), ("a", 4), ("d", 1)], 1)
