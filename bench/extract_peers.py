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
from datetime import datetime
from pathlib import Path

from bench.extract_checks import newest, written
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


class Ingestr:
    """A lakehouse of ingestr's: Iceberg in a local folder, catalogued in SQLite."""

    def __init__(self, program: Path, shop: Shop, folder: Path) -> None:
        self._program, self._shop, self._folder = program, shop, folder
        folder.mkdir(parents=True, exist_ok=True)

    def load(self) -> tuple[Ran, float]:
        """Load the whole table: what the run cost, and the seconds that the tool itself tells."""
        return self._run()

    def merge(self, since: datetime, upto: datetime) -> tuple[Ran, float]:
        """Merge what has changed in this interval, without which it takes many times as long."""
        return self._run(
            *("--incremental-strategy", "merge", "--incremental-key", "updated_at", "--primary-key", "id"),
            *("--interval-start", since.isoformat(), "--interval-end", upto.isoformat()),
        )

    def sums(self) -> Sums:
        """What the table holds, as PyIceberg reads it; it refuses a table with equality deletes."""
        return written(self._folder / "warehouse", TABLE)

    def metadata(self) -> str:
        """The newest metadata file of the table."""
        return newest(self._folder / "warehouse", TABLE).metadata_location

    def _run(self, *how: str) -> tuple[Ran, float]:
        ran = run(
            [
                *(str(self._program), "ingest", "--yes", "--progress", "log", "--no-load-timestamp"),
                *("--source-uri", f"{self._shop.url}?sslmode=disable", "--source-table", f"public.{TABLE}"),
                *("--dest-uri", f"iceberg+sqlite://{self._folder}/catalog.db?warehouse_path={self._folder}/warehouse"),
                *("--dest-table", f"lake.{TABLE}", *how),
            ],
            self._folder,
        )
        told = re.search(r"Duration[^0-9]*(?:([0-9]+)m)?([0-9.]+)s", ran.output)
        if told is None:
            raise ValueError(f"ingestr did not say how long it took: {ran.output[-1000:]}")
        return ran, int(told[1] or 0) * 60 + float(told[2])


def ingestr_in(shop: Shop, folder: Path) -> Ingestr | None:
    """A lakehouse of ingestr's in a folder; none, with a sentence, if the tool cannot be had."""
    environment = _environment("ingestr", INGESTR)
    return None if environment is None else Ingestr(environment / "bin" / "ingestr", shop, folder)


def ingestr(shop: Shop) -> Loaded | None:
    """The whole table; none if the tool cannot be had."""
    with tempfile.TemporaryDirectory(prefix="lakehead-bench-ingestr-") as folder:
        lake = ingestr_in(shop, Path(folder))
        if lake is None:
            return None
        ran, seconds = lake.load()
        return Loaded(ran, seconds, lake.sums())


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
