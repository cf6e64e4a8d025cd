"""Elsewhere than on a terminal a run is lines: for a program, or for a person."""

import io
import json
from textwrap import dedent

import pytest

from lakehead.run.config.runtime import Logging
from lakehead.run.observe.display import Display, LineDisplay, display_for
from lakehead.run.observe.json_lines import StructuredLogSubscriber
from lakehead.run.observe.terminal import LiveDisplay
from lakehead.telemetry.events import (
    Heartbeat,
    PhaseMarked,
    RunDone,
    StagingCleaned,
    TablePlanned,
    TableProgress,
    TableSkipped,
    TableStart,
)
from tests.contract.state_scene import HandClock
from tests.unit.run.observe.scene import DAY, Story


def shown(stream: io.StringIO, *, terminal: bool = False, **settings: object) -> Display:
    return display_for(Logging.model_validate(settings), terminal=terminal, stream=stream, clock=HandClock())


@pytest.mark.parametrize(
    ("as_json", "terminal", "kind"),
    [
        (None, False, StructuredLogSubscriber),
        (None, True, LiveDisplay),
        (True, False, StructuredLogSubscriber),
        (True, True, StructuredLogSubscriber),
        (False, False, LineDisplay),
        (False, True, LiveDisplay),
    ],
)
def test_json_is_for_whoever_asks_for_it_and_for_programs(*, as_json: bool | None, terminal: bool, kind: type) -> None:
    assert type(shown(io.StringIO(), terminal=terminal, json=as_json)) is kind


def test_json_lines_are_printed_from_the_level_on() -> None:
    stream = io.StringIO()
    with shown(stream, level="warning") as display:
        story = Story(display)
        story.begin("shop.orders")
        story.fail("shop.orders", "It is away.")

    [line] = stream.getvalue().splitlines()
    assert json.loads(line)["payload"]["error"] == "It is away."


def test_a_run_in_lines_for_a_person() -> None:
    stream = io.StringIO()
    with shown(stream, json=False, level="debug") as display:
        story = Story(display)
        story.start(3)
        story.begin("shop.orders", slices=10)
        story.reach("shop.orders", 3, 10, 80_000)
        story.tell(PhaseMarked(phase="raw", state="done", rows=120_000), "shop.orders")
        story.tell(PhaseMarked(phase="watermark", state="done"), "shop.cities")
        story.tell(Heartbeat(total=3, done=0, failed=0, rows=120_000))
        story.finish("shop.orders", 1, 10, "2026-03-01 11:00:00")
        story.tell(TableStart(mode="full", load_date=DAY, reload=True), "shop.cities")
        story.tell(TablePlanned(slices=1, done=1, resumed=True), "shop.cities")
        story.tell(TableProgress(step="waiting for another run"), "shop.cities")
        story.tell(PhaseMarked(phase="raw", state="failed", detail={"error": "No\nroom."}), "shop.cities")
        story.fail("shop.cities", "No room is left.\nMake some.")
        story.tell(TableSkipped(reason="nothing new"), "shop.items")
        story.tell(StagingCleaned(root="files/orders", removed=2, not_landed=1))
        story.tell(RunDone(done=1, skipped=1, failed=1, seconds=13))

    assert stream.getvalue() == dedent("""\
        12:00:00 run run-7: 3 tables of shop for 2026-03-01; times are UTC
        12:00:01 shop.orders  begun: scd1 for 2026-03-01
        12:00:01 shop.orders  planned: 10 slices
        12:00:02 shop.orders  reading: 80,000 rows, slice 3 of 10
        12:00:03 shop.orders  raw done: 120,000 rows, slice 3 of 10
        12:00:04 shop.cities  watermark done
        12:00:05 0 of 3 tables done, 0 failed; 120,000 rows so far
        12:00:06 shop.orders  done: 1 row, 10 slices, in 1:02, up to 2026-03-01 11:00:00
        12:00:07 shop.cities  begun: full for 2026-03-01, reloaded from its start
        12:00:08 shop.cities  earlier plan resumed: 1 slice, 1 landed already
        12:00:09 shop.cities  waiting for another run
        12:00:10 shop.cities  raw failed: No room.
        12:00:11 shop.cities  failed after 0:09: No room is left. Make some. [0123456789ab]
        12:00:12 shop.items  skipped: nothing new
        12:00:13 staging of files/orders cleaned: 2 directories removed, 1 of writers that were killed or are at work
        12:00:14 run ended: 1 done, 1 skipped, 1 failed, after 0:13
        """)


def test_what_matters_less_than_the_level_still_tells_which_slice_it_is() -> None:
    stream = io.StringIO()
    story = Story(shown(stream, json=False))
    story.reach("shop.orders", 3, 10, 80_000)
    story.tell(PhaseMarked(phase="raw", state="done", rows=120_000), "shop.orders")

    assert stream.getvalue() == "12:00:02 shop.orders  raw done: 120,000 rows, slice 3 of 10\n"


def test_names_and_sentences_of_others_move_no_cursor() -> None:
    stream = io.StringIO()
    story = Story(shown(stream, json=False))
    story.fail("a\x1b[2J\r\nb", "gone\x07\x1b]0;title\x07")

    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().removesuffix("\n").isprintable()


def test_letters_that_the_stream_does_not_have_are_written_all_the_same() -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    display = display_for(Logging.model_validate({"json": False}), terminal=False, stream=stream, clock=HandClock())
    Story(display).fail("größe", "No.")

    assert rb"gr\xf6\xdfe  failed" in written.getvalue()
    assert display.dropped == 0


def test_a_stream_that_fails_stops_nothing_and_is_told_once() -> None:
    said: list[str] = []
    stream = io.StringIO()
    settings = Logging.model_validate({"json": False})
    display = display_for(settings, terminal=False, stream=stream, clock=HandClock(), tell=said.append)
    stream.close()
    Story(display).begin("a")

    assert display.dropped == 2
    assert len(said) == 1


def test_a_run_that_was_stopped_tells_how_many_tables_have_not_ended() -> None:
    stream = io.StringIO()
    Story(shown(stream, json=False, level="warning")).tell(RunDone(done=1, skipped=0, failed=0, not_ended=2, seconds=4))

    assert stream.getvalue().endswith(" run ended: 1 done, 0 skipped, 0 failed, 2 not ended, after 0:04\n")
