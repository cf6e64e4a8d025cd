"""Elsewhere than on a terminal a run is lines: for a program, or for a person."""

import io
import json
from textwrap import dedent

import pytest

from lakehead.run.config.runtime_config import LoggingConfig
from lakehead.run.observe.display import Display, LineDisplay, display_for
from lakehead.run.observe.json_lines import StructuredLogSubscriber
from lakehead.run.observe.terminal import LiveDisplay
from lakehead.telemetry.events import (
    Heartbeat,
    PhaseMarked,
    RunDone,
    StagingCleaned,
    TablePlanned,
    TableSkipped,
    TableStart,
    TableStep,
)
from tests.support.state_tools import HandClock
from tests.unit.run.observe.fake_run import DAY, FakeRun


def shown(stream: io.StringIO, *, terminal: bool = False, **settings: object) -> Display:
    return display_for(LoggingConfig.model_validate(settings), terminal=terminal, stream=stream, clock=HandClock())


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
        run = FakeRun(display)
        run.begin("shop.orders")
        run.fail("shop.orders", "It is away.")

    [line] = stream.getvalue().splitlines()
    assert json.loads(line)["payload"]["error"] == "It is away."


def test_a_run_in_lines_for_a_person() -> None:
    stream = io.StringIO()
    with shown(stream, json=False, level="debug") as display:
        run = FakeRun(display)
        run.start(3)
        run.begin("shop.orders", slices=10)
        run.reach("shop.orders", 3, 10, 80_000)
        run.emit(PhaseMarked(phase="raw", state="done", rows=120_000), "shop.orders")
        run.emit(PhaseMarked(phase="watermark", state="done"), "shop.cities")
        run.emit(Heartbeat(total=3, done=0, failed=0, rows=120_000))
        run.finish("shop.orders", 1, 10, "2026-03-01 11:00:00")
        run.emit(TableStart(mode="full", load_date=DAY, reload=True), "shop.cities")
        run.emit(TablePlanned(slices=1, done=1, resumed=True), "shop.cities")
        run.emit(TableStep(step="waiting for another run"), "shop.cities")
        run.emit(PhaseMarked(phase="raw", state="failed", detail={"error": "No\nroom."}), "shop.cities")
        run.fail("shop.cities", "No room is left.\nMake some.")
        run.emit(TableSkipped(reason="nothing new"), "shop.items")
        run.emit(StagingCleaned(root="files/orders", removed=2, not_landed=1))
        run.emit(RunDone(done=1, skipped=1, failed=1, seconds=13))

    assert stream.getvalue() == dedent("""\
        12:00:00 run run-7: 3 tables of pipeline shop for 2026-03-01; times are UTC
        12:00:01 shop.orders  started: scd1 for 2026-03-01
        12:00:01 shop.orders  planned: 10 slices
        12:00:02 shop.orders  reading: 80,000 rows, slice 3 of 10
        12:00:03 shop.orders  raw done: 120,000 rows, slice 3 of 10
        12:00:04 shop.cities  watermark done
        12:00:05 0 of 3 tables done, 0 failed; 120,000 rows so far
        12:00:06 shop.orders  done: 1 row, 10 slices, in 1:02, up to 2026-03-01 11:00:00
        12:00:07 shop.cities  started: full for 2026-03-01, full reload
        12:00:08 shop.cities  resumed an earlier plan: 1 slice, 1 already landed
        12:00:09 shop.cities  waiting for another run
        12:00:10 shop.cities  raw failed: No room.
        12:00:11 shop.cities  failed after 0:09: No room is left. Make some. [0123456789ab]
        12:00:12 shop.items  skipped: nothing new
        12:00:13 staging of files/orders cleaned: 2 directories removed, 1 kept that never landed
        12:00:14 run ended: 1 done, 1 skipped, 1 failed, after 0:13
        """)


def test_what_matters_less_than_the_level_still_tells_which_slice_it_is() -> None:
    stream = io.StringIO()
    run = FakeRun(shown(stream, json=False))
    run.reach("shop.orders", 3, 10, 80_000)
    run.emit(PhaseMarked(phase="raw", state="done", rows=120_000), "shop.orders")

    assert stream.getvalue() == "12:00:02 shop.orders  raw done: 120,000 rows, slice 3 of 10\n"


def test_names_and_sentences_of_others_move_no_cursor() -> None:
    stream = io.StringIO()
    run = FakeRun(shown(stream, json=False))
    run.fail("a\x1b[2J\r\nb", "gone\x07\x1b]0;title\x07")

    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().removesuffix("\n").isprintable()


def test_letters_that_the_stream_does_not_have_are_written_all_the_same() -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    display = display_for(
        LoggingConfig.model_validate({"json": False}), terminal=False, stream=stream, clock=HandClock()
    )
    FakeRun(display).fail("größe", "No.")

    assert rb"gr\xf6\xdfe  failed" in written.getvalue()
    assert display.dropped == 0


def test_a_stream_that_fails_stops_nothing_and_is_reported_once() -> None:
    warnings: list[str] = []
    stream = io.StringIO()
    settings = LoggingConfig.model_validate({"json": False})
    display = display_for(settings, terminal=False, stream=stream, clock=HandClock(), warn=warnings.append)
    stream.close()
    FakeRun(display).begin("a")

    assert display.dropped == 2
    assert len(warnings) == 1


def test_a_run_that_was_stopped_tells_how_many_tables_have_not_ended() -> None:
    stream = io.StringIO()
    FakeRun(shown(stream, json=False, level="warning")).emit(
        RunDone(done=1, skipped=0, failed=0, not_ended=2, seconds=4)
    )

    assert stream.getvalue().endswith(" run ended: 1 done, 0 skipped, 0 failed, 2 not finished, after 0:04\n")
