"""The class-data-sharing (CDS) archive of the JVM: preparsed classes, stored once, so that later starts are faster.

It is for one build of Java and one class path; its name has a hash of both, and its size. The JVM checks again and
starts without it if it does not fit.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from lakehead.errors import Misconfigured
from lakehead.spark.cache import locked, workshop
from lakehead.spark.installed import SPARK_HOME, SPARK_VERSION
from lakehead.spark.jars import Say
from lakehead.spark.java import Java
from lakehead.spark.settings import SparkSettings

KEPT = 4
TRAINING_SECONDS = 300


def archive_for(settings: SparkSettings, java: Java, jars: Sequence[Path], *, say: Say) -> Path | None:
    """The archive for this Java and these jars, created now if the settings ask for it; None if there is none.

    Never raises.
    """
    folder = settings.cache_folder.expanduser().absolute() / "archives"
    key = _key(java, [*jars, *_sparks_own_jars()])
    if found := _whole(folder, key):
        with suppress(OSError):
            os.utime(found)  # marks it as used: those unused for longest are removed first
        return found
    if not settings.class_data_archive or _failed(folder, key).exists():
        return None
    with suppress(Misconfigured), locked(folder / key, wait=False) as mine:
        if mine:
            say("preparing faster starts (once for this Java and these jars)")
            return _whole(folder, key) or _make(folder, key, java, jars)
    return None


def use(archive: Path) -> str:
    """The JVM options to start with an archive, and silently without it if it does not fit."""
    return f'-XX:SharedArchiveFile="{archive}" -Xshare:auto -Xlog:cds*=off -Xlog:class+path=off'


def record(archive: Path) -> str:
    """The JVM options to write an archive at exit, for a JVM started only for that: with the fast compiler alone."""
    return f'-XX:ArchiveClassesAtExit="{archive}" -Xlog:cds*=off -XX:TieredStopAtLevel=1'


def discard(archive: Path) -> None:
    """Remove an archive that is old, or with which the JVM did not start. The next start may create another."""
    with suppress(OSError):
        archive.unlink()


def _failed(folder: Path, key: str) -> Path:
    """A marker file on machines where no archive can be created: an attempt takes long, so it is made once."""
    return folder / f"{key}.failed"


def _whole(folder: Path, key: str) -> Path | None:
    """The archive whose size is the one in its name, which excludes incomplete copies; None if there is none."""
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
    """A hash of this Java and this class path, with what the JVM compares: each jar's path, size and time."""
    facts = [java.build, str(java.home), SPARK_VERSION]
    for jar in jars:
        stat = jar.stat()
        facts.append(f"{jar} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _sparks_own_jars() -> list[Path]:
    return sorted((SPARK_HOME / "jars").glob("*.jar"))
