"""The programs that read what `lakehead run --dump-orchestration-plan` writes for them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def program(name: str, package: str) -> str:
    """The program's path. Without it a test skips on a laptop, and fails in CI."""
    if found := shutil.which(name):
        return found
    message = f"The program {name!r} is missing. Install {package} of the system's packages."
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def crontab_says(file: Path) -> tuple[int, str]:
    """What Debian's cron thinks of a crontab, without installing it: exit code and message."""
    return _run(program("crontab", "cron"), "-n", str(file))


def systemd_says(*units: Path) -> tuple[int, str]:
    """What systemd thinks of units: exit code, and every complaint."""
    return _run(program("systemd-analyze", "systemd"), "verify", "--man=no", *map(str, units))


def next_starts(calendar: str, base: str, count: int) -> list[str]:
    """The next times of a calendar expression of systemd after a time in UTC, as YYYY-MM-DD HH:MM."""
    options = ("calendar", f"--iterations={count}", f"--base-time={base} UTC", calendar)
    code, said = _run(program("systemd-analyze", "systemd"), *options)
    assert code == 0, said
    heads = ("Next elapse:", "(in UTC):", "Iter. #", "Iteration #")
    lines = [line.strip() for line in said.splitlines()]
    return [" ".join(line.split()[-3:-1])[:16] for line in lines if line.startswith(heads) and line.endswith("UTC")]


def _run(*words: str) -> tuple[int, str]:
    ran = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    )
    return ran.returncode, ran.stdout + ran.stderr
