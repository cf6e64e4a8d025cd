"""The tools that people would use instead, each in an environment of its own that is made once and kept."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.extract_checks import written
from bench.extract_process import Ran, run
from bench.extract_source import TABLE, Shop, Sums
from lakehead.run.environment import spark_settings

INGESTR = ("ingestr==1.1.22",)
DLT = ("dlt[pyiceberg]==1.31.0", "connectorx==0.4.6", "pyiceberg==0.12.0", "sqlalchemy==2.1.8", "psycopg2-binary")
_INSTALL_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Loaded:
    """A table loaded by a tool, and what it cost."""

    ran: Ran
    load_seconds: float
    """The loading alone, as the tool itself tells it."""

    sums: Sums


def ingestr(shop: Shop) -> Loaded | None:
    """The whole table into Iceberg in a local folder, catalogued in SQLite; none if the tool cannot be had."""
    environment = _environment("ingestr", INGESTR)
    if environment is None:
        return None
    with tempfile.TemporaryDirectory(prefix="lakehead-bench-ingestr-") as folder:
        ran = run(
            [
                *(str(environment / "bin" / "ingestr"), "ingest", "--yes", "--progress", "log"),
                *("--source-uri", f"{shop.url}?sslmode=disable", "--source-table", f"public.{TABLE}"),
                *("--dest-uri", f"iceberg+sqlite://{folder}/catalog.db?warehouse_path={folder}/warehouse"),
                *("--dest-table", f"lake.{TABLE}", "--no-load-timestamp"),
            ],
            Path(folder),
        )
        told = re.search(r"Duration[^0-9]*(?:([0-9]+)m)?([0-9.]+)s", ran.output)
        if told is None:
            raise ValueError(f"ingestr did not say how long it took: {ran.output[-1000:]}")
        seconds = int(told[1] or 0) * 60 + float(told[2])
        return Loaded(ran, seconds, written(Path(folder, "warehouse"), TABLE))


def dlt(shop: Shop) -> Loaded | None:
    """The whole table into Iceberg in a local folder; none if the tool cannot be had."""
    environment = _environment("dlt", DLT)
    if environment is None:
        return None
    program = Path(__file__).parent / "peers" / "dlt_load.py"
    with tempfile.TemporaryDirectory(prefix="lakehead-bench-dlt-") as folder:
        ran = run(
            [str(environment / "bin" / "python"), str(program), shop.url, TABLE, folder],
            Path(folder),
            {"RUNTIME__DLTHUB_TELEMETRY": "false", "HOME": folder},
        )
        seconds = float(json.loads(ran.output.strip().splitlines()[-1])["seconds"])
        return Loaded(ran, seconds, written(Path(folder, "lake"), TABLE))


def _environment(name: str, packages: Sequence[str]) -> Path | None:
    """A virtual environment with these packages, from the configured index; none, with a sentence, if that fails."""
    mark = hashlib.sha256(" ".join([sys.version, *packages]).encode()).hexdigest()[:12]
    place = spark_settings().cache_folder / "bench" / f"{name}-{mark}"
    ready = place / ".ready"
    if ready.exists():
        return place
    print(f"… installing {name} into an environment of its own, once", flush=True)
    try:
        shutil.rmtree(place, ignore_errors=True)
        for command in (
            [sys.executable, "-m", "venv", str(place)],
            [str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *packages],
        ):
            subprocess.run(command, check=True, capture_output=True, timeout=_INSTALL_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        words = getattr(error, "stderr", None) or str(error).encode()
        last = words.decode(errors="replace").strip().splitlines()[-1:]
        print(f"{name} is left out: it could not be installed ({' '.join(last)}).", flush=True)
        return None
    ready.touch()
    return place
