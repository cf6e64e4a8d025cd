"""Output of other code is passed on whole, and afterwards the descriptors are restored."""

import select
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehead.run.observe import output_capture
from lakehead.run.observe.output_capture import MAX_LINE_BYTES, READ_BYTES, OutputCapture, descriptors_of


def test_lines_are_passed_on_and_afterwards_the_file_is_written_again(tmp_path: Path) -> None:
    captured: list[str] = []
    with (tmp_path / "out").open("wb", buffering=0) as out:
        with OutputCapture([out.fileno()], captured.extend):
            out.write(b"one\ntw")
            out.write(b"o\n\nthr\xff")
        out.write(b"four\n")

    assert captured == ["one", "two", "", "thr\N{REPLACEMENT CHARACTER}"]
    assert (tmp_path / "out").read_bytes() == b"four\n"


def test_what_was_written_just_before_the_end_is_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = select.select

    def late(reading: list[int], *rest: Any) -> Any:
        wait([reading[-1]], [], [])  # by then the end has been signalled
        return wait(reading, *rest)

    # Not in the module of all: a thread of somebody else, as of a Spark session, would be late for ever.
    monkeypatch.setattr(output_capture, "select", SimpleNamespace(select=late))
    captured: list[str] = []
    with (tmp_path / "out").open("wb", buffering=0) as out, OutputCapture([out.fileno()], captured.extend):
        out.write(b"last\n")

    assert captured == ["last"]


def test_lines_that_cannot_be_shown_block_no_writer_and_are_reported_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    captured: list[str] = []
    written = threading.Event()

    def show(lines: list[str]) -> None:
        if "bad" in lines:
            raise ValueError("no such colour")
        captured.extend(lines)

    with (tmp_path / "out").open("wb", buffering=0) as out:

        def write() -> None:
            for line in [b"bad", *[b"x" * 1023] * 200, b"last"]:  # more than a pipe holds
                out.write(line + b"\n")
            written.set()

        with OutputCapture([out.fileno()], show):
            threading.Thread(target=write, daemon=True).start()
            assert written.wait(60)

    assert captured[-1] == "last"
    assert [record.getMessage().partition(" lines")[2] for record in caplog.records] == [
        " that other code printed could not be shown (ValueError('no such colour'))."
    ]


def test_output_without_line_breaks_is_passed_on_in_pieces_of_bounded_size(tmp_path: Path) -> None:
    captured: list[str] = []
    piece = b"x" * 65_535 + b"\r"
    with (tmp_path / "out").open("wb", buffering=0) as out, OutputCapture([out.fileno()], captured.extend):
        for _ in range(40):
            out.write(piece)

    assert "".join(captured) == 40 * piece.decode()
    assert max(map(len, captured)) <= MAX_LINE_BYTES + READ_BYTES


def test_neither_thread_nor_descriptor_is_left(tmp_path: Path) -> None:
    def load() -> None:
        with (tmp_path / "out").open("wb") as out, OutputCapture([out.fileno()], print):
            raise ValueError("no")

    before = sorted(Path("/dev/fd").iterdir())
    with pytest.raises(ValueError, match="no"):
        load()

    assert sorted(Path("/dev/fd").iterdir()) == before
    assert "lakehead-output-capture" not in {each.name for each in threading.enumerate()}


def test_a_file_shares_nothing_with_the_terminal(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        assert descriptors_of(out) == ()
