"""Flushes that fail in the background reach the log: once for each cause, and once more when they work again."""

import logging

import pytest

from lakehead.errors import LakeheadError
from lakehead.wire.batch import KeyValueEntry
from tests.unit.buffer.scene import DOWN, LOST, PAIR, Scene, batches, entries, play, writes


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="lakehead")
    return caplog


def lines(told: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in told.records if record.name == "lakehead.buffer"]


def test_a_long_outage_is_logged_once_and_its_end_with_how_many_batches_it_cost(
    told: pytest.LogCaptureFixture,
) -> None:
    async def story(scene: Scene) -> None:
        told.clear()
        ingestor = scene.ingestor()
        scene.store.break_(batches, DOWN)
        for _ in range(20):
            await ingestor.ingest(entries("x"))
            await scene.later(10)
        [first] = lines(told)
        assert PAIR.producer in first
        assert "the store is down" in first
        assert "ingest again" in first
        scene.store.mend()
        for _ in range(3):
            await ingestor.ingest(entries("x"))
            await scene.later(10)
        [_, over] = lines(told)
        assert "meanwhile: 20." in over
        await ingestor.close()
        assert len(lines(told)) == 2

    play(story)


def test_the_next_outage_is_logged_again(told: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        told.clear()
        ingestor = scene.ingestor()
        for times in (1, 2):
            scene.store.break_(batches, DOWN)
            await ingestor.ingest(entries("x"))
            await scene.later(10)
            scene.store.mend()
            await ingestor.ingest(entries("x"))
            await scene.later(10)
            assert len(lines(told)) == 2 * times
        await ingestor.close()

    play(story)


def test_another_cause_in_one_outage_is_logged_too(told: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        told.clear()
        ingestor = scene.ingestor()
        for which, error in ((batches, DOWN), (writes(PAIR.producer), LOST)):
            scene.store.break_(which, error)
            for _ in range(3):
                await ingestor.ingest(entries("x"))
                await scene.later(600)
            scene.store.mend()
        first, second = lines(told)
        assert "the store is down" in first
        assert "may be queued" in second
        await ingestor.close()
        assert "failed: 6." in lines(told)[-1], "it was not over when the ingestor was closed"

    play(story)


def test_partitions_that_fail_together_are_one_outage(told: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        told.clear()
        ingestor = scene.ingestor(partitions=8)
        scene.store.break_(batches, DOWN)
        for number in range(40):
            await ingestor.ingest([KeyValueEntry(str(number).encode(), b"")])
        with pytest.raises(LakeheadError):
            await ingestor.flush()
        assert len(lines(told)) == 1
        await ingestor.close()

    play(story)


def test_what_works_is_not_logged(told: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abc")
        assert lines(told) == []

    play(story)
