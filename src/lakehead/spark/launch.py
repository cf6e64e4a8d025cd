"""Connects to the driver's JVM, and tells how it ended."""

import logging
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import py4j
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.java_gateway import JavaGateway, java_import
from py4j.protocol import Py4JError
from pyspark import SparkContext

from lakehead.errors import Unavailable
from lakehead.spark.jvm_process import EXIT_SECONDS, JvmProcess, Output, end_process, has_ended

if TYPE_CHECKING:
    import subprocess

PY4J = str(Path(py4j.__file__).parent)
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


@dataclass(frozen=True, slots=True)
class Jvm:
    """A running driver JVM."""

    gateway: JavaGateway
    output: Output

    @classmethod
    def connect(cls, started: JvmProcess) -> "Jvm":
        """Connect to a JVM as soon as it is ready. Raises `NotStarted` with its output if it does not start."""
        try:
            port, secret = started.connection()
        except BaseException:
            started.end()
            raise
        return cls(_connected(started.process, port, secret), started.output)


DEATH_SECONDS = 1.0
"""How long to wait for a JVM to end after its connections broke."""


class SparkDied(Unavailable):
    """The JVM has ended while its session was in use. What was not published is lost; run it again."""


def death_of(gateway: JavaGateway | None, *, within: float = 0.0) -> SparkDied | None:
    """The error for a JVM that has ended. None while it runs, or if this process did not start it.

    Connections break a moment before the process ends, so after a broken one wait for `within` seconds.
    """
    process = getattr(gateway, "proc", None)
    if process is None or not has_ended(process, within=within):
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
    end_process(gateway.proc, within=within)


def forget_jvm() -> None:
    """Make PySpark forget a JVM that has ended, so that this process can start another."""
    SparkContext._gateway = None  # noqa: SLF001 - PySpark has no public way
    SparkContext._jvm = None  # noqa: SLF001 - as above


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
