"""The summary shows the outcome of every table, and the exit code agrees."""

import re
import threading
from dataclasses import replace
from textwrap import dedent
from types import SimpleNamespace

from lakehead.ids import Random, SeededIds
from lakehead.run.observe.event_text import event_text
from lakehead.run.observe.summary import RunSummary, delivery_warnings, emit_lost_events
from lakehead.telemetry.emitter import Emitter, EventEnvelope
from lakehead.telemetry.events import (
    Event,
    EventsLost,
    LateCommitsUnknown,
    PhaseMarked,
    RunDone,
    TableHeldBack,
    TableSkipped,
    TableStart,
)
from tests.support.state_tools import HandClock
from tests.unit.run.observe.fake_run import DAY, FakeRun

SENTENCE = "The source shop does not answer at host:5432. Start it, or correct sources.shop.url, and run again."


def emit_events(summary: RunSummary) -> FakeRun:
    run = FakeRun(summary)
    run.start(5)
    run.begin("shop.items")
    run.fail("shop.items", SENTENCE)
    run.begin("shop.orders", slices=10)
    run.reach("shop.orders", 4, 10, 120_000)
    run.begin("shop.cities", "full")
    run.finish("shop.cities", 1, published=1)
    run.finish("shop.orders", 1_234_567, 10, "2026-03-01T11:55:00.123456+00:00")
    run.emit(TableSkipped(reason="loaded already for 2026-03-01"), "shop.customers")
    run.begin("shop.baskets")
    run.reach("shop.baskets", 3, 4, 3_000)
    run.fail("shop.baskets", "No room is left\nin the lake.")
    run.emit(RunDone(done=2, skipped=1, failed=2, seconds=3725))
    return run


def test_the_whole_of_a_run() -> None:
    summary = RunSummary()
    emit_events(summary)

    assert summary.render() == dedent(f"""\
        table           mode  outcome       rows  published  slices  time  note
        shop.cities     full  done             1          1       1  1:02
        shop.customers        skipped                                      loaded already for 2026-03-01
        shop.orders     scd1  done     1,234,567                 10  1:02  up to 2026-03-01T11:55:00.123456+00:00
        shop.baskets    scd1  failed       3,000                  4  0:09
            No room is left in the lake.
        shop.items      scd1  failed                              1  0:09
            {SENTENCE}
        5 tables: 2 done, 1 skipped, 2 failed; 1,237,568 rows in 1:02:05
        """)
    assert summary.exit_code == 1


def test_what_may_be_missed_and_what_holds_a_table_back_stand_beside_its_outcome() -> None:
    summary = RunSummary()
    run = FakeRun(summary)
    run.start(3)
    unknown = LateCommitsUnknown(reason="it is a standby", lag_seconds=60, accepted=False)
    held = TableHeldBack(by="app (psql, process 12)", since=run.clock.at, seconds=130)
    for table in ("shop.both", "shop.none", "shop.skipped"):
        run.begin(table)
    run.emit(unknown, "shop.both")
    run.emit(held, "shop.both")
    run.finish("shop.both", 1, watermark="7")
    run.emit(replace(unknown, lag_seconds=0, accepted=True), "shop.none")
    run.finish("shop.none", 1)
    run.emit(replace(unknown, lag_seconds=0), "shop.skipped")
    run.emit(held, "shop.skipped")
    run.emit(TableSkipped(reason="nothing new since 7; held back by app"), "shop.skipped")

    notes = [re.split(r"  +", line)[-1] for line in summary.render().splitlines()[1:4]]

    assert notes == [
        "up to 7; held back 2:10 by app (psql, process 12); late commits within 60 s",
        "late commits accepted",
        "nothing new since 7; held back by app; no lag for late commits",
    ]


def test_on_a_terminal_what_failed_is_red_and_the_text_is_the_same() -> None:
    summary = RunSummary()
    emit_events(summary)

    coloured = summary.render(colour=True)

    assert re.sub(r" +$", "", re.sub(r"\x1b\[[0-9;]*m", "", coloured), flags=re.MULTILINE) == summary.render()
    for red in ("shop.items", f"    {SENTENCE}"):
        assert f"\x1b[31m{red}" in coloured


def test_rows_that_an_earlier_run_has_read_are_published_and_not_read() -> None:
    summary = RunSummary()
    run = FakeRun(summary)
    run.start(1)
    run.begin("shop.orders", slices=0)
    run.emit(PhaseMarked(phase="intermediate", state="done", rows=67_500), "shop.orders")
    assert summary.status.counts().rows == 0
    run.finish("shop.orders", 0, 0, published=67_500)

    [_, line, total] = summary.render().splitlines()
    assert line.split() == ["shop.orders", "scd1", "done", "0", "67,500", "0", "1:02"]
    assert total == "1 table: 1 done; 0 rows"
    assert event_text(run.received[-1].event) == "done: 0 rows, 67,500 published, in 1:02"


