"""`lakehead queue repartition` and `purge`: what they change, and what they refuse."""

import pytest

from tests.unit.run.queue_support import PRODUCER, Lake, everything


def test_repartition_changes_a_drained_queue_and_tells_what_it_was(lake: Lake) -> None:
    lake.ingest("one", partitions=2)
    lake.collect(everything)

    done = lake.queue("repartition", "3")

    assert (done.code, done.out) == (0, f"The queue {PRODUCER} has 3 partitions; it had 2\n")
    lake.ingest("two", partitions=3)
    assert {entry.value for batch in lake.collect(everything) for entry in batch.entries} == {b"two"}
    assert lake.queue("verify").code == 0


def test_repartition_of_a_queue_in_which_something_waits_is_refused_and_changes_nothing(lake: Lake) -> None:
    lake.ingest("one", partitions=2)

    done = lake.queue("repartition", "3")

    assert done.code == 1
    assert "are not acknowledged yet. Stop the ingestors, let the collectors finish, and try again." in done.err
    lake.ingest("two", partitions=2)


@pytest.mark.parametrize("command", [("repartition", "2"), ("purge", "--yes"), ("purge", "--dry-run")])
def test_a_queue_that_is_not_there_is_not_made(lake: Lake, command: tuple[str, ...]) -> None:
    done = lake.queue(*command)

    assert done.code == 2
    assert done.err.startswith(f"lakehead: There is no queue at {PRODUCER}")
    assert lake.everything() == {}


@pytest.mark.parametrize("command", [("repartition", "3"), ("purge", "--yes"), ("purge", "--dry-run")])
def test_a_partition_is_not_taken_for_a_queue(lake: Lake, command: tuple[str, ...]) -> None:
    lake.ingest("one", "two", partitions=2)
    lake.collect(everything)
    before = lake.everything()

    done = lake.queue(*command, "--manifest", "ingest/manifest.p1.json")

    assert done.code == 2
    assert f"belongs to the queue {PRODUCER!r}, not to 'ingest/manifest.p1.json'" in done.err
    assert lake.everything() == before


@pytest.mark.parametrize("number", ["0", "-1", "5000", "many"])
def test_a_number_of_partitions_that_no_queue_has_is_refused(lake: Lake, number: str) -> None:
    lake.ingest("one")
    lake.collect(everything)

    assert lake.queue("repartition", number).code == 2
    assert lake.read(PRODUCER)["partitions"] == 1


def test_purge_removes_what_waits_with_its_batches(lake: Lake) -> None:
    lake.ingest("one", "two", partitions=2)
    count = len(lake.batches())
    before = lake.everything()

    assert lake.queue("purge", "--dry-run").out == f"{count} locations would be removed\n"
    assert lake.everything() == before

    assert lake.queue("purge", "--yes", "--json").json == {"locations": count, "purged": True}
    assert lake.batches() == set()
    assert lake.collect(everything) == []
    assert lake.queue("verify").code == 0


def test_purge_asks_first_and_removes_nothing_where_nobody_can_be_asked(lake: Lake) -> None:
    lake.ingest("one")
    before = lake.everything()

    done = lake.queue("purge")

    assert done.code == 2
    assert (
        "1 locations are waiting in ingest/manifest.json, and there is no terminal to ask for confirmation." in done.err
    )
    assert lake.everything() == before
