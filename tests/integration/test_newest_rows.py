"""Which of the rows of one key counts: one rule, in every sink, for rows that are there and rows that come."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from datetime import timedelta
from itertools import product

import pytest
from pyspark.sql import SparkSession

from lakehead.extract.file_table_sink import ViewRows
from lakehead.extract.merging import DedupRule, counts_over, newest_of
from lakehead.spark.jobs import ThreadSessions
from tests.integration.sink_support import FILES_IN_SOAK, Kept, scd1

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Rank = tuple[int | None, ...]

RANKS: list[Rank] = list(product((None, 1, 2), repeat=3))
"""A watermark and two tiebreaks, each of them absent, small or large."""
PAIRS = list(enumerate(product(RANKS, RANKS)))
"""Every row that may be there with every one that may come, each pair under a key of its own."""

RULE = DedupRule(keys=("id",), watermark="at", tiebreaks=("version", "part"))


def counts(old: Rank, new: Rank) -> str:
    """The rule, in Python: NULL is smaller than any value, and of equal rows the one that was read later counts."""

    def ordered(rank: Rank) -> list[tuple[bool, int]]:
        return [(value is not None, value or 0) for value in rank]

    return "new" if ordered(new) >= ordered(old) else "old"


EXPECTED = [(number, counts(old, new)) for number, (old, new) in PAIRS]


@FILES_IN_SOAK
def test_a_row_that_is_read_later_takes_the_place_of_one_that_is_not_newer(kept: Kept) -> None:
    name, source = kept.scene.name(), kept.scene.database.source
    now = source.now().local
    # Read by both runs: the second one begins at the first one's watermark less the lag.
    moments = {1: now - timedelta(seconds=5_000), 2: now - timedelta(seconds=4_500)}

    def row(number: int, rank: Rank, v: str) -> str:
        at, *ties = rank
        moment = f"'{moments[at]:%Y-%m-%d %H:%M:%S}'" if at else "NULL"
        return f"({number}, {moment}, {', '.join(str(tie or 'NULL') for tie in ties)}, '{v}')"

    kept.scene.sql(
        f"CREATE TABLE {name} (id integer primary key, at timestamp, version integer, part integer, v text)",
        f"INSERT INTO {name} VALUES {', '.join(row(number, old, 'old') for number, (old, _) in PAIRS)}",
    )
    table = scd1(name, tiebreak_columns=["version", "part"], null_watermarks="include", lag_seconds=3_600)

    first = kept.run(table)
    ended = source.now().local
    kept.scene.sql(
        f"DELETE FROM {name}",
        f"INSERT INTO {name} VALUES {', '.join(row(number, new, 'new') for number, (_, new) in PAIRS)}",
    )
    while source.now().local.replace(microsecond=0) == ended.replace(microsecond=0):
        pass  # SQLite writes whole seconds: within the same one there is nothing to read
    second = kept.run(table)

    assert (first.errors, second.errors) == ({}, {})
    assert len(kept.rows("raw", name, "id")) == 2 * len(PAIRS), "both were read"
    assert kept.rows("mirror", name, "id", "v") == EXPECTED


def test_rows_of_several_slices_that_are_merged_at_once_are_ranked_alike(spark: SparkSession) -> None:
    rows = [
        (number, *rank, v, number_of_slice)
        for number, (old, new) in PAIRS
        for rank, v, number_of_slice in ((new, "new", 2), (old, "old", 1))
    ]
    schema = "id long, at int, version int, part int, v string, _slice long"
    spark.createDataFrame(rows, schema).createOrReplaceTempView("pairs")

    found = spark.sql(newest_of(spark, ViewRows("pairs", ("id", "at", "version", "part", "v", "_slice")), RULE))

    assert sorted((row["id"], row["v"]) for row in found.collect()) == EXPECTED


def test_rows_that_are_alike_but_for_where_a_null_is_are_decided_alike_in_any_order(spark: SparkSession) -> None:
    """The same value in one column or in another has the same hash in Spark, which leaves NULLs out."""
    alike = [(1, 1, 1, 1, None, "x", 1), (1, 1, 1, 1, "x", None, 1)]
    columns = ("id", "at", "version", "part", "a", "b", "_slice")
    schema = "id long, at int, version int, part int, a string, b string, _slice long"
    found = []
    for rows in (alike, alike[::-1]):
        spark.createDataFrame(rows, schema).coalesce(1).createOrReplaceTempView("alike")
        found += spark.sql(newest_of(spark, ViewRows("alike", columns), RULE)).collect()

    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("raw", "mirror"), [("int", "bigint"), ("float", "double"), ("decimal(9, 2)", "decimal(18, 2)")]
)
def test_a_mirror_whose_columns_are_wider_is_compared_by_value(spark: SparkSession, raw: str, mirror: str) -> None:
    session, rule = ThreadSessions(spark).mine(), DedupRule(keys=("id",), watermark="at")

    def row(value: str, kind: str, number: int) -> str:
        return f"SELECT CAST({value} AS {kind}) AS at, CAST({number} AS bigint) AS _slice"

    def newer(new: str, old: str) -> bool:
        compared = counts_over(rule, "s", "t")
        found = session.sql(f"SELECT {compared} AS newer FROM ({row(new, raw, 2)}) s, ({row(old, mirror, 1)}) t")
        return bool(found.collect()[0]["newer"])

    assert newer("3", "2")
    assert newer("2", "2")
    assert newer("2", "NULL")
    assert not newer("2", "3")
    assert not newer("NULL", "2")
