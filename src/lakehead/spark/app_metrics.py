"""What Spark counts of its work: tasks, bytes, spill and garbage collection, over the whole application."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from lakehead.spark.reasons import SPARKS_ERRORS

FINAL = frozenset({"COMPLETE", "FAILED", "SKIPPED"})
"""The states of stages that change no more."""


class SparkAppMetrics:
    """Reads Spark's counts since this object was made. Any thread may call `read`, one at a time.

    Spark keeps only the latest stages, so the counts of stages that ended are kept here.
    """

    def __init__(self, session: SparkSession) -> None:
        self._context = session.sparkContext
        self._ended: dict[str, int] = {"bytes_read": 0, "bytes_written": 0, "bytes_spilled": 0}
        self._first_open = 0
        """The lowest id of a stage that had not ended when last read."""
        self._counted: set[tuple[int, int]] = set()
        """Stages from that id on that are counted in `_ended`, by id and attempt."""
        self._before: Mapping[str, int | float] = self._totals() or {}

    def read(self) -> Mapping[str, int | float] | None:
        """Return the counts since the start; None if Spark does not answer."""
        totals = self._totals()
        if totals is None:
            return None
        return {
            name: value if name == "tasks_active" else max(value - self._before.get(name, 0), 0)
            for name, value in totals.items()
        }

    def _totals(self) -> dict[str, int | float] | None:
        try:
            executors, stages = self._ask()
        except (*SPARKS_ERRORS, OSError, EOFError, ValueError):
            return None
        return {
            "tasks_active": sum(each["activeTasks"] for each in executors),
            "tasks_done": sum(each["completedTasks"] for each in executors),
            "tasks_failed": sum(each["failedTasks"] for each in executors),
            **self._bytes(stages),
            "gc_seconds": sum(each["totalGCTime"] for each in executors) / 1000,
        }

    def _ask(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the executors, and the stages from the first one on that may have changed, as Spark's API has them."""
        gateway: Any = self._context._gateway  # noqa: SLF001 - not in the public API of PySpark
        store = self._context._jsc.sc().statusStore()  # noqa: SLF001 - see above
        jvm = gateway.jvm
        mapper = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
        executors = json.loads(mapper.writeValueAsString(store.executorList(False)))  # noqa: FBT003 - Java's API
        none = gateway.new_array(jvm.double, 0)
        listed = store.stageList(None, False, False, none, jvm.java.util.ArrayList())  # noqa: FBT003 - see above
        newest = listed.head().stageId() if listed.nonEmpty() else -1
        # The newest come first. A retried stage is listed once for each attempt, hence the margin.
        some = listed.take(max(newest - self._first_open + 1, 0) + 10)
        return executors, json.loads(mapper.writeValueAsString(some))

    def _bytes(self, stages: list[dict[str, Any]]) -> dict[str, int]:
        running = dict.fromkeys(self._ended, 0)
        still_open = []
        for stage in stages:
            number = (stage["stageId"], stage["attemptId"])
            if number[0] < self._first_open or number in self._counted:
                continue
            ended = stage["status"] in FINAL
            into = self._ended if ended else running
            into["bytes_read"] += stage["inputBytes"]
            into["bytes_written"] += stage["outputBytes"]
            into["bytes_spilled"] += stage["diskBytesSpilled"]
            if ended:
                self._counted.add(number)
            else:
                still_open.append(number[0])
        newest = max((stage["stageId"] for stage in stages), default=self._first_open - 1)
        self._first_open = min(still_open, default=newest + 1)
        self._counted = {number for number in self._counted if number[0] >= self._first_open}
        return {name: count + running[name] for name, count in self._ended.items()}
