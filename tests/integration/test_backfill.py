"""`lakehead consume backfill` on Spark: what landed and was forgotten lands no second time, what is new lands."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakehead.run.consume_wiring import Backfill
from lakehead.state.model import PruneLimits
from tests.integration.consume_support import Pipeline


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path)


def forget(pipeline: Pipeline) -> int:
    """Prune every landed unit, as when the deduplication window is over."""
    with pipeline.state() as state:
        units = [shard.unit for shard in state.shards.page(pipeline.uuid, limit=100)]
        state.shards.acknowledge(pipeline.uuid, units)
        limits = PruneLimits(timedelta(microseconds=1), most_shards=0)
        state.pruning.record(pipeline.uuid, "files", limits)
        pruned = state.pruning.prune(
            pipeline.uuid, owner="test", pipeline="files", limits=limits, every=timedelta(microseconds=1)
        )
        assert not state.shards.page(pipeline.uuid, limit=100)
    return pruned.expired + pruned.over_limit if pruned else 0


def test_a_backfill_lands_what_is_new_and_nothing_that_has_landed_however_long_ago(pipeline: Pipeline) -> None:
    pipeline.configure([pipeline.write("a.json", {"n": 1}), pipeline.write("b.json", {"n": 2}, {"n": 3})])
    assert pipeline.run() == 0
    assert forget(pipeline) == 2
    pipeline.write("c d.json", {"n": 4})
    pipeline.write("half.json.tmp", {"n": 5})

    codes = [pipeline.run(Backfill(url=str(pipeline.inbox))) for _ in range(2)]

    assert codes == [0, 0]
    assert pipeline.files() == ["a.json", "b.json", "b.json", "c%20d.json"]
    with pipeline.state() as state:
        acknowledged = [shard.acknowledged_at for shard in state.shards.page(pipeline.uuid, limit=100)]
    assert len(acknowledged) == 3
    assert None not in acknowledged  # they are pruned when the window is over


def test_a_backfill_can_be_of_files_that_were_modified_lately(pipeline: Pipeline) -> None:
    pipeline.write("a.json", {"n": 1})

    nothing = pipeline.run(Backfill(url=str(pipeline.inbox), modified_after=datetime(2100, 1, 1, tzinfo=UTC)))
    before = [path.name for path in (pipeline.folder / "lakehouse").rglob("*.parquet")]
    some = pipeline.run(Backfill(url=pipeline.inbox.as_uri(), modified_after=datetime(2000, 1, 1, tzinfo=UTC)))

    assert (nothing, before, some) == (0, [], 0)
    assert pipeline.files() == ["a.json"]
