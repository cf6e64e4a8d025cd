"""`lakehead` commands that serve until they are killed, as processes of their own."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from lakehead.run.main import command
from tests.support.forks import FORKS

START_SECONDS = 60.0


@dataclass
class ServingProcess:
    """A command with a configuration that was started, and may be killed and started again."""

    words: ClassVar[tuple[str, ...]]
    """The command, without the configuration."""

    config: Path
    env: Mapping[str, str]
    log: Path
    """What it says, since it was last started."""

    before: Callable[[], None] | None = None
    """Called in the process before the command runs; a function of a module, or a `partial` of one."""

    _process: Any = field(default=None, init=False, repr=False)

    def start(self) -> Self:
        """Start it, and wait until it says where it listens."""
        self.log.unlink(missing_ok=True)
        self._process = FORKS.Process(
            target=_run, args=([*self.words, str(self.config)], dict(self.env), self.log, self.before), daemon=True
        )
        self._process.start()
        ends = time.monotonic() + START_SECONDS
        while not self.is_listening(self.said):
            assert self._process.is_alive(), self.said
            assert time.monotonic() < ends, self.said
            time.sleep(0.02)
        return self

    def is_listening(self, said: str) -> bool:
        """Whether it has said where it listens, which is noted."""
        raise NotImplementedError

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def pause(self) -> None:
        """Stop it in the middle of whatever it does, until `resume` or `kill`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def wait(self) -> int | None:
        """Wait until it has ended by itself. Returns its exit code."""
        self._process.join(START_SECONDS)
        code: int | None = self._process.exitcode
        return code

    def terminate(self) -> int | None:
        """Stop it as an operator does. Returns its exit code."""
        self._process.terminate()
        return self.wait()


def _run(words: list[str], env: Mapping[str, str], log: Path, before: Callable[[], None] | None) -> None:
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.update(env)
    if before is not None:
        before()
    sys.argv = ["lakehead", *words]
    command()
