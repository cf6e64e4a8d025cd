"""The fork server that children of tests come from: all is imported there, so that one costs a moment.

There is one for all modules, because a test process has one: what it imports is settled when its first child starts.
It opens nothing, for a store's threads do not survive a fork.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from tests.support.costs import Mechanism, add

ANSWER_SECONDS = 100

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "__main__",
        "tests.chaos.buffer_child",
        "tests.chaos.consume_child",
        "tests.chaos.file_sink_child",
        "tests.chaos.landing_child",
        "tests.chaos.local_store_child",
        "tests.chaos.run_child",
        "tests.support.commands",
        "tests.faults.agent_faults",
        "tests.faults.care_failpoints",
        "tests.faults.gateway_failpoints",
        "tests.support.agents",
        "tests.support.gateways",
        # What is otherwise imported only when it is used, in each child anew.
        "pyiceberg.catalog.rest",
        "pyiceberg.catalog.sql",
        "pyiceberg.io.pyarrow",
        "sqlalchemy.dialects.mysql.pymysql",
        "sqlalchemy.dialects.postgresql.psycopg",
        "sqlalchemy.dialects.sqlite.pysqlite",
    ]
)


class Forked:
    """A process with words for a command line, lines in and lines out, as `subprocess.Popen` has them."""

    def __init__(self, main: Callable[[list[str]], None], words: Sequence[str]) -> None:
        input_, ours = FORKS.Pipe(duplex=False)
        theirs, output = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(target=_forked, args=(main, list(words), input_, output), daemon=True)
        self._process.start()
        self.stdin = os.fdopen(os.dup(ours.fileno()), "w")
        self.stdout = os.fdopen(os.dup(theirs.fileno()), "r")
        for end in (input_, ours, theirs, output):
            end.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        add(Mechanism.KILLS)

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        self._process.join(ANSWER_SECONDS)
        assert self._process.exitcode is not None, "it does not end"
        return self._process.exitcode

    def await_stop(self) -> None:
        """Wait until it has stopped itself."""
        until = time.monotonic() + ANSWER_SECONDS
        while _state(self.pid) != "T":
            assert self._process.is_alive(), "it ended"
            assert time.monotonic() < until, "it does not stop"
            time.sleep(0.001)

    def close(self) -> None:
        """End it and whatever it has started."""
        if self._process.is_alive():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._process.close()
        self.stdout.close()
        with suppress(BrokenPipeError):
            self.stdin.close()


@contextmanager
def forked(main: Callable[[list[str]], None], *words: str | Path) -> Iterator[Forked]:
    """A process of its own group; the whole group is gone afterwards, however the test ends."""
    process = Forked(main, [str(word) for word in words])
    try:
        yield process
    finally:
        process.close()


def _forked(main: Callable[[list[str]], None], words: list[str], input_: Connection, output: Connection) -> None:
    os.setsid()
    os.dup2(input_.fileno(), 0)
    os.dup2(output.fileno(), 1)
    input_.close()
    output.close()
    sys.stdin, sys.stdout = os.fdopen(0, "r"), os.fdopen(1, "w")
    main(words)


def _state(process: int) -> str:
    """The letter that the system has for what a process does."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
