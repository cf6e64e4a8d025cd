"""How a JVM has ended, in a sentence that says what to do."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakehead.spark.launch import death_of, end_jvm


def gateway_of(process: object) -> Any:
    return cast(Any, SimpleNamespace(proc=process))


def test_nothing_is_said_of_one_that_runs_or_that_is_not_ours() -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as running:
        assert death_of(gateway_of(running)) is None
        assert running.stdin is not None
        running.stdin.close()
    assert death_of(gateway_of(None)) is None
    assert death_of(None) is None


@pytest.mark.parametrize(
    ("last", "said", "advice"),
    [
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL", "when memory runs out"),
        ("os.kill(os.getpid(), 15)", "was killed by SIGTERM", "raise spark.driver_memory"),
        ("os._exit(137)", "was killed by SIGKILL", "when memory runs out"),
        ("os._exit(3)", "ended with exit code 3", "raise spark.driver_memory"),
    ],
)
def test_its_exit_code_or_signal_is_told_and_what_to_do(last: str, said: str, advice: str) -> None:
    with subprocess.Popen([sys.executable, "-c", f"import os; {last}"]) as process:
        process.wait()

        death = death_of(gateway_of(process))

    assert death is not None
    assert str(death).startswith(f"Spark died: its JVM {said}. ")
    assert advice in str(death)


AT_ITS_END = "import sys; sys.stdin.read(); open(sys.argv[1], 'w').close()"


@pytest.mark.parametrize(("within", "code"), [(60, 0), (0, -9)])
def test_it_has_as_long_to_write_at_its_end_as_it_is_given(tmp_path: Path, within: float, code: int) -> None:
    written = tmp_path / "archive"
    with subprocess.Popen([sys.executable, "-c", AT_ITS_END, str(written)], stdin=subprocess.PIPE) as process:
        end_jvm(SimpleNamespace(proc=process, shutdown=lambda: None), within=within)

        assert process.returncode == code
    assert written.exists() == (code == 0)
