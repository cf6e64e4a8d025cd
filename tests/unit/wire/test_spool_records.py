"""What a spool keeps on its disk is as it always was, and its names can be read back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.wire import spool_records as files
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import MAX_SEQUENCE, BatchIdentity
from lakehead.wire.stored_record import StoredRecord

GOLDEN = Path(__file__).parents[2] / "golden" / "accept"
IDENTITY = BatchIdentity("agent-a", "boot-uuid", 10, 20)
MANIFEST = IdentityManifest(
    agent_id="agent-a",
    boot_id="boot-uuid",
    seq_start=10,
    seq_end=20,
    frame_sha256="ab" * 32,
    frame_bytes=12345,
    raw_blob_key=f"raw-blobs/v1/sha256/ab/ab/{'ab' * 32}.lmbatch",
    accepted_at_unix_ns=1_760_000_000_000_000_001,
    collector_id="gateway-1",
    wire_version=1,
    frame_version=1,
    nonce="nonce",
    kind="samples",
    spooled_at_unix_ns=1_760_000_000_000_000_000,
)
RECORDS: dict[str, StoredRecord] = {
    "spool.v1.json": files.SpoolRecord(
        spool_id="spool-1", authority_id="authority-1", created_at_unix_ns=1_760_000_000_000_000_000
    ),
    "spool-void.v1.json": files.SpoolVoid(
        agent_id="agent-a",
        boot_id="boot-uuid",
        seq_start=10,
        seq_end=20,
        voided_at_unix_ns=1_760_000_000_000_000_000,
    ),
    "spool-boot.v1.json": files.KnownBoot(
        agent_id="agent-a", boot_id="boot-uuid", spans=((0, 21), (40, 50)), voiding=((60, 69),), recent=(MANIFEST,)
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_is_as_it_always_was(name: str) -> None:
    record, stored = RECORDS[name], (GOLDEN / name).read_bytes()

    assert type(record).decode(stored, record.key) == record
    assert record.encode() == stored.rstrip(b"\n")


@given(
    st.sampled_from(["a", "../x", "é" * 60, "." * 120]),
    st.sampled_from(["b", "/", "z" * 120]),
    st.tuples(st.integers(0, MAX_SEQUENCE), st.integers(0, MAX_SEQUENCE)),
)
def test_the_names_of_files_can_be_read_back_and_fit_any_file_system(
    agent: str, boot: str, numbers: tuple[int, int]
) -> None:
    identity = BatchIdentity(agent, boot, min(numbers), max(numbers))
    batch, kept = files.spooled_batch(identity), files.set_aside(files.KEPT, identity, numbers[0])
    void = files.SpoolVoid(
        agent_id=agent, boot_id=boot, seq_start=identity.seq_start, seq_end=identity.seq_end, voided_at_unix_ns=1
    )

    assert files.parse_spooled_batch(batch) == files.parse_set_aside(kept) == files.parse_void(void.key) == identity
    assert files.parse_known_boot(files.known_boot(agent, boot)) == (agent, boot)
    assert all(len(part) <= 255 for name in (batch, kept, void.key) for part in name.split("/"))
    for other in ("", "batches/x.lmbatch", f"{batch}.tmp", f"{kept}/x", void.key.replace("voids", "other")):
        assert files.parse_spooled_batch(other) is files.parse_set_aside(other) is files.parse_void(other) is None


def test_a_boot_says_what_the_store_has_to_be_asked_about() -> None:
    boot = RECORDS["spool-boot.v1.json"]
    assert isinstance(boot, files.KnownBoot)

    asked = [
        boot.may_be_in_store(BatchIdentity("agent-a", "boot-uuid", *each))
        for each in ((21, 39), (20, 25), (39, 40), (50, 60), (45, 46))
    ]

    assert asked == [False, True, True, False, True]
    assert boot.may_become_void(BatchIdentity("agent-a", "boot-uuid", 60, 69))
    assert boot.landed(IDENTITY) == MANIFEST
