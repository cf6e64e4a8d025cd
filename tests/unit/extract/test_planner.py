"""What a planner asks, answers and tells; and that another one can take its place."""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lakehead.errors import Misconfigured
from lakehead.extract.planning.adaptive import AdaptivePlanner
from lakehead.extract.planning.axis import Kind
from lakehead.extract.planning.planner import Capabilities, Plan, PlannerMetadata, PlannerRequest, SourceFacts
from lakehead.extract.planning.registry import PlannerRegistry
from lakehead.extract.planning.slicing import SliceBy, SlicingPolicy
from lakehead.extract.planning.windows import Bound, Window
from tests.unit.extract.column_values import NOON, TODAY, Rows, facts, plain, request

STORED = NOON - timedelta(hours=10)
MINUTES = [STORED + timedelta(minutes=n) for n in range(600)]


def literal(value: object) -> str:
    return f"TIMESTAMP '{value}'"


def test_a_first_run_reads_from_the_first_value_and_a_later_one_from_the_watermark() -> None:
    first = AdaptivePlanner().plan(request(Kind.TIMESTAMPTZ), facts())
    later = AdaptivePlanner().plan(request(Kind.TIMESTAMPTZ, stored=STORED), facts())

    assert [each.window for each in first.slices] == [Window(None, Bound(NOON, included=False))]
    assert [each.window for each in later.slices] == [Window(Bound(STORED, included=True), Bound(NOON, included=False))]


@pytest.mark.parametrize(("table", "run"), [(0, 90), (90, 0), (60, 90), (90, 60)])
def test_the_larger_lag_moves_both_bounds(table: int, run: int) -> None:
    plan = AdaptivePlanner().plan(request(Kind.TIMESTAMPTZ, stored=STORED, table_lag=table, lag_seconds=run), facts())

    lag = timedelta(seconds=90)
    assert [each.window for each in plan.slices] == [
        Window(Bound(STORED - lag, included=True), Bound(NOON - lag, included=False))
    ]
    assert plan.metadata.lag_seconds == 90


def test_nothing_is_read_past_the_oldest_open_transaction() -> None:
    began = STORED + timedelta(hours=1)

    held = AdaptivePlanner().plan(request(Kind.TIMESTAMPTZ, stored=STORED), facts(oldest_open=began))
    all_held = AdaptivePlanner().plan(request(Kind.TIMESTAMPTZ, stored=STORED), facts(oldest_open=STORED))

    assert [each.watermark for each in held.slices] == [began]
    assert all_held.slices == ()


@pytest.mark.parametrize(
    ("kind", "asked", "reach"),
    [
        (Kind.TIMESTAMPTZ, {"stored": NOON}, {}),
        (Kind.TIMESTAMPTZ, {"stored": NOON + timedelta(hours=1)}, {}),
        (Kind.TIMESTAMPTZ, {"initial_watermark": NOON + timedelta(hours=1)}, {}),
        (Kind.TIMESTAMPTZ, {"stored": STORED}, {"highest": STORED - timedelta(seconds=1)}),
        (Kind.TIMESTAMPTZ, {}, {"lowest": NOON, "highest": NOON}),
        (Kind.DATE, {"stored": NOON.date()}, {}),
        (Kind.INTEGER, {}, {}),
        (Kind.INTEGER, {"stored": 7}, {"lowest": 1, "highest": 7}),
        (Kind.INTEGER, {"stored": 7}, {"lowest": 1, "highest": 5}),
        (Kind.TEXT, {"stored": "z"}, {"lowest": "a", "highest": "z"}),
    ],
)
def test_where_nothing_can_be_new_the_plan_is_empty_and_the_source_is_not_asked(
    kind: Kind, asked: dict[str, Any], reach: dict[str, Any]
) -> None:
    probe = Rows([])

    plan = AdaptivePlanner().plan(request(kind, **asked), facts(probe, **reach))

    assert plan.slices == ()
    assert probe.asked == []


def test_an_increment_that_counts_no_rows_is_an_empty_plan() -> None:
    plan = AdaptivePlanner().plan(request(Kind.TIMESTAMPTZ, stored=STORED), facts(Rows([])))

    assert (plan.slices, plan.metadata.estimated_rows) == ((), 0)


def test_late_ties_of_an_integer_watermark_are_read_again_by_a_merge_and_never_by_an_append() -> None:
    reach: dict[str, Any] = {"lowest": 1, "highest": 9}

    merge = AdaptivePlanner().plan(request(Kind.INTEGER, stored=7), facts(**reach))
    append = AdaptivePlanner().plan(request(Kind.INTEGER, stored=7, rereads=False), facts(**reach))

    assert [each.window for each in merge.slices] == [Window(Bound(7, included=True), Bound(9, included=True))]
    assert [each.window for each in append.slices] == [Window(Bound(7, included=False), Bound(9, included=True))]


def test_text_is_read_in_one_slice_however_many_rows_it_has() -> None:
    probe = Rows(["a", "b"] * 5_000)

    plan = AdaptivePlanner().plan(
        request(Kind.TEXT, SlicingPolicy(target_rows=10)), facts(probe, lowest="a", highest="b")
    )

    assert [each.window for each in plan.slices] == [Window(None, Bound("b", included=True))]


def test_text_is_ordered_by_the_source_and_only_an_equal_value_is_no_news() -> None:
    plan = AdaptivePlanner().plan(request(Kind.TEXT, stored="b"), facts(lowest="a", highest="B2"))

    assert [each.watermark for each in plan.slices] == ["B2"], "a source that ignores case has it after b"


