"""A soak keeps what it did and found."""

from collections import Counter
from pathlib import Path

import pytest

from tests import soak
from tests.support.costs import Mechanism

DONE = Counter({"unit": 10, "chaos": 5, Mechanism.SEEDS: 300_000, Mechanism.KILLS: 1_234, Mechanism.LANDINGS: 77})


def test_a_line_tells_what_was_done_and_found() -> None:
    line = soak.summary(DONE, 22_000, minutes=61.4, findings=["make sim SCENARIO=probe SEED=7"])

    assert "61 minutes: 15 tests, 22,000 seeds a scenario (300,000 schedules), 1,234 kills, 77 landings" in line
    assert line.endswith("found: make sim SCENARIO=probe SEED=7")
    assert soak.summary(DONE, 1, minutes=1, findings=[]).endswith("found: nothing")


def test_the_newest_line_stands_first_below_the_heading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "RESULTS.md"
    results.write_text(f"# Others\n\n- other\n\n{soak.HEADING}- older\n")
    monkeypatch.setattr(soak, "RESULTS", results)

    soak.keep("- newer")

    assert results.read_text() == f"# Others\n\n- other\n\n{soak.HEADING}- newer\n- older\n"


def test_the_heading_is_there() -> None:
    assert soak.HEADING in soak.RESULTS.read_text()
