"""Keys come back as what they were made of, keep the order of sequence numbers, and nothing leaves its folder."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.storage.object_keys import check_key
from lakehead.wire import acceptance_keys as keys
from lakehead.wire import chunk_keys
from lakehead.wire.batch_identity import MAX_ID_BYTES, MAX_SEQUENCE, BatchIdentity
from lakehead.wire.chunk_keys import RollupChunk
from lakehead.wire.errors import InvalidIdentity, InvalidKeyPart
from lakehead.wire.utc_hours import HOUR_NS, UtcHour

GOLDEN = Path(__file__).parents[2] / "golden" / "accept"
IDENTITY = BatchIdentity("agent-a", "boot-uuid", 10, 20)
HASH = "abcd" + "0123456789abcdef" * 3 + "0123456789ab"
HOUR = UtcHour.of(1_760_000_000_000_000_000)
TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"
ACTION = "0c8a1c2e-5f0b-4a51-8a5a-1b2c3d4e5f60"

KEYS = {
    "raw_blob": keys.raw_blob(HASH),
    "raw_blob_by_time": keys.raw_blob_by_time(HOUR, HASH),
    "accepted": keys.accepted(IDENTITY),
    "accepted_folder": keys.accepted_folder("agent-a", "boot-uuid"),
    "voiding": keys.voiding(IDENTITY),
    "voiding_folder": keys.voiding_folder("agent-a", "boot-uuid"),
    "accepted_by_time": keys.accepted_by_time(HOUR, IDENTITY),
    "accepted_by_blob": keys.accepted_by_blob(HASH, IDENTITY),
    "accepted_by_blob_folder": keys.accepted_by_blob_folder(HASH),
    "identity_conflict": keys.identity_conflict(IDENTITY, HASH),
    "overlap": keys.overlap(IDENTITY, HASH),
    "quarantine_by_blob": keys.quarantine_by_blob(HASH, IDENTITY),
    "quarantine_by_blob_folder": keys.quarantine_by_blob_folder(HASH),
    "quarantined_identity": keys.quarantined_identity("agent-a", "boot-uuid"),
    "resolution": keys.resolution(IDENTITY, HASH),
    "repair": keys.repair(IDENTITY),
    "retired": keys.retired(IDENTITY),
    "discarded": keys.discarded(TABLE, IDENTITY),
    "identity_conflicts_folder": keys.identity_conflicts_folder("agent-a"),
    "overlaps_folder": keys.overlaps_folder("agent-a"),
    "audit_entry": keys.audit_entry(1_760_000_000_000_000_000, ACTION),
    "authority": keys.AUTHORITY,
    "tokens": keys.TOKENS,
    "reconciler_heartbeat": keys.RECONCILER_HEARTBEAT,
    "reconciler_checkpoint": keys.RECONCILER_CHECKPOINT,
    "completed_audit": keys.COMPLETED_AUDIT,
    "chunk_manifest": chunk_keys.chunk_manifest(HOUR, "5m", 7),
    "rollup_chunk": chunk_keys.rollup_chunk("5m", HOUR, "http_requests_total", "run-1"),
    "rollup_chunk_of_an_odd_metric": chunk_keys.rollup_chunk("5m", HOUR, "../a:b c/é~.", "run-1"),
    "rollup_chunk_of_a_long_metric": chunk_keys.rollup_chunk("5m", HOUR, "m" * 241, "run-1"),
    "index_chunk": chunk_keys.index_chunk(HOUR, "run-1"),
}

ids = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1).filter(
    lambda t: len(t.encode()) <= MAX_ID_BYTES
)
hostile = st.sampled_from(["..", ".", "/", "../../x", "a/b", "\\", "=", "agent=", "%2F", "é", "\u202e", "~", " "]) | ids
sequences = st.integers(0, MAX_SEQUENCE) | st.sampled_from([0, 9, 10, 99, 10**18, MAX_SEQUENCE])
identities = st.builds(
    lambda agent, boot, pair: BatchIdentity(agent, boot, min(pair), max(pair)),
    hostile,
    hostile,
    st.tuples(sequences, sequences),
)
hashes = st.text("0123456789abcdef", min_size=64, max_size=64)
hours = st.builds(UtcHour.of, st.integers(-(2**63), 2**63 - 1))
windows = st.text("0123456789abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=16)
chunk_ids = st.text("0123456789abcXYZ_-", min_size=1, max_size=128)
metrics = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | hostile


def test_every_key_is_as_it_always_was() -> None:
    assert json.loads((GOLDEN / "keys.v1.json").read_text()) == KEYS


def test_the_keys_of_the_specification_are_met_to_the_letter() -> None:
    who = f"agent={b'agent-a'.hex()}/boot={b'boot-uuid'.hex()}"
    sequence = "00000000000000000010-00000000000000000020"
    assert keys.raw_blob(HASH) == f"raw-blobs/v1/sha256/ab/cd/{HASH}.lmbatch"
    assert keys.raw_blob_by_time(HOUR, HASH) == f"raw-blobs-by-time/v1/date=2025-10-09/hour=08/sha256={HASH}.json"
    assert keys.accepted(IDENTITY) == f"accepted/v1/{who}/{sequence}.json"
    manifest_id = keys.manifest_id(keys.accepted(IDENTITY))
    assert keys.accepted_by_time(HOUR, IDENTITY) == f"accepted-by-time/v1/date=2025-10-09/hour=08/{manifest_id}.json"
    assert keys.accepted_by_blob(HASH, IDENTITY) == f"accepted-by-blob/v1/sha256/ab/cd/{HASH}/{who}/{sequence}.json"
    conflict = f"quarantine/v1/identity-conflict/{who}/{sequence}/{HASH}.json"
    assert keys.identity_conflict(IDENTITY, HASH) == conflict
    assert keys.quarantine_by_blob(HASH, IDENTITY) == f"quarantine-by-blob/v1/sha256/ab/cd/{HASH}/{who}/{sequence}.json"


@given(identities, hashes, hours)
def test_keys_of_acceptance_come_back_as_what_they_were_made_of(
    identity: BatchIdentity, digest: str, hour: UtcHour
) -> None:
    assert keys.parse_raw_blob(keys.raw_blob(digest)) == digest
    assert keys.parse_raw_blob_by_time(keys.raw_blob_by_time(hour, digest)) == (hour, digest)
    assert keys.parse_accepted(keys.accepted(identity)) == identity
    assert keys.parse_voiding(keys.voiding(identity)) == identity
    by_time = keys.parse_accepted_by_time(keys.accepted_by_time(hour, identity))
    assert by_time == (hour, keys.manifest_id(keys.accepted(identity)))
    assert keys.parse_accepted_by_blob(keys.accepted_by_blob(digest, identity)) == (digest, identity)
    assert keys.parse_identity_conflict(keys.identity_conflict(identity, digest)) == (identity, digest)
    assert keys.parse_overlap(keys.overlap(identity, digest)) == (identity, digest)
    assert keys.parse_quarantine_by_blob(keys.quarantine_by_blob(digest, identity)) == (digest, identity)
    boot = (identity.agent_id, identity.boot_id)
    assert keys.parse_quarantined_identity(keys.quarantined_identity(*boot)) == boot
    assert keys.parse_resolution(keys.resolution(identity, digest)) == (identity, digest)
    assert keys.parse_repair(keys.repair(identity)) == identity
    assert keys.parse_retired(keys.retired(identity)) == identity
    assert keys.parse_discarded(keys.discarded(TABLE, identity)) == (TABLE, identity)
    assert keys.identity_conflict(identity, digest).startswith(f"{keys.identity_conflicts_folder(identity.agent_id)}/")
    assert keys.overlap(identity, digest).startswith(f"{keys.overlaps_folder(identity.agent_id)}/")
    if hour.number >= 0:
        assert keys.parse_audit_entry(keys.audit_entry(hour.start_ns + 7, ACTION)) == (hour.start_ns + 7, ACTION)


@given(windows, hours, metrics, chunk_ids, st.integers(0, 10**20 - 1))
def test_keys_of_chunks_come_back_as_what_they_were_made_of(
    window: str, hour: UtcHour, metric: str, chunk_id: str, number: int
) -> None:
    rollup = chunk_keys.parse_rollup_chunk(chunk_keys.rollup_chunk(window, hour, metric, chunk_id))
    is_long = chunk_keys.metric_part(metric).startswith("~")
    assert rollup == RollupChunk(window, hour, None if is_long else metric, chunk_id)
    assert is_long or len(metric.encode()) <= chunk_keys.MAX_METRIC_BYTES
    assert chunk_keys.parse_index_chunk(chunk_keys.index_chunk(hour, chunk_id)) == (hour, chunk_id)
    manifest = chunk_keys.chunk_manifest(hour, window, number)
    assert chunk_keys.parse_chunk_manifest(manifest) == (hour, window, number)


@given(identities, hashes, hours, metrics)
def test_no_name_leaves_its_folder_and_every_store_takes_the_key(
    identity: BatchIdentity, digest: str, hour: UtcHour, metric: str
) -> None:
    who = 2
    for made, folder, depth in (
        (keys.accepted(identity), keys.ACCEPTED, who + 1),
        (keys.accepted_by_blob(digest, identity), keys.ACCEPTED_BY_BLOB, 3 + who + 1),
        (keys.identity_conflict(identity, digest), keys.IDENTITY_CONFLICTS, who + 2),
        (keys.overlap(identity, digest), keys.OVERLAPS, who + 2),
        (keys.quarantine_by_blob(digest, identity), keys.QUARANTINE_BY_BLOB, 3 + who + 1),
        (keys.quarantined_identity(identity.agent_id, identity.boot_id), keys.QUARANTINED_IDENTITIES, who),
        (keys.resolution(identity, digest), keys.RESOLUTIONS, who + 2),
        (keys.repair(identity), keys.REPAIRS, who + 1),
        (keys.retired(identity), keys.RETIRED, who + 1),
        (keys.discarded(TABLE, identity), keys.DISCARDED, 1 + who + 1),
        (chunk_keys.rollup_chunk("1h", hour, metric, "c"), chunk_keys.ROLLUP, 5),
    ):
        check_key(made)
        assert made.startswith(f"{folder}/")
        inside = made.removeprefix(f"{folder}/").split("/")
        assert len(inside) == depth
        assert not {".", "..", ""} & set(inside)
        assert made.isascii()


@given(st.lists(st.tuples(sequences, sequences), min_size=2))
def test_the_order_of_keys_is_the_order_of_sequence_numbers(pairs: list[tuple[int, int]]) -> None:
    found = [BatchIdentity("a", "b", min(pair), max(pair)) for pair in pairs]

    assert [keys.parse_accepted(key) for key in sorted(map(keys.accepted, found))] == sorted(found)


def test_the_longest_keys_fit_every_store() -> None:
    longest = BatchIdentity("ä" * (MAX_ID_BYTES // 2), "ö" * (MAX_ID_BYTES // 2), 0, MAX_SEQUENCE)

    made = [
        keys.accepted_by_blob(HASH, longest),
        keys.identity_conflict(longest, HASH),
        keys.quarantine_by_blob(HASH, longest),
        keys.quarantined_identity(longest.agent_id, longest.boot_id),
        keys.discarded("a" * 64, longest),
        chunk_keys.rollup_chunk("w" * 16, HOUR, "m" * 240, "c" * 128),
        chunk_keys.rollup_chunk("w" * 16, HOUR, "é" * 240, "c" * 128),
    ]

    for key in made:
        check_key(key)
    assert max(map(len, made)) == 639


def test_hours_are_of_utc() -> None:
    assert UtcHour.of(0).path == "date=1970-01-01/hour=00"
    assert UtcHour.of(HOUR_NS - 1) == UtcHour.of(0) < UtcHour.of(HOUR_NS)
    assert UtcHour.of(-1).path == "date=1969-12-31/hour=23"
    assert UtcHour.of(2**63 - 1).path == "date=2262-04-11/hour=23"
    assert UtcHour.of(HOUR.start_ns) == HOUR
    for wrong in (
        "date=2025-02-29/hour=00",
        "date=2025-01-01/hour=24",
        "date=2025-1-1/hour=0",
        "date=\uff19999-01-01/hour=00",
        "",
    ):
        assert UtcHour.parse(wrong) is None
    for wrong_ns in (2**63 + HOUR_NS, -(2**63) - HOUR_NS):
        with pytest.raises(InvalidKeyPart):
            UtcHour.of(wrong_ns)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keys.raw_blob("../../accepted"),
        lambda: keys.raw_blob(HASH.upper()),
        lambda: keys.raw_blob(HASH + "\n"),
        lambda: keys.raw_blob_by_time(HOUR, ""),
        lambda: keys.identity_conflict(IDENTITY, "x/" + HASH[2:]),
        lambda: keys.discarded("../x", IDENTITY),
        lambda: keys.discarded("", IDENTITY),
        lambda: keys.quarantined_identity("", "b"),
        lambda: keys.quarantined_identity("a", "b\x00"),
        lambda: keys.accepted_folder("a" * 121, "b"),
        lambda: keys.audit_entry(-1, ACTION),
        lambda: keys.audit_entry(0, "../x"),
        lambda: keys.audit_entry(0, ACTION.upper()),
        lambda: keys.overlaps_folder(""),
        lambda: keys.identity_conflicts_folder("\x00"),
        lambda: chunk_keys.chunk_manifest(HOUR, "../x", 1),
        lambda: chunk_keys.chunk_manifest(HOUR, "5m", -1),
        lambda: chunk_keys.chunk_manifest(HOUR, "5m", 10**20),
        lambda: chunk_keys.rollup_chunk("5m", HOUR, "\ud800", "c"),
        lambda: chunk_keys.rollup_chunk("5m", HOUR, "m", "a/b"),
        lambda: chunk_keys.index_chunk(HOUR, "."),
    ],
)
def test_what_cannot_stand_in_a_key_is_refused(make: Callable[[], str]) -> None:
    with pytest.raises((InvalidKeyPart, InvalidIdentity)):
        make()


@pytest.mark.parametrize(
    ("agent_id", "boot_id", "start", "end"),
    [
        ("", "b", 0, 0),
        ("a", "", 0, 0),
        ("é" * 61, "b", 0, 0),
        ("a\n", "b", 0, 0),
        ("a", "\x9f", 0, 0),
        ("\ud800", "b", 0, 0),
        ("a", "b", -1, 0),
        ("a", "b", 1, 0),
        ("a", "b", 0, 2**63 - 1),
    ],
)
def test_what_is_no_identity_is_refused(agent_id: str, boot_id: str, start: int, end: int) -> None:
    with pytest.raises(InvalidIdentity):
        BatchIdentity(agent_id, boot_id, start, end)


def test_overlaps_are_ranges_of_one_boot_with_a_common_number() -> None:
    assert IDENTITY.overlaps(BatchIdentity("agent-a", "boot-uuid", 20, 30))
    assert IDENTITY.overlaps(IDENTITY)
    assert not IDENTITY.overlaps(BatchIdentity("agent-a", "boot-uuid", 21, 30))
    assert not IDENTITY.overlaps(BatchIdentity("agent-a", "other", 10, 20))


PARSERS: list[tuple[Callable[[str], object], str]] = [
    (keys.parse_raw_blob, KEYS["raw_blob"]),
    (keys.parse_raw_blob_by_time, KEYS["raw_blob_by_time"]),
    (keys.parse_accepted, KEYS["accepted"]),
    (keys.parse_voiding, KEYS["voiding"]),
    (keys.parse_accepted_by_time, KEYS["accepted_by_time"]),
    (keys.parse_accepted_by_blob, KEYS["accepted_by_blob"]),
    (keys.parse_identity_conflict, KEYS["identity_conflict"]),
    (keys.parse_overlap, KEYS["overlap"]),
    (keys.parse_quarantine_by_blob, KEYS["quarantine_by_blob"]),
    (keys.parse_quarantined_identity, KEYS["quarantined_identity"]),
    (keys.parse_resolution, KEYS["resolution"]),
    (keys.parse_repair, KEYS["repair"]),
    (keys.parse_retired, KEYS["retired"]),
    (keys.parse_discarded, KEYS["discarded"]),
    (keys.parse_audit_entry, KEYS["audit_entry"]),
    (chunk_keys.parse_chunk_manifest, KEYS["chunk_manifest"]),
    (chunk_keys.parse_rollup_chunk, KEYS["rollup_chunk_of_an_odd_metric"]),
    (chunk_keys.parse_rollup_chunk, KEYS["rollup_chunk_of_a_long_metric"]),
    (chunk_keys.parse_index_chunk, KEYS["index_chunk"]),
]


@pytest.mark.parametrize(("parse", "key"), PARSERS, ids=[parse.__name__ for parse, _ in PARSERS])
def test_a_parser_takes_only_what_its_builder_makes(parse: Callable[[str], object], key: str) -> None:
    assert parse(key) is not None
    for at in range(len(key)):
        for wrong in (key[:at] + key[at + 1 :], key[:at] + "/" + key[at:], key[:at] + "%" + key[at + 1 :]):
            assert wrong == key or parse(wrong) is None or parse(wrong) != parse(key)
    for other in (*KEYS.values(), "", "/", key + "/", "/" + key, key + "\n", key.upper()):
        if other != key:
            assert parse(other) is None or parse(other) != parse(key)


@given(
    st.text()
    | st.sampled_from(sorted(KEYS.values())).flatmap(lambda key: st.text().map(lambda t: key[: len(key) // 2] + t))
)
def test_whatever_a_listing_holds_parsing_it_never_fails(key: str) -> None:
    for parse, _ in PARSERS:
        parse(key)
