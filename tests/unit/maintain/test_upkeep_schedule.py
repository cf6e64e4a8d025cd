"""When upkeep is due: from counts alone, never for more than its share of the time, and with pauses after failures."""

from random import Random

import pytest

from lakehead.errors import Misconfigured
from lakehead.maintain.upkeep_schedule import Figures, UpkeepKind, UpkeepSchedule, UpkeepSettings, UpkeepStep

EXPIRE, COMPACT = UpkeepStep("t", UpkeepKind.EXPIRE), UpkeepStep("t", UpkeepKind.COMPACT)
NEITHER, BOTH = Figures(149, 31), Figures(150, 32)
NEVER = 10**9


def schedule_of(figures: Figures = BOTH, **settings: float) -> UpkeepSchedule:
    schedule = UpkeepSchedule(UpkeepSettings(**settings))  # type: ignore[arg-type] # the numbers among them
    schedule.landed("t", figures)
    return schedule


def run(schedule: UpkeepSchedule, now: float, seconds: float, *, due_from: int = 0) -> UpkeepStep:
    step = schedule.due(now)
    assert step is not None
    schedule.started(step, now)
    assert schedule.succeeded(now + seconds, due_from=due_from) == pytest.approx(seconds)
    return step


@pytest.mark.parametrize(
    ("figures", "step"),
    [(NEITHER, None), (Figures(150, 31), EXPIRE), (Figures(149, 32), COMPACT), (Figures(0, 0), None)],
)
def test_a_step_is_due_from_its_count_on(figures: Figures, step: UpkeepStep | None) -> None:
    assert schedule_of(figures).due(0) == step


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_over_any_time_steps_take_no_more_than_their_share(share: float, seed: int) -> None:
    random, schedule = Random(seed), schedule_of(share=share)
    now, steps = 0.0, list[tuple[float, float]]()
    while len(steps) < 200:
        now += random.expovariate(1)
        step = schedule.due(now)
        if step is None:
            continue
        schedule.started(step, now)
        began, now = now, now + random.expovariate(random.choice([0.1, 1, 10]))
        if random.random() < 0.5:
            schedule.succeeded(now, due_from=0)
        else:
            schedule.failed(now)
        steps.append((began, now))
    for first in range(0, len(steps), 7):
        spent = 0.0
        for began, ended in steps[first:]:
            assert spent <= share * (began - steps[first][0]) + 1e-6
            spent += ended - began


def test_a_step_is_due_as_soon_as_its_share_allows_it() -> None:
    schedule = schedule_of(share=0.1)
    run(schedule, 0, 2)

    assert schedule.due(19.9) is None
    assert schedule.due(20.1) is not None


def test_nothing_is_due_while_a_step_runs() -> None:
    schedule = schedule_of(share=1)
    schedule.started(EXPIRE, 0)

    assert schedule.due(1000) is None
    schedule.succeeded(1000, due_from=NEVER)
    assert schedule.due(1000) == COMPACT


def test_of_several_steps_and_tables_the_one_that_ended_longest_ago_is_next() -> None:
    schedule = schedule_of(share=1)
    schedule.landed("u", BOTH)

    ran = [run(schedule, now, 1) for now in range(0, 80, 10)]

    other = [UpkeepStep("u", UpkeepKind.EXPIRE), UpkeepStep("u", UpkeepKind.COMPACT)]
    assert ran == [EXPIRE, COMPACT, *other] * 2


def test_a_step_that_has_done_its_work_waits_for_as_much_new_work_as_it_said() -> None:
    schedule = schedule_of(Figures(150, 0), share=1)
    run(schedule, 0, 1, due_from=450)

    schedule.landed("t", Figures(449, 0))
    assert schedule.due(10) is None
    schedule.landed("t", Figures(450, 0))
    assert schedule.due(10) == EXPIRE


def test_a_step_that_fails_is_tried_again_after_pauses_that_double_up_to_a_limit() -> None:
    schedule = schedule_of(Figures(150, 0), share=1, retry_seconds=30, longest_retry_seconds=100)
    now = 0.0
    for number, pause in enumerate([30, 60, 100, 100], start=1):
        assert schedule.due(now) == EXPIRE
        schedule.started(EXPIRE, now)
        assert schedule.failed(now) == (0, number)
        assert schedule.due(now + pause - 0.1) is None
        now += pause
    run(schedule, now, 0)
    schedule.started(EXPIRE, now)

    assert schedule.failed(now) == (0, 1), "what has worked begins with the first pause again"


def test_a_step_that_fails_for_ever_neither_overflows_nor_stops_the_others() -> None:
    schedule = schedule_of(share=1)
    now = 0.0
    for _ in range(2000):
        now += 4000
        schedule.started(EXPIRE, now)
        schedule.failed(now)

    assert schedule.due(now + 1) == COMPACT
    schedule.landed("u", BOTH)
    run(schedule, now + 1, 0, due_from=NEVER)
    assert schedule.due(now + 1) == UpkeepStep("u", UpkeepKind.EXPIRE)


def test_a_failure_uses_up_the_share_too() -> None:
    schedule = schedule_of(share=0.1, retry_seconds=1)
    schedule.started(EXPIRE, 0)
    schedule.failed(10)

    assert schedule.due(99) is None
    assert schedule.due(101) is not None


def test_a_step_that_has_not_started_cannot_end() -> None:
    with pytest.raises(ValueError, match="no step of upkeep is running"):
        schedule_of().failed(1)


@pytest.mark.parametrize(
    "wrong", [{"share": 0}, {"share": 1.1}, {"keep_snapshots": 0}, {"most_snapshots": 99}, {"small_files": 1}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(Misconfigured):
        UpkeepSettings(**wrong)  # type: ignore[arg-type] # the numbers among them
