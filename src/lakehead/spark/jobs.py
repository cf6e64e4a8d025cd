"""Spark jobs of tables: a session for each thread, and a job group for each table."""

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
"""Our statements depend on these, so they override what a user has set."""

UNSET = ("spark.wap.branch", "spark.wap.id")
"""With these, Iceberg would write to another branch."""


class ThreadSessions:
    """A separate session for each thread, so that settings of one, like snapshot properties, do not affect others.

    They share the context, its executors and its initial configuration, except for the settings that our statements
    depend on. A thread's session is released with the thread.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._threads = threading.local()

    def mine(self) -> SparkSession:
        """This thread's session, created at its first call."""
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
    """Run this thread's jobs under a group and a description, in the given fair pool or one for the group.

    Afterwards the thread's properties are restored. `cancel_group` stops the jobs from any thread.
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
            context.setLocalProperty(key, earlier)  # type: ignore[arg-type] # None removes it


def group_progress(session: SparkSession) -> Callable[[], object]:
    """A function for the progress of this thread's job group: its value changes when a job starts or a task ends.

    Any thread may call it. It returns None if Spark does not answer.
    """
    context = session.sparkContext
    group, tracker = context.getLocalProperty(GROUP), context.statusTracker()
    return lambda: _progress(tracker, lambda: tracker.getJobIdsForGroup(group))


def all_progress(session: SparkSession) -> Callable[[], object]:
    """Like `group_progress`, for all jobs of the session's Spark context, in any group.

    For a process that does one thing, partly through Iceberg's procedures, whose jobs have groups of their own.
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
    """Cancel the group's running jobs, and those that it would start later, so a group's name must not be reused."""
    context = session.sparkContext._jsc.sc()  # noqa: SLF001 - PySpark's own method cancels only running jobs
    context.cancelJobGroupAndFutureJobs(group)
