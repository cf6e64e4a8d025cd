"""Whose job it is: a session for each thread, and a job group for each table."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from pyspark import StatusTracker
from pyspark.sql import SparkSession

from lakehead.spark.reasons import SPARKS_ERRORS

GROUP = "spark.jobGroup.id"
DESCRIPTION = "spark.job.description"
INTERRUPT = "spark.job.interruptOnCancel"
POOL = "spark.scheduler.pool"

PINNED = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.variable.substitute": "false",
}
"""What our statements mean depends on these, whatever somebody has set for the queries of their own."""

UNSET = ("spark.wap.branch", "spark.wap.id")
"""Iceberg would take what we write elsewhere."""


class ThreadSessions:
    """A session of its own for each thread that asks: what one sets (snapshot properties) the others do not see.

    They share the context, its executors and its configuration as it was at the start, but for what our statements
    depend on. A thread's session goes with it.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._threads = threading.local()

    def mine(self) -> SparkSession:
        """This thread's session, made when it first asks."""
        mine: SparkSession | None = getattr(self._threads, "session", None)
        if mine is None:
            mine = self._threads.session = _pinned(self._session.newSession())
        return mine


def _pinned(session: SparkSession) -> SparkSession:
    for key, value in PINNED.items():
        session.conf.set(key, value)
    for key in UNSET:
        session.conf.unset(key)
    return session


@contextmanager
def job_group(session: SparkSession, group: str, description: str, *, pool: str | None = None) -> Iterator[None]:
    """Run this thread's jobs under a group and a description, in a fair pool of the group's own or the one named.

    Afterwards the thread is as it was, whatever happened. `cancel_group` stops them from any thread.
    """
    context = session.sparkContext
    wanted = {GROUP: group, DESCRIPTION: description, INTERRUPT: "true", POOL: pool or group}
    before = {key: context.getLocalProperty(key) for key in wanted}
    try:
        for key, value in wanted.items():
            context.setLocalProperty(key, value)
        yield
    finally:
        for key, earlier in before.items():
            context.setLocalProperty(key, earlier)  # type: ignore[arg-type] # None takes it away


def group_progress(session: SparkSession) -> Callable[[], object]:
    """Tells how far the jobs of this thread's group are: another value whenever one begins, or one of its tasks ends.

    Any thread may ask. The answer is None where Spark does not give one.
    """
    context = session.sparkContext
    group, tracker = context.getLocalProperty(GROUP), context.statusTracker()
    return lambda: _progress(tracker, lambda: tracker.getJobIdsForGroup(group))


def all_progress(session: SparkSession) -> Callable[[], object]:
    """As `group_progress`, of all jobs that run in the session's Spark, whatever their group.

    For a process with one piece of work, part of which Iceberg's procedures do: their jobs have groups of their own.
    """
    tracker = session.sparkContext.statusTracker()
    return lambda: _progress(tracker, tracker.getActiveJobsIds)


def _progress(tracker: StatusTracker, ids: Callable[[], Iterable[int]]) -> object:
    try:
        jobs = set(ids())
        running = [tracker.getJobInfo(job) for job in jobs & set(tracker.getActiveJobsIds())]
        stages = [stage for job in running if job for stage in job.stageIds]
        tasks = [info.numCompletedTasks for stage in stages if (info := tracker.getStageInfo(stage))]
        return max(jobs, default=-1), len(stages), sum(tasks)
    except (*SPARKS_ERRORS, OSError):
        return None


def cancel_group(session: SparkSession, group: str) -> None:
    """Cancel the group's running jobs, and those that its thread would start next: a group's name is used once."""
    context = session.sparkContext._jsc.sc()  # noqa: SLF001 - PySpark offers only the half for running jobs
    context.cancelJobGroupAndFutureJobs(group)
