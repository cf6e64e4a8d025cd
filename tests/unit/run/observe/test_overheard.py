"""What others write to our outputs is handed over whole, and afterwards the outputs are theirs again."""

import select
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehead.run.observe import overheard
from lakehead.run.observe.overheard import Overheard, shared_with


def test_lines_are_handed_over_and_afterwards_the_file_is_written_again(tmp_path: Path) -> None:
    heard: list[str] = []
    with (tmp_path / "out").open("wb", buffering=0) as out:
        with Overheard([out.fileno()], heard.extend):
            out.write(b"one\ntw")
            out.write(b"o\n\nthr\xff")
        out.write(b"four\n")

    assert heard == ["one", "two", "", "thr\N{REPLACEMENT CHARACTER}"]
    assert (tmp_path / "out").read_bytes() == b"four\n"


def test_what_was_written_just_before_the_end_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = select.select

    def late(reading: list[int], *rest: Any) -> Any:
        wait([reading[-1]], [], [])  # by then the end has been told
        return wait(reading, *rest)

    # Not in the module of all: a thread of somebody else, as of a Spark session, would be late for ever.
    monkeypatch.setattr(overheard, "select", SimpleNamespace(select=late))
    heard: list[str] = []
    with (tmp_path / "out").open("wb", buffering=0) as out, Overheard([out.fileno()], heard.extend):
        out.write(b"last\n")

    assert heard == ["last"]


def test_neither_thread_nor_descriptor_is_left(tmp_path: Path) -> None:
    def load() -> None:
        with (tmp_path / "out").open("wb") as out, Overheard([out.fileno()], print):
            raise ValueError("no")

    before = sorted(Path("/dev/fd").iterdir())
    with pytest.raises(ValueError, match="no"):
        load()

    assert sorted(Path("/dev/fd").iterdir()) == before
    assert "lakehead-overheard" not in {each.name for each in threading.enumerate()}


def test_a_file_shares_nothing_with_the_terminal(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        assert shared_with(out) == ()
