"""Starts the driver's JVM, connects to it, and captures its output."""

import logging
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import py4j
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.java_gateway import JavaGateway, java_import
from py4j.protocol import Py4JError
from pyspark import SparkContext

from lakehead.errors import Misconfigured, Unavailable
from lakehead.spark.command import command_for, environment_for
from lakehead.spark.java import Java

PY4J = str(Path(py4j.__file__).parent)
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
# The Java names that PySpark uses without their packages.
IMPORTS = (
    "org.apache.spark.SparkConf",
    "org.apache.spark.api.java.*",
    "org.apache.spark.api.python.*",
    "org.apache.spark.ml.python.*",
    "org.apache.spark.mllib.api.python.*",
    "org.apache.spark.resource.*",
    "org.apache.spark.sql.Encoders",
    "org.apache.spark.sql.OnSuccessCall",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.*",
    "org.apache.spark.sql.api.python.*",
    "org.apache.spark.sql.hive.*",
    "scala.Tuple2",
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
class Jvm:
    """A running driver JVM."""

    gateway: JavaGateway
    output: Output

    @classmethod
    def launch(cls, java: Java, conf: Mapping[str, str]) -> "Jvm":
        """Start a JVM. `conf` is on its command line, which all users of the machine can read: no secrets.

        Its output is held until `output.pass_on` is called. Raises `NotStarted` with the output if it does not start.
        """
        inherited = os.environ  # noqa: TID251 - a child process inherits our environment
        output = Output()
        with tempfile.TemporaryDirectory(prefix="lakehead-jvm-") as folder:
            connection = Path(folder) / "connection"
            process = subprocess.Popen(  # noqa: S603 - the Java that was found, or Spark's own script
                command_for(java, conf, inherited),
                env=environment_for(java, inherited) | {CONNECTION: str(connection)},
                stdin=subprocess.PIPE,  # the JVM ends when this closes, so also when we die
                stdout=output.writing,
                stderr=output.writing,
                preexec_fn=_ignore_interrupts,  # noqa: PLW1509 - it takes no lock
            )
            os.close(output.writing)  # the reader ends when the JVM does
            try:
                port, secret = _await_connection(process, connection, output)
            except BaseException:
                _end(process)
                raise
        return cls(_connected(process, port, secret), output)


DEATH_SECONDS = 1.0
"""How long to wait for a JVM to end after its connections broke."""


class SparkDied(Unavailable):
    """The JVM has ended while its session was in use. What was not published is lost; run it again."""


def death_of(gateway: JavaGateway | None, *, within: float = 0.0) -> SparkDied | None:
    """The error for a JVM that has ended. None while it runs, or if this process did not start it.

    Connections break a moment before the process ends, so after a broken one wait for `within` seconds.
    """
    process = getattr(gateway, "proc", None)
    if process is None or not _has_ended(process, within=within):
        return None
    code = process.returncode
    number = -code if code < 0 else code - 128  # a shell adds 128
    if number in {each.value for each in signal.Signals}:
        how = f"was killed by {signal.Signals(number).name}"
    else:
        how = f"ended with exit code {code}"
    if number == signal.SIGKILL:
        advice = (
            "The system does that when memory runs out (see its log: dmesg). Give this machine or container more "
            "memory, or use less: spark.driver_memory, runtime.max_parallel_tables"
        )
    else:
        advice = "What it said last is above; if its memory ran out, raise spark.driver_memory"
    return SparkDied(f"Spark died: its JVM {how}. {advice}. What had landed stays; run it again to go on.")


def end_jvm(gateway: JavaGateway, *, within: float = EXIT_SECONDS) -> None:
    """End the JVM of a gateway, and wait for it, so that everything it writes at exit is written.

    It is killed if that takes longer than `within` seconds.
    """
    with suppress(Py4JError, OSError):  # it may have ended by itself
        gateway.shutdown()
    _end(gateway.proc, within=within)


def forget_jvm() -> None:
    """Make PySpark forget a JVM that has ended, so that this process can start another."""
    SparkContext._gateway = None  # noqa: SLF001 - PySpark has no public way
    SparkContext._jvm = None  # noqa: SLF001 - as above


def _await_connection(process: "subprocess.Popen[bytes]", written: Path, output: Output) -> tuple[int, str]:
    """The port and the secret that the JVM writes when it is ready for calls."""
    while not written.is_file():
        if _has_ended(process, within=LOOK_SECONDS):
            raise NotStarted(
                f"Spark's JVM did not start; it said: {output.text()}. Check Java, the driver's memory and the Java "
                "options; `lakehead doctor` tries it step by step."
            )
    content = written.read_bytes()
    port, length = struct.unpack_from(">ii", content)
    return port, content[8 : 8 + length].decode()


def _connected(process: "subprocess.Popen[bytes]", port: int, secret: str) -> ClientServer:
    """A gateway for PySpark, with a Java thread for each Python thread."""
    # Py4J logs each lost connection with a stack trace, to its own or the root logger, although it raises an error too.
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    logging.getLogger().addFilter(_is_not_of_py4j)
    gateway = ClientServer(
        java_parameters=JavaParameters(port=port, auth_token=secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )
    gateway.proc = process
    for name in IMPORTS:
        java_import(gateway.jvm, name)
    return gateway


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return not record.pathname.startswith(PY4J)


def _end(process: "subprocess.Popen[bytes]", *, within: float = EXIT_SECONDS) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if not _has_ended(process, within=within):
        process.kill()
        process.wait()


def _has_ended(process: "subprocess.Popen[bytes]", *, within: float) -> bool:
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
