"""Every Python snippet in the documentation runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))]
SNIPPETS = [
    pytest.param(snippet, id=f"{page}-{number}")
    for page in PAGES
    for number, snippet in enumerate(
        re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE), 1
    )
]


@pytest.mark.slow  # each is a process of its own
@pytest.mark.timeout(300)  # some start Spark, on a machine that may be busy
@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_snippet_runs_as_it_stands(snippet: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", snippet],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere_and_commands_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    makefile = (ROOT / "Makefile").read_text()

    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert ((ROOT / page).parent / target).exists(), target
    for command in re.findall(r"make ([a-z-]+)", text):
        assert f"\n{command}:" in makefile, f"make {command}"
