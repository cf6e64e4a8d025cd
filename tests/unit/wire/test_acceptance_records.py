"""Records of acceptance are stored as they always were; what is damaged, newer or misplaced is told apart."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid, decode_at_identity
from lakehead.wire.audit_records import AuditEntry
from lakehead.wire.authority_records import (
    AuthorityRecord,
    OpenSpool,
    ReconcilerHeartbeat,
    TokenEntry,
    TokenList,
    token_sha256,
)
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import (
    MOST_RANGES,
    ConflictResolution,
    OverlapManifest,
    OverlappedBatch,
    QuarantinedIdentity,
    QuarantineManifest,
    as_ranges,
)
from lakehead.wire.errors import InvalidRecord, NewerFormat, Unreadable
from lakehead.wire.frame import decode_frame, frame_sha256
from lakehead.wire.index_records import AcceptedByBlob, AcceptedByTime, QuarantineByBlob, RawBlobByTime
from lakehead.wire.maintenance_records import (
    BatchRepair,
    ColdScan,
    CompletedAudit,
    DiscardedBatch,
    ReconcilerCheckpoint,
    RetiredBatch,
)
from lakehead.wire.stored_record import StoredRecord, schema_name
from lakehead.wire.utc_hours import UtcHour
from tests.unit.wire.frames import frame

GOLDEN = Path(__file__).parents[2] / "golden" / "accept"
IDENTITY = BatchIdentity("agent-a", "boot-uuid", 10, 20)
ACCEPTED_HASH, SUBMITTED_HASH = "abcd" + "0" * 60, "dead" + "1" * 60
AT = 1_760_000_000_000_000_000
NONCE = "0c8a1c2e-5f0b-4a51-8a5a-1b2c3d4e5f60"
TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"

MANIFEST = IdentityManifest(
    agent_id="agent-a",
    boot_id="boot-uuid",
    seq_start=10,
    seq_end=20,
    frame_sha256=ACCEPTED_HASH,
    frame_bytes=12345,
    raw_blob_key=keys.raw_blob(ACCEPTED_HASH),
    accepted_at_unix_ns=AT,
    collector_id="collector-1",
    wire_version=1,
    frame_version=1,
)
VOID = IdentityVoid(
    agent_id="agent-a",
    boot_id="boot-uuid",
    seq_start=10,
    seq_end=20,
    frame_sha256=ACCEPTED_HASH,
    voided_at_unix_ns=AT,
    voided_by="gc-1",
    nonce=NONCE,
)
CONFLICT = QuarantineManifest.of(MANIFEST, SUBMITTED_HASH, observed_at_unix_ns=AT, collector_id="collector-2")
OTHER = msgspec.structs.replace(
    MANIFEST, seq_start=15, seq_end=30, frame_sha256=SUBMITTED_HASH, raw_blob_key=keys.raw_blob(SUBMITTED_HASH)
)
OVERLAPPED = OverlappedBatch(
    accepted_manifest_key=OTHER.key,
    raw_blob_key=OTHER.raw_blob_key,
    frame_sha256=OTHER.frame_sha256,
    ranges=((15, 17), (19, 19)),
)
OVERLAP = msgspec.structs.replace(
    OverlapManifest.of(
        IDENTITY, ACCEPTED_HASH, [OVERLAPPED], table="table-uuid", observed_at_unix_ns=AT, observed_by="landing-1"
    ),
    nonce=NONCE,
)

RECORDS: dict[str, StoredRecord] = {
    "identity-manifest": MANIFEST,
    "identity-manifest-with-nonce": msgspec.structs.replace(MANIFEST, nonce=NONCE),
    "identity-void": VOID,
    "quarantine-manifest": CONFLICT,
    "conflict-resolution": ConflictResolution(
        agent_id="agent-a",
        boot_id="boot-uuid",
        seq_start=10,
        seq_end=20,
        submitted_frame_sha256=SUBMITTED_HASH,
        accepted_frame_sha256=ACCEPTED_HASH,
        resolution="accept_existing",
        resolved_at_unix_ns=AT,
        resolved_by="ann",
        note="a cloned disk",
        version=1,
        nonce=NONCE,
    ),
    "quarantined-identity": QuarantinedIdentity(
        agent_id="agent-a",
        boot_id="boot-uuid",
        state="quarantined",
        reason="two machines",
        changed_at_unix_ns=AT,
        changed_by="ann",
        version=3,
        nonce=NONCE,
    ),
    "overlap-manifest": OVERLAP,
    "audit-entry": AuditEntry(
        action_id=NONCE,
        at_unix_ns=AT,
        by="ann",
        action="release",
        subject=keys.quarantined_identity("agent-a", "boot-uuid"),
        because_of=CONFLICT.key,
        before={"state": "quarantined", "version": 3},
        after={"state": "released"},
    ),
    "accepted-by-time": AcceptedByTime.of(MANIFEST),
    "accepted-by-blob": AcceptedByBlob.of(MANIFEST),
    "quarantine-by-blob": QuarantineByBlob.of(CONFLICT),
    "raw-blob-by-time": RawBlobByTime.of(IDENTITY, ACCEPTED_HASH, 12345),
    "authority": AuthorityRecord(
        authority_id="7d9f6c1e-2f57-4a39-9f43-0f1f5f9f6a01",
        bucket="metrics",
        prefix="prod",
        mode="local_spool",
        epoch=2,
        open_spools=(
            OpenSpool(spool_id="s1", collector_id="collector-1", address="http://127.0.0.1:9000", opened_at_unix_ns=AT),
        ),
        version=5,
        nonce=NONCE,
    ),
    "tokens": TokenList(
        tokens=(
            TokenEntry(token_id="t1", token_sha256=token_sha256("secret"), agent_id="agent-a", created_at_unix_ns=AT),
            TokenEntry(token_id="t2", token_sha256=token_sha256("other"), role="viewer", created_at_unix_ns=AT),
        ),
        version=2,
        nonce=NONCE,
    ),
    "reconciler-heartbeat": ReconcilerHeartbeat(reconciler_id="r1", beat_at_unix_ns=AT, version=9, nonce=NONCE),
    "repair": msgspec.structs.replace(
        BatchRepair.of(MANIFEST, "corrupt", found_at_unix_ns=AT, found_by="r1"),
        state="healed",
        healed_at_unix_ns=AT + 1,
        version=2,
        nonce=NONCE,
    ),
    "retired-batch": RetiredBatch.of(IDENTITY, ACCEPTED_HASH, at_unix_ns=AT, by="gc-1"),
    "discarded-batch": DiscardedBatch.of(TABLE, IDENTITY, at_unix_ns=AT, by="ann", reason="a test", nonce=NONCE),
    "reconciler-checkpoint": ReconcilerCheckpoint(
        reconciled_through_unix_ns=AT,
        cold_scan=ColdScan(begun_at_unix_ns=AT, last_key=MANIFEST.key, seen=7),
        version=3,
        nonce=NONCE,
    ),
    "completed-audit": CompletedAudit(
        begun_at_unix_ns=AT,
        ended_at_unix_ns=AT + 1,
        accepted=3,
        voids=1,
        quarantined=1,
        repaired=2,
        problems=0,
        audited_by="r1",
        version=4,
        nonce=NONCE,
    ),
}
OPTIONAL = {"cold_scan"}
"""What a record may lack, or have as null."""

EACH = pytest.mark.parametrize("name", sorted(RECORDS))


def key_of(record: StoredRecord) -> str:
    return record.key_in(UtcHour.of(AT)) if isinstance(record, RawBlobByTime) else record.key


@EACH
def test_a_record_is_stored_as_it_always_was(name: str) -> None:
    record = RECORDS[name]
    stored = (GOLDEN / f"{name}.v1.json").read_bytes()

    assert record.encode() == stored
    assert type(record).decode(stored, key_of(record)) == record


def test_the_manifests_of_the_specification_are_met_to_the_letter() -> None:
    assert json.loads(MANIFEST.encode()) == {
        "schema": "lightmetrics.accepted_batch.v1",
        "agent_id": "agent-a",
        "boot_id": "boot-uuid",
        "seq_start": 10,
        "seq_end": 20,
        "frame_sha256": ACCEPTED_HASH,
        "frame_bytes": 12345,
        "raw_blob_key": f"raw-blobs/v1/sha256/ab/cd/{ACCEPTED_HASH}.lmbatch",
        "accepted_at_unix_ns": 1760000000000000000,
        "collector_id": "collector-1",
        "wire_version": 1,
        "frame_version": 1,
    }
    assert json.loads(CONFLICT.encode()) == {
        "schema": "lightmetrics.identity_conflict.v1",
        "agent_id": "agent-a",
        "boot_id": "boot-uuid",
        "seq_start": 10,
        "seq_end": 20,
        "accepted_manifest_key": MANIFEST.key,
        "accepted_raw_blob_key": f"raw-blobs/v1/sha256/ab/cd/{ACCEPTED_HASH}.lmbatch",
        "accepted_frame_sha256": ACCEPTED_HASH,
        "submitted_raw_blob_key": f"raw-blobs/v1/sha256/de/ad/{SUBMITTED_HASH}.lmbatch",
        "submitted_frame_sha256": SUBMITTED_HASH,
        "observed_at_unix_ns": 1760000000000000000,
        "collector_id": "collector-2",
    }


@EACH
def test_more_keys_in_another_order_are_tolerated(name: str) -> None:
    record = RECORDS[name]
    more = {"zzz": [1, {"a": None}], **dict(reversed(json.loads(record.encode()).items())), "other": "x"}

    assert type(record).decode(json.dumps(more, indent=2).encode(), key_of(record)) == record


@EACH
def test_a_record_of_a_newer_version_is_newer_and_not_damaged(name: str) -> None:
    record = RECORDS[name]
    schema = schema_name(type(record))
    newer = msgspec.json.encode({"schema": schema.removesuffix("1") + "2", "anything": 1})

    with pytest.raises(NewerFormat, match="Update this reader"):
        type(record).decode(newer, key_of(record))


@EACH
def test_each_key_of_a_record_is_needed_unless_it_has_a_default(name: str) -> None:
    record = RECORDS[name]
    whole = json.loads(record.encode())

    for left_out in set(whole) - {"nonce", "note", "reason", "open_spools", "because_of", "before", "after", *OPTIONAL}:
        rest = msgspec.json.encode({key: value for key, value in whole.items() if key != left_out})
        with pytest.raises(Unreadable) as caught:
            type(record).decode(rest, key_of(record))
        assert key_of(record) in str(caught.value)


@EACH
@pytest.mark.parametrize("wrong", [None, -1, 2**63, 1.5, "", "x" * 2000, [], {}, True, "\x00", "../x"])
def test_no_key_takes_a_value_of_another_form(name: str, wrong: object) -> None:
    record = RECORDS[name]
    whole = json.loads(record.encode())

    for key in set(whole) - {"nonce", "note", "reason", "prefix", "because_of", "before", "after", *OPTIONAL}:
        body = msgspec.json.encode({**whole, key: wrong})
        try:
            decoded = type(record).decode(body, key_of(record))
        except Unreadable:
            continue
        # Names are free, and a list of tokens or spools may be empty.
        assert (isinstance(wrong, str) and 0 < len(wrong) <= 1024) or wrong == []
        assert key_of(decoded) == key_of(record)


@EACH
def test_a_record_at_another_key_is_not_taken(name: str) -> None:
    record = RECORDS[name]

    for other in (key_of(each) for each in RECORDS.values() if key_of(each) != key_of(record)):
        with pytest.raises(Unreadable):
            type(record).decode(record.encode(), other)


@EACH
def test_a_record_is_not_taken_for_another(name: str) -> None:
    record = RECORDS[name]

    for other in RECORDS.values():
        if type(other) is not type(record):
            with pytest.raises(Unreadable) as caught:
                type(record).decode(other.encode(), key_of(record))
            assert not isinstance(caught.value, NewerFormat)


@EACH
def test_a_record_that_is_cut_or_too_long_is_refused(name: str) -> None:
    record, body = RECORDS[name], RECORDS[name].encode()

    for end in range(len(body)):
        with pytest.raises(Unreadable):
            type(record).decode(body[:end], key_of(record))
    with pytest.raises(Unreadable, match="no record has more than"):
        type(record).decode(body + b" " * type(record).MAX_BYTES, key_of(record))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda deeper: st.lists(deeper, max_size=3) | st.dictionaries(st.text(max_size=5), deeper, max_size=3),
    max_leaves=8,
)
field_names = st.sampled_from(sorted({key for each in RECORDS.values() for key in json.loads(each.encode())}))


@given(st.binary(max_size=200), st.sampled_from(sorted(RECORDS)), st.dictionaries(field_names, json_values, max_size=3))
def test_whatever_is_stored_the_answer_is_a_record_or_unreadable(
    noise: bytes, name: str, changes: dict[str, object]
) -> None:
    record = RECORDS[name]
    changed = json.dumps({**json.loads(record.encode()), **changes}).encode()
    for body in (
        noise,
        b"{" + noise,
        record.encode()[:60] + noise,
        changed,
        b"[" * 100_000,
        b"\xff",
        b'{"schema":"\\ud800"}',
    ):
        try:
            decoded = type(record).decode(body, key_of(record))
        except Unreadable:
            continue
        assert type(record).decode(decoded.encode(), key_of(record)) == decoded
    for body in (noise, changed):
        try:
            assert decode_at_identity(body, IDENTITY).identity == IDENTITY
        except Unreadable:
            continue


def test_what_stands_at_an_identity_is_accepted_or_void_and_never_guessed() -> None:
    assert decode_at_identity(MANIFEST.encode(), IDENTITY) == MANIFEST
    assert decode_at_identity(VOID.encode(), IDENTITY) == VOID
    for schema in ("lightmetrics.accepted_batch.v2", "lightmetrics.identity_void.v2", "lightmetrics.identity_void.v17"):
        with pytest.raises(NewerFormat):
            decode_at_identity(msgspec.json.encode({"schema": schema}), IDENTITY)
    for body in (
        b"",
        b"{}",
        CONFLICT.encode(),
        b'{"schema":"lightmetrics.identity_void.v0"}',
        b'{"schema":"other.v9"}',
    ):
        with pytest.raises(Unreadable) as caught:
            decode_at_identity(body, IDENTITY)
        assert not isinstance(caught.value, NewerFormat)
    with pytest.raises(Unreadable, match="another key"):
        decode_at_identity(MANIFEST.encode(), BatchIdentity("agent-a", "boot-uuid", 10, 21))


def test_a_manifest_that_names_another_blob_than_its_hash_is_refused() -> None:
    wrong = MANIFEST.encode().replace(b'lmbatch"', b'lmbatcc"')

    with pytest.raises(Unreadable, match="raw_blob_key"):
        IdentityManifest.decode(wrong, MANIFEST.key)
    with pytest.raises(ValueError, match="raw_blob_key"):
        msgspec.structs.replace(MANIFEST, raw_blob_key=keys.raw_blob(SUBMITTED_HASH)).__post_init__()


def test_the_manifest_of_a_frame_says_what_the_frame_says() -> None:
    body = frame(compress=True)
    decoded, digest = decode_frame(body), frame_sha256(body)

    manifest = IdentityManifest.of(decoded.header, digest, accepted_at_unix_ns=AT, collector_id="c", nonce=NONCE)

    assert (manifest.identity, manifest.frame_bytes, manifest.nonce) == (decoded.identity, len(body), NONCE)
    assert manifest.raw_blob_key == keys.raw_blob(digest)
    assert IdentityManifest.decode(manifest.encode(), keys.accepted(decoded.identity)) == manifest


def test_a_conflict_with_itself_is_none() -> None:
    with pytest.raises(ValueError, match="no conflict"):
        QuarantineManifest.of(MANIFEST, ACCEPTED_HASH, observed_at_unix_ns=AT, collector_id="c")


def overlap_of(*others: OverlappedBatch) -> OverlapManifest:
    return OverlapManifest.of(
        IDENTITY, ACCEPTED_HASH, others, table="table-uuid", observed_at_unix_ns=AT + 1, observed_by="landing-2"
    )


def test_an_overlap_names_another_batch_with_common_sequence_numbers() -> None:
    for other in (IDENTITY, BatchIdentity("agent-a", "boot-uuid", 21, 30)):
        with pytest.raises(ValueError, match="common sequence numbers"):
            overlap_of(msgspec.structs.replace(OVERLAPPED, accepted_manifest_key=keys.accepted(other)))
    for ranges in ((), ((9, 12),), ((20, 21),)):
        with pytest.raises(ValueError, match=r"no sequence number|are not sequence numbers"):
            overlap_of(msgspec.structs.replace(OVERLAPPED, ranges=ranges))
    assert QuarantineByBlob.of(OVERLAP).frame_sha256 == ACCEPTED_HASH
    assert QuarantineByBlob.of(OVERLAP).identity == IDENTITY


def test_the_first_sighting_of_an_overlap_stays_and_more_is_added_to_it() -> None:
    assert OVERLAP.with_more(overlap_of(OVERLAPPED)) is OVERLAP
    more = msgspec.structs.replace(
        OVERLAPPED,
        accepted_manifest_key=keys.accepted(BatchIdentity("agent-a", "boot-uuid", 0, 11)),
        ranges=((10, 11),),
    )
    both = OVERLAP.with_more(overlap_of(OVERLAPPED, more))
    assert (both.ranges, both.others) == (((10, 11), (15, 17), (19, 19)), (OVERLAPPED, more))
    assert (both.observed_at_unix_ns, both.observed_by) == (AT, "landing-1")
    assert both.with_more(overlap_of(more)) is both


def test_the_record_of_an_overlap_is_bounded_and_its_ranges_hold_every_number() -> None:
    identity = BatchIdentity("a" * 120, "b" * 120, 0, 2**62)
    alternate = as_ranges((2**60 + 2 * n, 2**60 + 2 * n + 1) for n in range(MOST_RANGES + 100))
    assert alternate[-1] == (2**60 + 2 * MOST_RANGES - 2, 2**60 + 2 * MOST_RANGES + 198)
    others = [
        msgspec.structs.replace(
            OVERLAPPED,
            accepted_manifest_key=keys.accepted(BatchIdentity("a" * 120, "b" * 120, n, 2**62)),
            ranges=alternate,
            not_compared="x" * 500,
        )
        for n in range(1, 300)
    ]
    record = OverlapManifest.of(
        identity, ACCEPTED_HASH, others, table="t" * 100, observed_at_unix_ns=2**62, observed_by="o" * 1024
    )
    assert OverlapManifest.decode(record.encode_checked(), record.key).ranges == alternate


@pytest.mark.parametrize("wrong", [1, "x", [], {"a": 2**63}, {"a": 1.5}, {"a": None}, {"a": {}}, {"a" * 257: 1}])
def test_what_an_audit_entry_says_before_and_after_is_flat(wrong: object) -> None:
    entry = RECORDS["audit-entry"]

    for key in ("before", "after"):
        with pytest.raises(Unreadable):
            AuditEntry.decode(msgspec.json.encode({**json.loads(entry.encode()), key: wrong}), entry.key)


def test_a_record_that_could_not_be_read_back_is_not_encoded() -> None:
    entry = msgspec.structs.replace(RECORDS["audit-entry"])
    assert entry.encode_checked() == entry.encode()

    for change in ({"by": ""}, {"by": "x" * 1025}, {"by": "\ud800"}, {"at_unix_ns": True}):
        with pytest.raises(InvalidRecord, match=keys.AUDIT):
            msgspec.structs.replace(entry, **change).encode_checked()
    with pytest.raises(InvalidRecord, match="at most 65,536"):
        msgspec.structs.replace(entry, after={"note": "x" * 70_000}).encode_checked()


def test_derived_entries_do_not_depend_on_who_makes_them_and_when() -> None:
    again = msgspec.structs.replace(MANIFEST, nonce="another", collector_id="collector-9")

    assert AcceptedByTime.of(again) == AcceptedByTime.of(MANIFEST)
    assert AcceptedByBlob.of(again) == AcceptedByBlob.of(MANIFEST)
    assert AcceptedByTime.of(MANIFEST).key == keys.accepted_by_time(MANIFEST.hour, IDENTITY)


def test_a_stored_token_does_not_show_its_secret_and_belongs_to_one_agent_or_role() -> None:
    assert b"secret" not in RECORDS["tokens"].encode()
    entry = TokenEntry(token_id="t", token_sha256=token_sha256("x"), role="admin", created_at_unix_ns=0)
    with pytest.raises(ValueError, match="either an agent_id or a role"):
        TokenEntry(token_id="t", token_sha256=token_sha256("x"), created_at_unix_ns=0)
    with pytest.raises(ValueError, match="either an agent_id or a role"):
        TokenEntry(token_id="t", token_sha256=token_sha256("x"), agent_id="a", role="admin", created_at_unix_ns=0)
    with pytest.raises(ValueError, match="same token_id"):
        TokenList(tokens=(entry, entry), version=1)
