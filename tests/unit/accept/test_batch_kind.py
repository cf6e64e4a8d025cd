"""What the records of a batch are is told by its manifest, else by its frame, and never guessed."""

from hashlib import sha256

import msgspec
import pytest

from lakehead.accept.batch_kind import batch_kind, head_kind
from lakehead.clock import SystemClock
from lakehead.storage.memory_store import MemoryStore
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.errors import NewerFormat
from lakehead.wire.frame import peek_frame
from lakehead.wire.record_schemas import FrameKind
from tests.support.async_tests import async_test
from tests.unit.wire.frames import frame

BODY = frame(FrameKind.LOGS)
NEWER = BODY[:8] + b"\xff\xff" + BODY[10:]
SILENT = msgspec.structs.replace(
    IdentityManifest.of(peek_frame(BODY), sha256(BODY).hexdigest(), accepted_at_unix_ns=1, collector_id="gateway-1"),
    kind="",
)
"""As older gateways wrote it."""


@pytest.mark.parametrize(
    ("stored", "kind"),
    [(BODY, FrameKind.LOGS), (b"damaged", None), (BODY[:20], None), (NEWER, None), (None, None)],
    ids=["whole", "damaged", "cut", "newer", "missing"],
)
@async_test
async def test_a_frame_tells_the_kind_if_the_manifest_does_not(stored: bytes | None, kind: FrameKind | None) -> None:
    store = MemoryStore(clock=SystemClock())
    if stored is not None:
        await store.put(SILENT.raw_blob_key, stored)

    assert await batch_kind(SILENT, store) is kind


@pytest.mark.parametrize(("word", "kind"), [("samples", FrameKind.SAMPLES), ("logs", FrameKind.LOGS), ("spans", None)])
@async_test
async def test_what_the_manifest_tells_is_believed_without_a_look_at_the_frame(
    word: str, kind: FrameKind | None
) -> None:
    assert await batch_kind(msgspec.structs.replace(SILENT, kind=word), MemoryStore(clock=SystemClock())) is kind


def test_a_frame_of_a_newer_lakehead_is_not_damaged() -> None:
    with pytest.raises(NewerFormat):
        head_kind(NEWER)


def test_kinds_are_named_as_in_records() -> None:
    assert [FrameKind.named(kind.word) for kind in FrameKind] == list(FrameKind)
    assert [FrameKind.named(word) for word in ("", "SAMPLES", "spans")] == [None] * 3
