"""The small objects of a queue are stored as they always were, and what is something else is refused."""

import pytest

from lakehead.wire.errors import Unreadable
from lakehead.wire.queue_records import PrefixOwnerRecord, QuarantineNote

OWNER = PrefixOwnerRecord("ingest/manifest.json")
NOTE = QuarantineNote("ingest/a.batch", "It is damaged.", 1719400000000, ["ingest/manifest.quarantine/0.batch"])


def test_an_owner_is_stored_as_one_key() -> None:
    assert OWNER.encode() == b'{"manifest_path":"ingest/manifest.json"}'
    assert PrefixOwnerRecord.decode(OWNER.encode(), "ingest/_owner.json") == OWNER


def test_a_note_is_stored_with_its_keys_only_if_it_has_some() -> None:
    assert NOTE.encode() == (
        b'{"location":"ingest/a.batch","reason":"It is damaged.","at_ms":1719400000000,'
        b'"keys":["ingest/manifest.quarantine/0.batch"]}'
    )
    without = QuarantineNote("a", "b", 1)
    assert without.encode() == b'{"location":"a","reason":"b","at_ms":1}'
    for note in (NOTE, without):
        assert QuarantineNote.decode(note.encode(), "key") == note


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"manifest_path": 1, "location": 1}', b"\xff", b"[" * 10_000])
def test_what_is_no_record_is_unreadable_and_named(body: bytes) -> None:
    with pytest.raises(Unreadable, match=r"ingest/_owner\.json.*Repair it"):
        PrefixOwnerRecord.decode(body, "ingest/_owner.json")
    with pytest.raises(Unreadable, match=r"quarantine note 0\.json.*Repair it"):
        QuarantineNote.decode(body, "0.json")
