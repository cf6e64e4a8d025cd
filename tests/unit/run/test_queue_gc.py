"""`lakehead queue gc`: what was never queued goes once it is old enough, and nothing else ever does."""

import pytest

from tests.unit.run.queue_support import PRODUCER, Lake, orphan


def test_gc_deletes_what_was_never_queued_and_is_old_enough_and_nothing_else(lake: Lake) -> None:
    lake.ingest("one", "two", partitions=2)
    live = lake.batches()
    old, young = orphan(lake, "1b9d6bcd", hours=13), orphan(lake, "2b9d6bcd", hours=1)
    before = lake.everything()

    would = lake.queue("gc", "--dry-run", "--grace", "12h")
    assert would.out.splitlines() == [old, "1 batches would be deleted"]
    assert lake.everything() == before
    assert lake.queue("gc", "--dry-run").out == "0 batches would be deleted\n"

    done = lake.queue("gc", "--grace", "12h", "--json")

    assert done.json == {"orphans": [old], "deleted": True}
    assert lake.batches() == {*live, young}
    assert [lake.read(key)["gc"] for key in (PRODUCER, "ingest/manifest.p1.json")] == [1, 1]
    assert lake.queue("verify").code == 0


@pytest.mark.parametrize("manifest", ["ingest/typo.json", "other/manifest.json"])
def test_gc_of_a_queue_that_is_not_there_deletes_nothing(lake: Lake, manifest: str) -> None:
    lake.ingest("one")
    orphan(lake, "1b9d6bcd", hours=100)
    before = lake.everything()

    done = lake.queue("gc", "--manifest", manifest, "--grace", "0s")

    assert done.code == 2
    assert done.err.startswith(f"lakehead: There is no queue at {manifest}")
    assert lake.everything() == before


def test_gc_leaves_a_queue_alone_whose_ingestors_do_not_know_of_it(lake: Lake) -> None:
    lake.by_hand()
    before = lake.everything()

    done = lake.queue("gc", "--grace", "0s")

    assert done.code == 2
    assert "does not have the prefix of the queue's batches" in done.err
    assert lake.everything() == before


def test_gc_stops_at_a_manifest_that_cannot_be_read(lake: Lake) -> None:
    lake.ingest("one", partitions=2)
    orphan(lake, "1b9d6bcd", hours=100)
    lake.write("ingest/manifest.p1.json", b"{")
    batches = lake.batches()

    done = lake.queue("gc")

    assert done.code == 1
    assert "ingest/manifest.p1.json cannot be read" in done.err
    assert lake.batches() == batches
