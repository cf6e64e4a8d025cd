"""Tables of the commands: a line for each row, whole, whatever terminal it is written to."""

import pytest

from lakehead.run.queue_output import print_table
from lakehead.run.text_table import table_lines

LONG = "queue/" + "x" * 200
VERY_LONG = "k " * 60_000 + "end"


@pytest.fixture(params=["", "xterm", "dumb"])
def _terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal, or what rich takes for one."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if request.param:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", request.param)


@pytest.mark.usefixtures("_terminal")
@pytest.mark.parametrize("location", [LONG, VERY_LONG])
def test_the_queues_tables_are_neither_wrapped_nor_cut_nor_styled(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table(("LOCATION", "BYTES"), [(location, "7"), ("b", "1,000")])

    assert capsys.readouterr().out.splitlines() == [
        f"{'LOCATION':{len(location)}}  BYTES",
        f"{location}      7",
        f"{'b':{len(location)}}  1,000",
    ]


@pytest.mark.usefixtures("_terminal")
@pytest.mark.parametrize("colour", [True, False])
@pytest.mark.parametrize("location", [LONG, VERY_LONG])
def test_a_row_is_one_line_with_and_without_colour(location: str, *, colour: bool) -> None:
    _, row = table_lines(("LOCATION",), [(location,)], colour=colour)

    assert row == location
