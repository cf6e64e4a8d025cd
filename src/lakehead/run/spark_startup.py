"""Starts a Spark session in the background, while everything else is loaded and opened."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

from lakehead.spark.jars import Say
from lakehead.spark.prepared import start_jvm
from lakehead.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_SECONDS = 10.0
"""How long an interrupted command waits for a start in progress, which may be downloading jars for minutes."""


@contextmanager
def start_in_background(settings: SparkSettings, say: Say) -> Iterator[Callable[[], "SparkSession"]]:
    """Start Spark in the background of the `with` block, and stop it at the end.

    Yields a function that waits for the session and returns it, or raises the error of its start. If the process is
    interrupted during the start, the JVM is left to end with the process.
    """
    pool, imported = ThreadPoolExecutor(1, thread_name_prefix="lakehead-start"), Event()
    started = pool.submit(start_session, settings, say, imported)
    pool.shutdown(wait=False)  # nothing else is submitted
    timeout: float | None = None
    try:
        try:
            import pyspark.sql  # noqa: F401, PLC0415 - by one thread alone: its modules import each other
        finally:
            imported.set()
        yield started.result
    except (KeyboardInterrupt, SystemExit):
        timeout = STOP_SECONDS
        raise
    finally:
        if _has_started(started, within=timeout):
            end_session(started.result())


def start_session(settings: SparkSettings, say: Say, imported: Event) -> "SparkSession":
    """Start the JVM at once, and a session in it when PySpark is imported."""
    starting = start_jvm(settings, say=say)
    imported.wait()
    from lakehead.spark.session import connect  # noqa: PLC0415 - see above

    return connect(starting)


def end_session(session: "SparkSession") -> None:
    """Stop a session and its JVM."""
    from lakehead.spark.session import stop_session  # noqa: PLC0415 - as above

    stop_session(session)


def _has_started(started: "Future[SparkSession]", *, within: float | None) -> bool:
    try:
        return started.exception(within) is None
    except TimeoutError:
        return False
