"""`lakehead run` in a process of its own, that a test may kill or hold at moments of its way.

The command is the real one: only a few of its steps are watched. Each has a moment just before it and one just after
it, counted: `after slice 2` is when the second slice of this process has landed and is settled. Processes come from a
fork server that has everything imported, so one costs little more than its JVM, or little if it borrows the test's.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from lakehead.extract.file_table_sink import FileTableSink
from lakehead.extract.iceberg_table_sink import IcebergTableSink
from lakehead.lake.filesink.file_sink import FileSink
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Head
from lakehead.lake.ports import Staged
from lakehead.run import ingestion, maintain_tables, run_command, run_tables, spark_startup  # noqa: F401 - the command loads them later
from lakehead.run.environment import ENVIRONMENT  # noqa: F401 - as above
from lakehead.run.main import main
from lakehead.spark.settings import SparkSettings
from lakehead.state.progress import ProgressRecords
from lakehead.state.slices import SlicePlans
from tests.faults.failpoints import around, die
from tests.support.costs import Mechanism, add
from tests.support.forks import FORKS
from tests.support.spark import Borrowed

ANSWER_SECONDS = 200
DIE, HOLD = "die", "hold"


# --- the process


def watch(reach: Callable[[str], None]) -> None:
    """Call this at each moment, from now on."""
    counted: Counter[str] = Counter()

    def at(step: str) -> Any:
        counted[step] += 1
        return around(f"{step} {counted[step]}", reach)

    def watched(call: Callable[..., Any], step: str) -> Callable[..., Any]:
        def watching(*args: Any, **kwargs: Any) -> Any:
            with at(step):
                return call(*args, **kwargs)

        return watching

    publish = IcebergTable.publish

    async def publishing(self: IcebergTable, staged: Staged[Any], head: Head) -> Head:
        with at(f"publish {self.name.partition('.')[0]}"):
            return await publish(self, staged, head)

    steps = [
        ("write_raw", "load"),
        ("finalize_full", "finalize"),
        ("stage_incremental_slice", "slice"),
        ("commit_incremental", "merge"),
    ]
    places: list[tuple[type, str, str]] = [
        (SlicePlans, "save", "plan"),
        *((sink, method, step) for sink in (IcebergTableSink, FileTableSink) for method, step in steps),
        (FileSink, "stage", "stage"),
        (FileSink, "publish", "publish"),
        (ProgressRecords, "advance", "mark"),
        (ProgressRecords, "mark_days", "day"),
    ]
    for owner, method, step in places:
        setattr(owner, method, watched(getattr(owner, method), step))
    setattr(IcebergTable, "publish", publishing)  # noqa: B010 - a method is replaced, which mypy would not have


def borrow(jvm: Borrowed) -> None:
    """Let the command use a JVM that is there, and leave it running."""

    def start_session(settings: SparkSettings, *_: object, **__: object) -> SparkSession:
        return jvm.session(settings)

    for module, start, end in (
        (spark_startup, "start_session", "end_session"),
        (maintain_tables, "build_session", "stop_session"),
    ):
        setattr(module, start, start_session)
        setattr(module, end, lambda _: None)


def child(
    arguments: list[str],
    environment: Mapping[str, str],
    output: Path,
    what: str,
    moment: str,
    jvm: Borrowed | None,
    theirs: Connection,
) -> None:
    """Run `lakehead` with these arguments, until the moment comes."""

    def reach(reached: str) -> None:
        if reached == moment:
            theirs.send(moment)
            if what == DIE:
                die()
            theirs.recv()

    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stdout.fileno())
    os.environ.update(environment)
    sys.argv = ["lakehead", *arguments]
    watch(reach)
    if jvm is not None:
        borrow(jvm)
    main()


# --- the test's end of it


class Runner:
    """A `lakehead run` that has been started."""

    def __init__(
        self,
        config: Path,
        environment: Mapping[str, str],
        what: str,
        moment: str,
        jvm: Borrowed | None,
        options: Sequence[str] = (),
    ) -> None:
        self.moment = moment
        self._output = config.parent / f"{uuid4()}.jsonl"
        self._output.touch()
        self._ours, theirs = FORKS.Pipe()
        arguments = ["run", str(config), *options]
        given = (arguments, dict(environment), self._output, what, moment, jvm, theirs)
        self._process = FORKS.Process(target=child, args=given, daemon=True)
        self._process.start()
        self.pid = self._process.pid
        theirs.close()

    def arrive(self) -> None:
        """Wait until it is where it is held or killed."""
        assert self._ours.poll(ANSWER_SECONDS), f"it does not come to {self.moment!r}"
        try:
            assert self._ours.recv() == self.moment
        except EOFError:
            raise AssertionError(f"it ended without coming to {self.moment!r}: {self._said()}") from None

    def tells(self, kind: str) -> None:
        """Wait until it has told an event of a kind."""
        while not any(json.loads(line)["kind"] == kind for line in self._said().splitlines() if line.endswith("}")):
            assert self._process.is_alive(), self._said()
            time.sleep(0.05)  # how often is asked; nothing depends on it

    def go(self) -> None:
        """Let it go on."""
        self._ours.send("go")

    def dead(self) -> None:
        """Wait until it has been killed where it was to be."""
        self.arrive()
        self._process.join(ANSWER_SECONDS)
        assert self._process.exitcode == -signal.SIGKILL
        add(Mechanism.KILLS)

    def done(self) -> list[dict[str, Any]]:
        """Wait until it has come to its end, and to a good one; what it told."""
        self._process.join(ANSWER_SECONDS)
        assert self._process.exitcode == 0, self._said()
        return [json.loads(line) for line in self._said().splitlines()]

    def await_told(self, kind: str) -> list[dict[str, Any]]:
        """Wait until it has told an event of a kind; all that it has told by then."""
        while f'"kind": "{kind}"' not in self._said():
            assert self._process.is_alive(), f"it ended without telling of {kind}: {self._said()}"
            time.sleep(0.02)  # how often is looked; nothing depends on it
        return [json.loads(line) for line in self._said().splitlines(keepends=True) if line.endswith("\n")]

    def stopped_by(self, number: signal.Signals) -> tuple[int | None, list[dict[str, Any]]]:
        """Send it a signal and wait for its end; its exit code, and what it told."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)
        self._process.join(ANSWER_SECONDS)
        return self._process.exitcode, [json.loads(line) for line in self._said().splitlines()]

    def close(self) -> None:
        self._ours.close()
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._process.close()

    def _said(self) -> str:
        return self._output.read_text()


@contextmanager
def running(
    config: Path,
    environment: Mapping[str, str],
    what: str = HOLD,
    moment: str = "never",
    *,
    jvm: Borrowed | None = None,
    options: Sequence[str] = (),
) -> Iterator[Runner]:
    """A run that is gone afterwards, however the test ends. It has a JVM of its own unless it borrows one."""
    if jvm is None:
        add(Mechanism.JVM)
    runner = Runner(config, environment, what, moment, jvm, options)
    try:
        yield runner
    finally:
        runner.close()
