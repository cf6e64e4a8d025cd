"""Accepted batches are queued as entries that are durable when `put` returns, in a form that stays."""

from pathlib import Path

import msgspec
import pytest

from lakehead.buffer.collector import Collector
from lakehead.buffer.config import CollectorConfig, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.ingestor import Ingestor
from lakehead.errors import LakeheadError, Unavailable
from lakehead.gateway.landing_queue import BufferedLandingQueue
from lakehead.storage.port import Created, Exists
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import NewerFormat, Unreadable
from lakehead.wire.landing_entries import LandingEntry
from tests.support.async_tests import async_test
from tests.unit.accept.support import ScriptedStore, manifest_of, submitted

GOLDEN = Path(__file__).parents[2] / "golden" / "accept" / "landing-entry.v1.json"
PLACE = ObjectStoreConfig(url="memory://")
ENTRY = LandingEntry(kind="samples", frame_sha256="abcd" + "0" * 60, frame_bytes=12345)
MANIFESTS = [
    msgspec.structs.replace(manifest_of(submitted(b"x", BatchIdentity("agent", "boot", n, n))), kind="logs")
    for n in range(3)
]


@async_test
async def test_batches_are_in_the_queue_when_put_returns() -> None:
    store = ScriptedStore()
    async with Ingestor(IngestorConfig(object_store_config=PLACE), store=store) as ingestor:
        await BufferedLandingQueue(ingestor).put(MANIFESTS)
        async with Collector(CollectorConfig(object_store_config=PLACE), store=store) as collector:
            batch = await collector.next_batch()
            assert batch is not None
            found = {entry.key.decode(): LandingEntry.decode(entry.value, "key") for entry in batch.entries}
    assert found == {each.key: LandingEntry.of(each) for each in MANIFESTS}
    assert {each.kind for each in found.values()} == {"logs"}


class Refusing(ScriptedStore):
    async def create(self, key: str, body: bytes) -> Created | Exists:
        raise Unavailable(f"{key} of {len(body)} bytes: 503")


@async_test
async def test_batches_that_may_not_be_queued_are_an_error() -> None:
    ingestor = Ingestor(IngestorConfig(object_store_config=PLACE), store=Refusing())
    with pytest.raises(LakeheadError):
        await BufferedLandingQueue(ingestor).put(MANIFESTS)
    await ingestor.close()


def test_an_entry_is_stored_as_it_always_was() -> None:
    assert ENTRY.encode() == GOLDEN.read_bytes()
    assert LandingEntry.decode(GOLDEN.read_bytes(), "key") == ENTRY


def test_an_entry_may_say_more_and_need_not_say_the_kind() -> None:
    body = b'{"frame_sha256": "%s", "frame_bytes": 1, "later": []}' % (b"0" * 64)
    assert LandingEntry.decode(body, "key").kind == ""


OTHER_FORM = ENTRY.encode().replace(b"abcd", b"ABCD")
LONG = ENTRY.encode() + b" " * 5_000
NEWER = b'{"version": 2, ' + ENTRY.encode()[1:]


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b"\xff", b"[" * 4_000, OTHER_FORM, LONG, NEWER])
def test_what_is_no_entry_is_unreadable_and_named(value: bytes) -> None:
    with pytest.raises(Unreadable, match="accepted/v1/x"):
        LandingEntry.decode(value, "accepted/v1/x")


def test_an_entry_of_a_newer_version_is_not_taken_for_a_damaged_one() -> None:
    with pytest.raises(NewerFormat, match="accepted/v1/x has the version 2"):
        LandingEntry.decode(NEWER, "accepted/v1/x")
