"""At the end it is said what has come of every table, and the exit code agrees."""

import re
from dataclasses import replace
from textwrap import dedent

from lakehead.run.observe.summary import Summary
from lakehead.run.observe.wording import said
from lakehead.telemetry.events import LateCommitsUnknown, PhaseMarked, RunDone, TableHeldBack, TableSkipped
from tests.unit.run.observe.scene import Story

SENTENCE = "The source shop does not answer at host:5432. Start it, or correct sources.shop.url, and run again."


def told(summary: Summary) -> Story:
    story = Story(summary)
    story.start(5)
    story.begin("shop.items")
    story.fail("shop.items", SENTENCE)
    story.begin("shop.orders", slices=10)
    story.reach("shop.orders", 4, 10, 120_000)
    story.begin("shop.cities", "full")
    story.finish("shop.cities", 1, published=1)
    story.finish("shop.orders", 1_234_567, 10, "2026-03-01T11:55:00.123456+00:00")
    story.tell(TableSkipped(reason="loaded already for 2026-03-01"), "shop.customers")
    story.begin("shop.baskets")
    story.reach("shop.baskets", 3, 4, 3_000)
    story.fail("shop.baskets", "No room is left\nin the lake.")
    story.tell(RunDone(done=2, skipped=1, failed=2, seconds=3725))
    return story


def test_the_whole_of_a_run() -> None:
    summary = Summary()
    told(summary)

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
    summary = Summary()
    story = Story(summary)
    story.start(3)
    unknown = LateCommitsUnknown(reason="it is a standby", lag_seconds=60, accepted=False)
    held = TableHeldBack(by="app (psql, process 12)", since=story.clock.at, seconds=130)
    for table in ("shop.both", "shop.none", "shop.skipped"):
        story.begin(table)
    story.tell(unknown, "shop.both")
    story.tell(held, "shop.both")
    story.finish("shop.both", 1, watermark="7")
    story.tell(replace(unknown, lag_seconds=0, accepted=True), "shop.none")
    story.finish("shop.none", 1)
    story.tell(replace(unknown, lag_seconds=0), "shop.skipped")
    story.tell(held, "shop.skipped")
    story.tell(TableSkipped(reason="nothing new since 7; held back by app"), "shop.skipped")

    notes = [re.split(r"  +", line)[-1] for line in summary.render().splitlines()[1:4]]

    assert notes == [
        "up to 7; held back 2:10 by app (psql, process 12); late commits within 60 s",
        "late commits accepted",
        "nothing new since 7; held back by app; no lag for late commits",
    ]


def test_on_a_terminal_nothing_is_wider_and_what_failed_is_red() -> None:
    summary = Summary()
    told(summary)

    coloured = summary.render(width=70, colour=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)

    assert (
        plain
        == summary.render(width=70)
        == dedent("""\
        table           mode  outcome       rows  published  slices  time  no…
        shop.cities     full  done             1          1       1  1:02
        shop.customers        skipped                                      lo…
        shop.orders     scd1  done     1,234,567                 10  1:02  up…
        shop.baskets    scd1  failed       3,000                  4  0:09
            No room is left in the lake.
        shop.items      scd1  failed                              1  0:09
            The source shop does not answer at host:5432. Start it, or correct
            sources.shop.url, and run again.
        5 tables: 2 done, 1 skipped, 2 failed; 1,237,568 rows in 1:02:05
        """)
    )
    assert "\x1b[31mshop.items" in coloured


def test_rows_that_an_earlier_run_has_read_are_published_and_not_read() -> None:
    summary = Summary()
    story = Story(summary)
    story.start(1)
    story.begin("shop.orders", slices=0)
    story.tell(PhaseMarked(phase="intermediate", state="done", rows=67_500), "shop.orders")
    assert summary.standings.counts().rows == 0
    story.finish("shop.orders", 0, 0, published=67_500)

    [_, line, total] = summary.render().splitlines()
    assert line.split() == ["shop.orders", "scd1", "done", "0", "67,500", "0", "1:02"]
    assert total == "1 table: 1 done; 0 rows"
    assert said(story.heard[-1].event) == "done: 0 rows, 67,500 published, in 1:02"


def test_a_hundred_tables_are_a_hundred_aligned_lines() -> None:
    summary = Summary()
    story = Story(summary)
    story.start(100)
    for number in reversed(range(100)):
        name = f"schema_{number % 3}.{'long_' * (number % 7)}table_{number:02}"
        story.begin(name)
        if number % 50 == 9:
            story.fail(name, "It is away.")
        else:
            story.finish(name, number * 1000)

    lines = summary.render(width=100).splitlines()
    assert len(lines) == 1 + 100 + 2 + 1
    assert len({line.index("scd1") for line in lines if "scd1" in line}) == 1
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if "table_42" in line] != [], "a name is cut at its beginning"
    assert lines[-5:-1:2] == [line for line in lines if "failed" in line][:2], "what failed is last"
    assert lines[-1] == "100 tables: 98 done, 2 failed; 4,882,000 rows"


def test_wide_letters_and_what_would_move_a_cursor_break_no_column() -> None:
    summary = Summary()
    story = Story(summary)
    for name in ("shop.注文", "shop.abcd", "\x1b[2J"):
        story.begin(name)
        story.finish(name, 1)

    lines = summary.render().splitlines()
    assert "\x1b" not in summary.render()
    assert lines[2].index("scd1") == len("shop.abcd") + 2
    assert lines[3].startswith("shop.注文  scd1"), "a wide letter takes two cells"


def test_all_done_or_skipped_is_zero_and_so_is_nothing_to_do() -> None:
    summary = Summary()
    story = Story(summary)
    story.start(2)
    story.begin("a")
    story.finish("a", 0)
    story.tell(TableSkipped(reason="nothing new"), "b")

    assert summary.exit_code == 0
    assert Summary().exit_code == 0
    assert Summary().render() == "0 tables: nothing to do; 0 rows\n"


def test_a_table_that_never_ended_or_never_began_is_not_taken_for_done() -> None:
    summary = Summary()
    story = Story(summary)
    story.start(2)
    story.begin("a")
    story.finish("a", 0)
    assert summary.exit_code == 1, "the second was not begun"

    story.begin("b")
    assert summary.exit_code == 1
    assert "not ended" in summary.render()
    assert summary.render().endswith("2 tables: 1 done, 1 running; 0 rows\n")


def test_a_table_that_is_begun_again_counts_by_its_last_outcome() -> None:
    summary = Summary()
    story = Story(summary)
    story.start(1)
    story.begin("a")
    story.fail("a", "It is away.")
    story.begin("a")
    story.finish("a", 7)

    assert summary.exit_code == 0
    assert "away" not in summary.render()
