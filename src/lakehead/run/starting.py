"""A Spark session that starts while everything else is loaded and opened."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from pyspark.sql import SparkSession

from lakehead.spark.jars import Say
from lakehead.spark.session import build_session, stop_session
from lakehead.spark.settings import SparkSettings

STOP_SECONDS = 10.0
"""How long whoever ends the process waits for a start that is under way: it may be fetching jars for many minutes."""


@contextmanager
def starting(settings: SparkSettings, say: Say) -> Iterator[Callable[[], SparkSession]]:
    """Start Spark beside whatever is done within the `with`, and stop it at its end.

    What is yielded waits for the session, and raises what its start raised. A start that goes on while somebody ends
    the process is left to that end: a JVM ends with the process that has started it.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="lakehead-start")
    started = pool.submit(build_session, settings, say=say)
    pool.shutdown(wait=False)  # there is no more to start
    patience: float | None = None
    try:
        yield started.result
    except (KeyboardInterrupt, SystemExit):
        patience = STOP_SECONDS
        raise
    finally:
        if _has_started(started, within=patience):
            stop_session(started.result())


def _has_started(started: "Future[SparkSession]", *, within: float | None) -> bool:
    try:
        return started.exception(within) is None
    except TimeoutError:
        return False
