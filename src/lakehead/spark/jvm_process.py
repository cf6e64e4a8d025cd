"""Starts the driver's JVM as a process, and captures its output. Imports neither PySpark nor Py4J: those take long."""

import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lakehead.errors import Misconfigured
from lakehead.spark.command import command_for, environment_for
from lakehead.spark.java import Java

EXIT_SECONDS = 60
LOOK_SECONDS = 0.01
HELD_LINES = 1000
LONGEST_TEXT = 500
CONNECTION = "_PYSPARK_DRIVER_CONN_INFO_PATH"
START_NOISE = (
    b"WARNING: Using incubator modules: ",  # Spark's script asks for them
    b"Picked up JAVA_TOOL_OPTIONS: ",
    b"Picked up _JAVA_OPTIONS: ",
    b"NOTE: Picked up JDK_JAVA_OPTIONS: ",
)


class NotStarted(Misconfigured):
    """The JVM did not start, or ended before its session was created."""


class Output:
    """The standard output and error of a JVM: held while it starts, then passed on to our standard error."""

    def __init__(self) -> None:
        reading, self.writing = os.pipe()
        self._held: deque[bytes] | None = deque(maxlen=HELD_LINES)
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, args=(reading,), name="jvm-output", daemon=True)
        self._reader.start()

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                if line.startswith(START_NOISE):
                    continue
                with self._lock:
                    if self._held is None:
                        _to_standard_error(line)
                    else:
                        self._held.append(line)

    def pass_on(self) -> None:
        """Pass on the held output, and from now on every line at once."""
        with self._lock:
            if self._held:
                _to_standard_error(b"".join(self._held))
            self._held = None

    def text(self) -> str:
        """The held output of a JVM that has ended, on one line and shortened."""
        self._reader.join(EXIT_SECONDS)
        with self._lock:
            words = b" ".join(self._held or ()).decode(errors="replace").split()
        return " ".join(words)[:LONGEST_TEXT].rstrip(".") or "nothing"


@dataclass(frozen=True, slots=True)
class JvmProcess:
    """A JVM that is starting."""

    process: "subprocess.Popen[bytes]"
    output: Output
    folder: "tempfile.TemporaryDirectory[str]"
    """Where it writes how to connect to it."""

    @classmethod
    def launch(cls, java: Java, conf: Mapping[str, str]) -> "JvmProcess":
        """Start a JVM, without waiting for it. `conf` is on its command line, which all users can read: no secrets.

        Its output is held until `output.pass_on` is called.
        """
        inherited = os.environ  # noqa: TID251 - a child process inherits our environment
        output = Output()
        folder = tempfile.TemporaryDirectory(prefix="lakehead-jvm-")
        process = subprocess.Popen(  # noqa: S603 - the Java that was found, or Spark's own script
            command_for(java, conf, inherited),
            env=environment_for(java, inherited) | {CONNECTION: str(Path(folder.name) / "connection")},
            stdin=subprocess.PIPE,  # the JVM ends when this closes, so also when we die
            stdout=output.writing,
            stderr=output.writing,
            preexec_fn=_ignore_interrupts,  # noqa: PLW1509 - it takes no lock
        )
        os.close(output.writing)  # the reader ends when the JVM does
        return cls(process, output, folder)

    def connection(self) -> tuple[int, str]:
        """The port and the secret that the JVM writes when it is ready for calls. Waits for them.

        Raises `NotStarted` with its output if it does not start.
        """
        written = Path(self.folder.name) / "connection"
        with self.folder:
            while not written.is_file():
                if has_ended(self.process, within=LOOK_SECONDS):
                    raise NotStarted(
                        f"Spark's JVM did not start; it said: {self.output.text()}. Check Java, the driver's memory "
                        "and the Java options; `lakehead doctor` tries it step by step."
                    )
            content = written.read_bytes()
        port, length = struct.unpack_from(">ii", content)
        return port, content[8 : 8 + length].decode()

    def end(self) -> None:
        """End the JVM, and wait for it."""
        end_process(self.process)
        self.folder.cleanup()


def end_process(process: "subprocess.Popen[bytes]", *, within: float = EXIT_SECONDS) -> None:
    """Let a JVM end, and wait for it; it is killed if that takes longer than `within` seconds."""
    if process.stdin is not None:
        process.stdin.close()
    if not has_ended(process, within=within):
        process.kill()
        process.wait()


def has_ended(process: "subprocess.Popen[bytes]", *, within: float) -> bool:
    """Whether a process ends within so many seconds."""
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C in the JVM: Python handles it and ends the JVM in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _to_standard_error(lines: bytes) -> None:
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, lines)
