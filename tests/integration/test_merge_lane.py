"""Merging in Arrow, against Spark's MERGE of the same changes: row for row the same, whoever else writes."""

from collections.abc import Iterator
from random import Random
from warnings import catch_warnings, simplefilter

import pytest

from tests.integration.merge_support import SHAPES, Mirrors, Shape
from tests.lakehouse import Lakehouse
from tests.support.effort import effort
from tests.support.spark import shared_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("merges")
    settings = Lakehouse.settings(folder)
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    yield lakehouse
    lakehouse.close()


def mirrors(lakehouse: Lakehouse, shape: Shape, seed: int, name: str = "h") -> Mirrors:
    return Mirrors(lakehouse, shape, Random(f"{shape.name} {seed}"), f"{name}_{shape.name}_{seed}")


def unique(there: Mirrors, first: int, last: int) -> list[dict[str, object]]:
    """One row for each of these keys, so that the mirrors start without duplicates."""
    rows = [there.rows(1, keys=[n])[0] for n in range(first, last)]
    return list({tuple(row[key] for key in there.rule.keys): row for row in rows}.values())


def outsider(there: Mirrors, step: int) -> None:
    """Another writer appends, deletes or compacts, or does nothing."""
    match there.random.choice(("nothing", "append", "delete", "spark", "compact", "deletes")):
        case "append":
            new = there.rows(3, keys=range(1_000 + 10 * step, 1_003 + 10 * step))
            rows = {tuple(row[key] for key in there.rule.keys): row for row in new}
            there.start([row for key, row in rows.items() if None not in key])
        case "delete":
            with catch_warnings():
                simplefilter("ignore", UserWarning)  # PyIceberg writes files again where Spark would delete by position
                there.outside(lambda table: table.load().delete(f"n < {100_000 * (step % 5)}"))
        case "spark":
            there.sql("DELETE FROM {table} WHERE n % 5 = 1")
        case "compact":
            there.outside(
                lambda table: there.spark.sql(
                    f"CALL lake.system.rewrite_data_files(table => '{table.name}', "
                    "options => map('rewrite-all', 'true'))"
                )
            )
        case "deletes" if there.shape.mode == "merge-on-read":
            there.outside(
                lambda table: there.spark.sql(
                    f"CALL lake.system.rewrite_position_delete_files(table => '{table.name}', "
                    "options => map('rewrite-all', 'true'))"
                )
            )


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("seed", range(effort(1, soak=20)))
def test_random_histories_are_merged_as_spark_merges_them(lakehouse: Lakehouse, shape: Shape, seed: int) -> None:
    there = mirrors(lakehouse, shape, seed)
    there.start(unique(there, 0, 10), unique(there, 10, 30))
    for step in range(effort(2, soak=12)):
        for _ in range(there.random.choice((1, 1, 2))):
            there.land(there.rows(there.random.choice((1, 5, 20)), late=step % 2 == 1))
        there.merge_both(there.by_spark(there.lane) if shape.tiebreaks == 0 else None)
        there.check()
        outsider(there, step)
    there.check()
