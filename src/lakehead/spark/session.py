"""The one place where a Spark session is built."""

import sys

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from lakehead.errors import Misconfigured
from lakehead.spark.archive import archive_for, discard
from lakehead.spark.conf import launch_conf, session_conf
from lakehead.spark.jars import Say, jars_for
from lakehead.spark.java import Java, find_java
from lakehead.spark.launch import Jvm, forget_jvm
from lakehead.spark.settings import SparkSettings


def silent(_: str) -> None:
    """Say nothing."""


def build_session(settings: SparkSettings, *, say: Say = silent) -> SparkSession:
    """Start Spark as the settings say. `say` hears of work that is done only once and takes long.

    A process has one at a time; `stop_session` ends it. Java and jars are looked at before anything is started, and
    what is wrong with them is one sentence.
    """
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - asking the class in public would start one
        raise Misconfigured("This process has a Spark session already. Stop it before another one is built.")
    java = find_java(settings)
    jars = jars_for(settings, java, say=say)
    archive = archive_for(settings, java, jars, say=say)
    if not settings.catalogs:
        settings.lakehouse.expanduser().mkdir(parents=True, exist_ok=True)
    if archive is not None:
        try:
            return start(settings, java, session_conf(settings, jars, archive))
        except (Misconfigured, Py4JError, ConnectionError, EOFError):
            # Whatever it was, an archive must never be the reason; without it the error comes again or does not.
            discard(archive)
    return start(settings, java, session_conf(settings, jars, None))


def stop_session(session: SparkSession) -> None:
    """End the session and its JVM, and wait for both. Afterwards this process may build another."""
    gateway = session.sparkContext._gateway  # noqa: SLF001 - PySpark never ends it itself
    session.stop()
    if gateway is not None:
        Jvm(gateway).stop()
    forget_jvm()


def start(settings: SparkSettings, java: Java, conf: dict[str, str]) -> SparkSession:
    """Start a JVM and a session in it with exactly this configuration; if that fails, leave no JVM behind."""
    jvm = Jvm.launch(java, launch_conf(conf))
    given = SparkConf(loadDefaults=False)
    for key, value in conf.items():
        given.set(key, value)
    try:
        context = SparkContext(conf=given, gateway=jvm.gateway)
    except BaseException:
        jvm.stop()
        forget_jvm()
        raise
    context.pythonExec = settings.python or (sys.executable if settings.is_local else "python3")
    return SparkSession.builder.getOrCreate()