@pytest.mark.parametrize("probe", [None, Rows(MINUTES, fails_after=0)])
def test_without_a_count_rows_cannot_decide_and_the_duration_does(probe: Rows | None) -> None:
    policy = SlicingPolicy(target_rows=60, slice_seconds=3600)

    timed = AdaptivePlanner().plan(request(Kind.TIMESTAMPTZ, policy, stored=STORED), facts(probe))
    whole = AdaptivePlanner().plan(
        request(Kind.TIMESTAMPTZ, replace(policy, slice_seconds=None), stored=STORED), facts(probe)
    )

    assert (len(timed.slices), timed.metadata.sliced_by) == (10, SliceBy.DURATION)
    assert (len(whole.slices), whole.metadata.sliced_by) == (1, None)
    assert timed.metadata.probe_failure == (None if probe is None else "The source counts no more.")


def test_a_probe_that_is_switched_off_is_not_asked() -> None:
    probe = Rows(MINUTES)

    AdaptivePlanner().plan(
        request(Kind.TIMESTAMPTZ, SlicingPolicy(target_rows=1, probe=False), stored=STORED), facts(probe)
    )

    assert probe.asked == []


def test_a_probe_that_fails_on_the_way_is_left_alone_and_the_rest_is_divided_evenly() -> None:
    probe = Rows(MINUTES, fails_after=3)

    plan = AdaptivePlanner().plan(request(Kind.TIMESTAMPTZ, SlicingPolicy(target_rows=60), stored=STORED), facts(probe))

    assert len(probe.asked) == 4
    assert len(plan.slices) >= 10
    assert plan.metadata.probe_failure == "The source counts no more."


def test_a_plan_asks_for_no_more_counts_than_it_may() -> None:
    probe = Rows(MINUTES)

    AdaptivePlanner().plan(
        request(Kind.TIMESTAMPTZ, SlicingPolicy(target_rows=1, max_partitions=600, max_probes=7), stored=STORED),
        facts(probe),
    )

    assert len(probe.asked) == 8, "the whole window, and seven parts of it"


@pytest.mark.parametrize("by", SliceBy)
def test_a_window_with_few_rows_is_one_slice_whatever_the_policy(by: SliceBy) -> None:
    policy = SlicingPolicy(by=by, target_rows=600, slice_seconds=60)

    plan = AdaptivePlanner().plan(request(Kind.TIMESTAMPTZ, policy, stored=STORED), facts(Rows(MINUTES)))

    assert [each.estimated_rows for each in plan.slices] == [600]


def test_the_plan_tells_why_it_is_as_it_is() -> None:
    can = Capabilities(literal=literal)
    probe = Rows(MINUTES)
    asked = request(Kind.TIMESTAMPTZ, SlicingPolicy(target_rows=300), stored=STORED, table_lag=60)

    plan = AdaptivePlanner().plan(asked, replace(facts(probe), capabilities=can))

    told = json.loads(json.dumps(plan.metadata.as_payload()))
    assert told["current_literal"] == "TIMESTAMP '2024-03-31 02:00:00+00:00'"
    assert told["lower_literal"] == "TIMESTAMP '2024-03-31 01:59:00+00:00'"
    assert told["upper_literal"] == "TIMESTAMP '2024-03-31 11:59:00+00:00'"
    assert (told["estimated_rows"], told["sliced_by"], told["load_date"]) == (599, "rows", TODAY.isoformat())
    assert told["probes"][0] == {"lower": told["lower_literal"], "upper": told["upper_literal"], "rows": 599}
    assert len(told["probes"]) == len(probe.asked)
    assert told["probe_failure"] is None


def test_a_source_without_increments_is_refused() -> None:
    without = replace(facts(), capabilities=Capabilities(incremental=False))
    without_text = replace(facts(), capabilities=Capabilities(kinds=frozenset({Kind.INTEGER})))

    with pytest.raises(Misconfigured, match=r"shop\.orders cannot be read incrementally"):
        AdaptivePlanner().plan(request(Kind.TIMESTAMPTZ), without)
    with pytest.raises(Misconfigured, match=r"of the kind text\. Choose a column of one of these kinds: integer"):
        AdaptivePlanner().plan(request(Kind.TEXT), without_text)


def test_a_watermark_of_a_column_that_changed_its_type_is_refused() -> None:
    with pytest.raises(Misconfigured, match="--reload"):
        AdaptivePlanner().plan(request(Kind.TIMESTAMP, stored=STORED), facts())


def test_a_clock_with_a_zone_bounds_a_column_without_one_in_utc() -> None:
    plan = AdaptivePlanner().plan(
        request(Kind.TIMESTAMP, stored=plain(2024, 3, 31)), facts(now=datetime(2024, 3, 31, 2, 30, tzinfo=UTC))
    )

    assert [each.watermark for each in plan.slices] == [plain(2024, 3, 31, 2, 30)]


@dataclass
class Recorder:
    asked: list[PlannerRequest] = field(default_factory=list)

    def plan(self, request: PlannerRequest, source: SourceFacts) -> Plan:
        self.asked.append(request)
        return Plan((), PlannerMetadata(current_literal=str(source.reach.now), load_date=request.load_date))


def test_a_planner_registered_in_the_defaults_place_gets_table_policy_and_load_date() -> None:
    registry, recorder = PlannerRegistry(), Recorder()
    assert isinstance(registry.default, AdaptivePlanner)
    asked = request(Kind.INTEGER, SlicingPolicy(target_rows=3))

    registry.register(recorder)
    registry.default.plan(asked, facts())

    [got] = recorder.asked
    assert (got.table, got.slicing, got.load_date) == (asked.table, SlicingPolicy(target_rows=3), TODAY)
