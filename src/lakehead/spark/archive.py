"""The class-data archive: classes as the JVM wants them, stored once, so that later starts are quicker.

It fits one build of Java and one class path; both are in its name, and so is its size. The JVM checks again and goes on
without it where it does not fit.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pyspark

from lakehead.errors import Misconfigured
from lakehead.spark.cache import locked, workshop
from lakehead.spark.jars import Say
from lakehead.spark.java import Java
from lakehead.spark.settings import SparkSettings

KEPT = 4
TRAINING_SECONDS = 300


def archive_for(settings: SparkSettings, java: Java, jars: Sequence[Path], *, say: Say) -> Path | None:
    """The archive that fits, made now if the settings want one; none if there is none to be had. Never an error."""
    folder = settings.cache_folder.expanduser().absolute() / "archives"
    key = _key(java, [*jars, *_sparks_own_jars()])
    if found := _whole(folder, key):
        with suppress(OSError):
            os.utime(found)  # in use: old ones go first
        return found
    if not settings.class_data_archive or _failed(folder, key).exists():
        return None
    with suppress(Misconfigured), locked(folder / key, wait=False) as mine:
        if mine:
            say("preparing quicker starts (once for this Java and these jars)")
            return _whole(folder, key) or _make(folder, key, java, jars)
    return None


def use(archive: Path) -> str:
    """The JVM options that start with an archive, and quietly without it where it does not fit."""
    return f'-XX:SharedArchiveFile="{archive}" -Xshare:auto -Xlog:cds*=off -Xlog:class+path=off'


def record(archive: Path) -> str:
    """The JVM options that leave an archive behind at exit, for a JVM that does nothing else: compiled lightly."""
    return f'-XX:ArchiveClassesAtExit="{archive}" -Xlog:cds*=off -XX:TieredStopAtLevel=1'


def discard(archive: Path) -> None:
    """Remove an archive that is old, or with which the JVM did not start. The next start may make another."""
    with suppress(OSError):
        archive.unlink()


def _failed(folder: Path, key: str) -> Path:
    """The mark of a machine where no archive can be made: trying takes long, so it is tried once."""
    return folder / f"{key}.failed"


def _whole(folder: Path, key: str) -> Path | None:
    """An archive as long as its name says: a copy that was cut short is none."""
    for found in folder.glob(f"{key}-*.jsa"):
        with suppress(OSError):
            if found.stem == f"{key}-{found.stat().st_size}":
                return found
    return None


def _make(folder: Path, key: str, java: Java, jars: Sequence[Path]) -> Path | None:
    with workshop(folder / key) as shop:
        recorded = shop / "recorded.jsa"
        try:
            subprocess.run(  # noqa: S603 - ourselves
                [sys.executable, "-m", "lakehead.spark.training", java.home, recorded, shop, *jars],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=True,
                timeout=TRAINING_SECONDS,
            )
            made = folder / f"{key}-{recorded.stat().st_size}.jsa"
            recorded.rename(made)
        except (OSError, subprocess.SubprocessError):
            _failed(folder, key).touch()
            return None
    by_use = sorted(folder.glob("*.jsa"), key=lambda each: each.stat().st_mtime)
    for old in by_use[:-KEPT]:
        discard(old)
    return made


def _key(java: Java, jars: Iterable[Path]) -> str:
    """A name for this Java and this class path, with what the JVM compares: each jar's place, size and time."""
    facts = [java.build, str(java.home), pyspark.__version__]
    for jar in jars:
        stat = jar.stat()
        facts.append(f"{jar} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _sparks_own_jars() -> list[Path]:
    return sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