def test_a_hundred_tables_are_a_hundred_aligned_lines() -> None:
    summary = RunSummary()
    run = FakeRun(summary)
    run.start(100)
    for number in reversed(range(100)):
        name = f"schema_{number % 3}.{'long_' * (number % 7)}table_{number:02}"
        run.begin(name)
        if number % 50 == 9:
            run.fail(name, "It is away.")
        else:
            run.finish(name, number * 1000)

    lines = summary.render().splitlines()
    assert len(lines) == 1 + 100 + 2 + 1
    assert len({line.index("scd1") for line in lines if "scd1" in line}) == 1
    assert lines[-5:-1:2] == [line for line in lines if "failed" in line][:2], "what failed is last"
    assert lines[-1] == "100 tables: 98 done, 2 failed; 4,882,000 rows"


def test_wide_letters_and_what_would_move_a_cursor_break_no_column() -> None:
    summary = RunSummary()
    run = FakeRun(summary)
    for name in ("shop.注文", "shop.abcd", "\x1b[2J"):
        run.begin(name)
        run.finish(name, 1)

    lines = summary.render().splitlines()
    assert "\x1b" not in summary.render()
    assert lines[2].index("scd1") == len("shop.abcd") + 2
    assert lines[3].startswith("shop.注文  scd1"), "a wide letter takes two cells"


def test_all_done_or_skipped_is_zero_and_so_is_nothing_to_do() -> None:
    summary = RunSummary()
    run = FakeRun(summary)
    run.start(2)
    run.begin("a")
    run.finish("a", 0)
    run.emit(TableSkipped(reason="nothing new"), "b")

    assert summary.exit_code == 0
    assert RunSummary().exit_code == 0
    assert RunSummary().render() == "0 tables: nothing to do; 0 rows\n"


def test_a_table_that_never_ended_or_never_began_is_not_taken_for_done() -> None:
    summary = RunSummary()
    run = FakeRun(summary)
    run.start(2)
    run.begin("a")
    run.finish("a", 0)
    assert summary.exit_code == 1, "the second was not begun"

    run.begin("b")
    assert summary.exit_code == 1
    assert "not finished" in summary.render()
    assert summary.render().endswith("2 tables: 1 done, 1 running; 0 rows\n")


def test_a_table_that_is_begun_again_counts_by_its_last_outcome() -> None:
    summary = RunSummary()
    run = FakeRun(summary)
    run.start(1)
    run.begin("a")
    run.fail("a", "It is away.")
    run.begin("a")
    run.finish("a", 7)

    assert summary.exit_code == 0
    assert "away" not in summary.render()


def test_events_that_did_not_reach_a_subscriber_are_shown_with_their_number() -> None:
    released = threading.Event()
    run = FakeRun()
    run.emitter.subscribe_slow(lambda _: assert_released(released), "the log")
    for _ in range(3):
        run.emit(TableSkipped(reason="nothing new"), "shop.orders")
    assert delivery_warnings(run.emitter) == []

    run.emitter.close(within=0.05)
    shown = delivery_warnings(run.emitter)
    released.set()

    assert shown == ["3 events did not reach the log: too slow. The loaded data is not affected."]


def assert_released(released: threading.Event) -> None:
    assert released.wait(60)


def test_events_that_a_subscriber_failed_on_are_shown_with_the_first_error() -> None:
    def failing(_: object) -> None:
        raise ValueError("no")

    run = FakeRun()
    run.emitter.subscribe_slow(failing, "the log")
    run.emit(TableSkipped(reason="nothing new"), "shop.orders")
    run.emitter.close()

    [shown] = delivery_warnings(run.emitter)
    assert shown.startswith("A subscriber failed on 1 event; the first error was ValueError('no').")


def test_events_that_a_subscriber_failed_on_are_told_as_lost() -> None:
    told: list[Event] = []

    def broken(envelope: EventEnvelope) -> None:
        if envelope.table == "a":
            raise ValueError("s3cret")

    emitter = Emitter("run-7", HandClock(), SeededIds(Random(7)), [broken, lambda each: told.append(each.event)])
    with emit_lost_events(emitter, SimpleNamespace(lost=[])):
        emitter.emit(TableStart(mode="full", load_date=DAY, reload=False), "a")

    assert told[1:] == [EventsLost(subscriber="a subscriber", count=1, reason="it failed (ValueError)")]
