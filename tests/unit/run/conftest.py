"""A queue in a folder of its own."""

import sys
from pathlib import Path

import pytest

from lakehead.run.main import main
from tests.unit.run.queue_scene import Done, Lake


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lake:
    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["lakehead", *arguments])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return Lake(tmp_path / "lake", run)
