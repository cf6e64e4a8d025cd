"""Fetches jars from Maven repositories with the Ivy that comes with Spark.

Ivy runs in a short-lived JVM, with only Ivy on its class path (0.6 s if nothing is to be fetched). Its output is not
shown.
"""

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from lakehead.errors import Misconfigured, Unavailable
from lakehead.spark.coordinates import Coordinate
from lakehead.spark.installed import SPARK_HOME
from lakehead.spark.java import Java
from lakehead.spark.settings import CENTRAL

CONNECT_SECONDS = 10
READ_SECONDS = 60
FETCH_SECONDS = 1800

# Provided by Spark: another version on the class path before Spark's own would break it.
PROVIDED_BY_SPARK = (
    "com.google.protobuf",
    "org.apache.spark",
    "org.apache.hadoop",
    "org.apache.logging.log4j",
    "org.scala-lang",
    "org.slf4j",
)

OFFLINE = (
    "If this machine has no network, fetch the jars on another one, put them into a folder here and set the jar folder "
    "(LAKEHEAD_JARS)."
)

_NOT_FOUND = re.compile(r"^\s*:: ([^#\s]+)#([^;\s]+);([^:\s]+): not found", re.MULTILINE)
_NOT_FETCHED = re.compile(r"^\s*:: \^?\s*([^#\s]+)#([^;\s]+);([^!\s]+)!", re.MULTILINE)
_NO_ANSWER = re.compile(
    r"Host \S+ not found|Server access [Ee]rror|UnknownHostException|[Tt]imed out|Connection refused|unreachable"
)


def fetch(coordinates: Sequence[Coordinate], repositories: Sequence[str], java: Java, *, into: Path, ivy: Path) -> None:
    """Fetch the jars of all coordinates and their dependencies into a folder; `ivy` is Ivy's own cache.

    Raises `Misconfigured` for a coordinate that no repository has, and `Unavailable` if none could be reached.
    """
    module, rules = into / "ivy.xml", into / "ivysettings.xml"
    module.write_text(_module(coordinates))
    rules.write_text(_rules(repositories, ivy))
    try:
        ran = subprocess.run(  # noqa: S603 - the Java that was found
            [
                *(java.command, "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true", "-cp", _ivy_jar()),
                *(
                    "org.apache.ivy.Main",
                    "-settings",
                    rules,
                    "-ivy",
                    module,
                    "-confs",
                    "default",
                    "-types",
                    "jar",
                    "bundle",
                ),
                *("-retrieve", f"{into}/[organisation]_[artifact]-[revision](-[classifier]).[ext]"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            f"The jars did not arrive from {_said(repositories)} within {FETCH_SECONDS} s. {OFFLINE}"
        ) from error
    finally:
        module.unlink()
        rules.unlink()
    if ran.returncode != 0:
        raise failure(ran.stdout, coordinates, repositories)


def failure(
    printed: str, coordinates: Sequence[Coordinate], repositories: Sequence[str]
) -> Misconfigured | Unavailable:
    """The error for Ivy's report of a failure."""
    names = [":".join(found) for found in [*_NOT_FOUND.findall(printed), *_NOT_FETCHED.findall(printed)]]
    missing = _join(dict.fromkeys(names)) or _join(coordinates)
    if _NO_ANSWER.search(printed):
        return Unavailable(f"{missing} could not be fetched: {_said(repositories)} cannot be reached. {OFFLINE}")
    return Misconfigured(
        f"{missing} could not be fetched from {_said(repositories)}. Check the coordinate's spelling and version, or "
        f"set the repository that has it. {OFFLINE}"
    )


def _module(coordinates: Sequence[Coordinate]) -> str:
    wanted = "".join(
        f"<dependency org={quoteattr(each.group)} name={quoteattr(each.artifact)} rev={quoteattr(each.version)} "
        'force="true" conf="default->default"/>'
        for each in coordinates
    )
    left_out = "".join(f"<exclude org={quoteattr(group)}/>" for group in PROVIDED_BY_SPARK)
    return (
        '<ivy-module version="2.0"><info organisation="lakehead" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{wanted}{left_out}</dependencies></ivy-module>"
    )


def _rules(repositories: Sequence[str], ivy: Path) -> str:
    chain = "".join(
        f'<ibiblio name="repository{number}" m2compatible="true" timeoutConstraint="patient"'
        f"{'' if url == CENTRAL else f' root={quoteattr(url)}'}/>"
        for number, url in enumerate(repositories)
    )
    return (
        '<ivysettings><settings defaultResolver="all"/><timeout-constraints><timeout-constraint name="patient" '
        f'connectionTimeout="{CONNECT_SECONDS * 1000}" readTimeout="{READ_SECONDS * 1000}"/></timeout-constraints>'
        f"<caches defaultCacheDir={quoteattr(str(ivy))}/>"
        f'<resolvers><chain name="all">{chain}</chain></resolvers></ivysettings>'
    )


def _ivy_jar() -> Path:
    found = sorted((SPARK_HOME / "jars").glob("ivy-*.jar"))
    if not found:
        raise Misconfigured("This PySpark comes without Ivy, which fetches jars. Set the jar folder (LAKEHEAD_JARS).")
    return found[-1]


def _said(repositories: Iterable[str]) -> str:
    """The repositories, without the user and password that an address may contain."""
    return _join(re.sub("//[^/]*@", "//", url) for url in repositories)


def _join(things: Iterable[object]) -> str:
    return ", ".join(map(str, things))
