"""Spark for tests: one JVM for all modules of a process, one folder of jars, one class-data archive.

A JVM takes seconds to start and again seconds until it is warm. Modules share one and each has sessions of its own in
it; those that are about the start itself, or need another master, stop it and start theirs.
"""

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self, cast

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from lakehead.run.environment import spark_settings
from lakehead.spark import launch
from lakehead.spark.archive import archive_for
from lakehead.spark.conf import session_conf
from lakehead.spark.coordinates import AWS, DRIVERS
from lakehead.spark.jars import jars_for
from lakehead.spark.java import find_java
from lakehead.spark.session import build_session, silent, stop_session
from lakehead.spark.settings import SparkSettings
from tests.support.costs import Mechanism, spent_on
from tests.support.effort import SOAKING

MASTER = "local[2]"
JARS = (*(DRIVERS[scheme] for scheme in ("jdbc:postgresql:", "jdbc:mariadb:", "jdbc:sqlite:")), AWS)
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for a JVM that lives for a minute: what it would gain by compiling well it never earns back."""
HADOOP = "spark.hadoop."

_shared: SparkSession | None = None
_given: dict[str, str] = {}


def prepare() -> None:
    """Let every JVM of this run, also of children, be quick to start: `make soak` leaves the JIT as users have it.

    All jars that any test needs go into one folder, so that there is one class path and one archive of its classes.
    """
    if not SOAKING:
        os.environ.setdefault("JDK_JAVA_OPTIONS", QUICK)
    if "LAKEHEAD_JARS" not in os.environ:
        settings = replace(spark_settings(), jars=JARS)
        os.environ["LAKEHEAD_JARS"] = str(jars_for(settings, find_java(settings), say=silent)[0].parent)


def make_quick_starts() -> None:
    """Fetch the jars and train the archive, as the first test of a clean clone would: it may take a minute."""
    prepare()
    settings = spark_settings()
    java = find_java(settings)
    if archive_for(settings, java, jars_for(settings, java, say=silent), say=silent) is None:
        print("No archive of classes could be made: each JVM takes some seconds longer to start.", file=sys.stderr)


def shared_session(settings: SparkSettings) -> SparkSession:
    """A new session in the process's one JVM, with the catalogs and settings of these and of no earlier ones.

    Sessions that are made from it have them too. Those made from an earlier one have not, so a process is done with
    one lakehouse before it goes on to the next.
    """
    global _shared  # noqa: PLW0603 - a process has one JVM
    if _shared is None:
        base = replace(spark_settings(), master=MASTER, lakehouse=Path(mkdtemp(prefix="lakehead-shared-")))
        with spent_on(Mechanism.JVM):
            _shared = build_session(base)
    _give(_shared, session_conf(replace(settings, master=MASTER), (), None))
    return _shared.newSession()


@contextmanager
def own_session(settings: SparkSettings) -> Iterator[SparkSession]:
    """A session in a JVM of its own, for a module marked `own_jvm`."""
    with spent_on(Mechanism.JVM):
        session = build_session(settings)
    try:
        yield session
    finally:
        stop_session(session)
        gc.collect()


@dataclass(frozen=True)
class Borrowed:
    """How a child reaches the JVM of its test, which is there and warm, and outlives it when it is killed."""

    port: int
    secret: str

    @classmethod
    def of(cls, session: SparkSession) -> Self:
        gateway = session.sparkContext._gateway
        assert gateway is not None
        return cls(gateway.gateway_parameters.port, gateway.gateway_parameters.auth_token)

    def session(self, settings: SparkSettings | None = None) -> SparkSession:
        """A new session there, with these settings' catalogs as `shared_session` has them, or with the test's."""
        gateway = launch._connected(cast(Any, None), self.port, self.secret)
        there = gateway.jvm.SparkSession.active()
        java = gateway.jvm.JavaSparkContext(there.sparkContext())
        context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf()))
        context.pythonExec = sys.executable
        session = SparkSession(context, there)
        if settings is not None:
            _give(session, session_conf(settings, (), None))
        return session.newSession()


def stop_shared() -> None:
    """End the shared JVM, if there is one: for a module that starts its own, and at the end."""
    global _shared  # noqa: PLW0603 - see above
    if _shared is not None:
        stop_session(_shared)
        _shared = None
        _given.clear()
        gc.collect()


def _give(session: SparkSession, conf: Mapping[str, str]) -> None:
    """Let new sessions start with these settings, and with none that the last call gave."""
    java = session._jsparkSession
    defaults = java.sparkContext().conf(), java.sharedState().conf()
    hadoop = java.sparkContext().hadoopConfiguration()
    for key in _given:
        for each in defaults:
            each.remove(key)
        if key.startswith(HADOOP):
            hadoop.unset(key.removeprefix(HADOOP))
    _given.clear()
    for key, value in conf.items():
        if key.startswith(("spark.sql.catalog.", HADOOP)):
            _given[key] = value
            for each in defaults:
                each.set(key, value)
        if key.startswith(HADOOP):
            hadoop.set(key.removeprefix(HADOOP), value)


if __name__ == "__main__":
    make_quick_starts()
