"""The driver's JVM: started through Spark's own launcher, with everything it prints in our hands."""

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from lakehead.errors import Misconfigured
from lakehead.spark.java import Java

EXIT_SECONDS = 60
KEPT_LINES = 20
START_NOISE = (
    b"WARNING: Using incubator modules: ",  # Spark's own launcher asks for them
    b"Picked up JAVA_TOOL_OPTIONS: ",
    b"Picked up _JAVA_OPTIONS: ",
    b"NOTE: Picked up JDK_JAVA_OPTIONS: ",
)


class Output:
    """What a JVM prints, on either of its outputs, passed on to our standard error without the noise of a start."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        self.last: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._reader = threading.Thread(target=self._pass_on, name="jvm-output", daemon=True)
        self._reader.start()

    def _pass_on(self) -> None:
        with os.fdopen(self._reading, "rb") as lines:
            for line in lines:
                if line.startswith(START_NOISE):
                    continue
                self.last.append(line)
                os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, line)

    def handed_over(self) -> None:
        """Leave the writing end to the JVM: the reader ends when it does."""
        os.close(self.writing)


@dataclass(frozen=True, slots=True)
class Jvm:
    """A running driver JVM."""

    gateway: JavaGateway

    @classmethod
    def launch(cls, java: Java, conf: Mapping[str, str]) -> "Jvm":
        """Start one. `conf` stands on its command line, which everybody on the machine can read: no secrets."""
        given = SparkConf(loadDefaults=False)
        for key, value in conf.items():
            given.set(key, value)
        output = Output()
        try:
            with _launcher_environment(java):
                outputs = {"stdout": output.writing, "stderr": output.writing}
                return cls(launch_gateway(given, outputs))  # type: ignore[no-untyped-call]  # PySpark leaves it so
        except PySparkRuntimeError as error:
            said = b" ".join(output.last).decode(errors="replace")
            raise Misconfigured(
                f"Spark's JVM did not start; it said: {' '.join(said.split())[:500] or 'nothing'}. Check Java, the "
                "driver's memory and the Java options; `lakehead doctor` tries it step by step."
            ) from error
        finally:
            output.handed_over()

    def stop(self) -> None:
        """End it, and wait until it is gone: what it writes at its end is then written."""
        self.gateway.shutdown()
        self.gateway.proc.stdin.close()
        self.gateway.proc.wait(EXIT_SECONDS)


def forget_jvm() -> None:
    """Make PySpark forget a JVM that has ended, so that this process can start another."""
    SparkContext._gateway = None  # noqa: SLF001 - PySpark has no word for it
    SparkContext._jvm = None  # noqa: SLF001 - nor for this


@contextmanager
def _launcher_environment(java: Java) -> Iterator[None]:
    """Spark's launcher learns which Java to use from its environment, and PySpark lets it inherit only ours."""
    wanted = {
        "JAVA_HOME": str(java.home),
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1",  # it lives for a blink
    }
    before = {name: os.environ.get(name) for name in wanted}  # noqa: TID251 - to put it back; settings decide
    os.environ.update(wanted)  # noqa: TID251 - the launcher reads nothing else
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]  # noqa: TID251 - as it was
            else:
                os.environ[name] = value  # noqa: TID251 - as it was
