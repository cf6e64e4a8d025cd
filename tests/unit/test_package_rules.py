"""Rules for the whole package: what is public, what is banned, and which package may import which."""

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lakehead

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lakehead"
RUFF = Path(sys.executable).with_name("ruff")
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

WITHOUT_A_JVM = {"agent", "gateway", "accept", "buffer", "storage", "wire"}


def test_these_names_are_public_and_no_others() -> None:
    assert sorted(lakehead.__all__) == [
        "AckOutOfOrder",
        "Agent",
        "AgentDeps",
        "AgentSettings",
        "BatchFormat",
        "BlockingAgent",
        "BlockingCollector",
        "BlockingGateway",
        "BlockingIngestor",
        "BlockingWatcher",
        "BufferCounts",
        "CollectedBatch",
        "Collector",
        "CollectorConfig",
        "CollectorMode",
        "Durable",
        "Fenced",
        "Gateway",
        "Ingestor",
        "IngestorConfig",
        "InvalidCall",
        "InvalidKey",
        "KeyValueEntry",
        "LakeheadError",
        "Misconfigured",
        "NewerFormat",
        "ObjectStoreConfig",
        "OutcomeLost",
        "OutcomeUnknown",
        "Purge",
        "QueueContended",
        "QueueFull",
        "Repartition",
        "Store",
        "StoreSettings",
        "SystemClock",
        "Unavailable",
        "Unreadable",
        "WriteWatcher",
        "export_metrics",
        "open_store",
        "probe",
    ]


BANNED = [
    "import time; time.time()",
    "import time; time.time_ns()",
    "import time; time.monotonic()",
    "import time; time.sleep(1)",
    "import asyncio; asyncio.sleep(1)",
    "import datetime; datetime.datetime.now()",
    "from datetime import datetime; datetime.now()",
    "from datetime import datetime; datetime.utcnow()",
    "from datetime import date; date.today()",
    "import uuid; uuid.uuid4()",
    "from uuid import uuid4",
    "import random",
    "from random import randint",
    "import secrets",
    "import os; os.urandom(8)",
    "import os; os.environ['HOME']",
    "from os import environ",
    "import os; os.getenv('HOME')",
]


@pytest.fixture(scope="module")
def told_by_ruff() -> dict[int, str]:
    """What ruff says of each line, by its number from 1, in one file that holds them all."""
    checked = subprocess.run(
        [
            *(RUFF, "check", "--select", "TID251", "--output-format", "json"),
            *("--stdin-filename", SOURCE / "storage" / "example.py", "-"),
        ],
        input="\n".join(BANNED) + "\n",
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert checked.returncode == 1, checked.stdout + checked.stderr
    return {told["location"]["row"]: f"{told['code']} {told['message']}" for told in json.loads(checked.stdout)}


@pytest.mark.parametrize("line", BANNED)
def test_ambient_time_chance_ids_and_environment_are_banned(line: str, told_by_ruff: dict[int, str]) -> None:
    told = told_by_ruff.get(BANNED.index(line) + 1, "")

    assert "TID251" in told
    assert "lakehead." in told, "the message names the word to use instead"


@pytest.mark.parametrize(
    "package", sorted(path.parent for path in SOURCE.glob("*/__init__.py")), ids=lambda p: str(p.name)
)
def test_the_init_file_of_a_package_holds_one_sentence_and_nothing_else(package: Path) -> None:
    [only] = ast.parse((package / "__init__.py").read_text()).body

    assert isinstance(only, ast.Expr)
    assert isinstance(only.value, ast.Constant)
    sentence = str(only.value.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_every_package_that_must_not_start_a_jvm_is_in_the_contract_as_soon_as_it_exists() -> None:
    packages = {path.stem if path.is_file() else path.name for path in SOURCE.iterdir()}
    [contract] = [c for c in PYPROJECT["tool"]["importlinter"]["contracts"] if c["type"] == "forbidden"]

    assert set(contract["source_modules"]) == {f"lakehead.{package}" for package in packages & WITHOUT_A_JVM}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "line", "broken"),
    [
        ("storage/example.py", "import lakehead.run.main", "A package imports only from the layers below"),
        ("errors.py", "import lakehead.clock", "A package imports only from the layers below"),
        ("attic/__init__.py", "", "A package imports only from the layers below"),
        ("storage/example.py", "import pyspark", "never starts a JVM"),
    ],
)
def test_an_import_contract_bites(tmp_path: Path, path: str, line: str, broken: str) -> None:
    copy = tmp_path / "src" / "lakehead"
    for file in SOURCE.rglob("*.py"):
        target = copy / file.relative_to(SOURCE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    changed = copy / path
    changed.parent.mkdir(exist_ok=True)
    changed.write_text((changed.read_text() if changed.exists() else "") + line + "\n")

    linted = subprocess.run(
        [LINT_IMPORTS, "--no-cache", "--config", ROOT / "pyproject.toml"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert linted.returncode == 1, linted.stdout + linted.stderr
    assert [name for name in linted.stdout.splitlines() if broken in name and "BROKEN" in name], linted.stdout
