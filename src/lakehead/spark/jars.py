"""The jars of a session: from a folder that the user provides, or fetched once into the cache."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from lakehead.errors import Misconfigured
from lakehead.spark.cache import locked, workshop
from lakehead.spark.coordinates import Coordinate, needed
from lakehead.spark.ivy import fetch
from lakehead.spark.java import Java
from lakehead.spark.settings import SparkSettings

CONTENTS = "contents.json"

Say = Callable[[str], None]


def jars_for(settings: SparkSettings, java: Java, *, say: Say) -> tuple[Path, ...]:
    """Every jar for the class path, fetched if they are not in the cache.

    Processes that start at the same time fetch them once. An incomplete set in the cache is fetched again.
    """
    wanted = needed(settings)
    if settings.jar_folder is not None:
        return _given(settings.jar_folder.expanduser().absolute(), wanted)
    home = settings.cache_folder.expanduser().absolute() / "jars" / _key(wanted)
    if there := _complete(home):
        return there
    with locked(home, wait=True):
        if there := _complete(home):
            return there
        say(f"fetching {', '.join(map(str, wanted))} (once)")
        with workshop(home) as folder:
            fetch(wanted, settings.repositories, java, into=folder, ivy=home.parent / "ivy")
            sizes = {jar.name: jar.stat().st_size for jar in sorted(folder.glob("*.jar"))}
            (folder / CONTENTS).write_text(json.dumps(sizes, indent=1))
            shutil.rmtree(home, ignore_errors=True)
            folder.rename(home)
    return _complete(home)


def _complete(home: Path) -> tuple[Path, ...]:
    """The jars of a fetched set; empty if one of them is missing or has another size."""
    try:
        sizes: dict[str, int] = json.loads((home / CONTENTS).read_text())
        whole = all((home / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return ()
    return tuple(home / name for name in sorted(sizes)) if whole else ()


def _given(folder: Path, wanted: Sequence[Coordinate]) -> tuple[Path, ...]:
    jars = tuple(sorted(folder.glob("*.jar")))
    missing = [each for each in wanted if not any(f"{each.artifact}-" in jar.name for jar in jars)]
    if missing:
        raise Misconfigured(
            f"The jar folder {folder} has no jar of {', '.join(map(str, missing))}. Put it there, or unset the jar "
            "folder so that jars are fetched."
        )
    return jars


def _key(wanted: Sequence[Coordinate]) -> str:
    return hashlib.sha256("\n".join(map(str, sorted(wanted))).encode()).hexdigest()[:16]
