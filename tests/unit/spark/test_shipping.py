"""Lakehead itself, as workers get it."""

import subprocess
import sys
from pathlib import Path

import pytest

from lakehead.spark.shipping import pack


@pytest.mark.slow
def test_another_python_imports_lakehead_from_the_zip(tmp_path: Path) -> None:
    packed = pack(tmp_path)

    asked = "import lakehead.spark.settings as it; print(it.__file__)"
    answered = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(packed)!r}); {asked}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert answered.stdout.strip() == str(packed / "lakehead" / "spark" / "settings.py")
