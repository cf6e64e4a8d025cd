"""A Spark session that starts while everything else is loaded and opened."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from pyspark.sql import SparkSession

from lakehead.spark.jars import Say
from lakehead.spark.session import build_session, stop_session
from lakehead.spark.settings import SparkSettings


@contextmanager
def starting(settings: SparkSettings, say: Say) -> Iterator[Callable[[], SparkSession]]:
    """Start Spark beside whatever is done within the `with`, and stop it at its end.

    What is yielded waits for the session, and raises what its start raised.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="lakehead-start") as pool:
        started = pool.submit(build_session, settings, say=say)
        try:
            yield started.result
        finally:
            if started.exception() is None:
                stop_session(started.result())
