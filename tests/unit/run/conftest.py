"""The command in this process, and a queue in a folder of its own."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lakehead.run.main import main
from tests.unit.run.queue_support import Done, Lake


@pytest.fixture
def lakehead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs the command with these arguments, without the second that a process takes to load everything."""

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["lakehead", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return run


@pytest.fixture
def lake(tmp_path: Path, lakehead: Callable[..., Done]) -> Lake:
    return Lake(tmp_path / "lake", lakehead)
