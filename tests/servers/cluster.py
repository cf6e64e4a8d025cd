"""A real Spark cluster for tests: one master and workers, from the installed PySpark, on free loopback ports."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pyspark

from tests.servers.ports import free_ports
from tests.support.costs import Mechanism, spent_on

SPARK = Path(pyspark.__file__).parent
WORKERS = 2
MEMORY = "512m"
START_TIMEOUT = 60.0
LIGHT = "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Djava.net.preferIPv4Stack=true"


class Cluster:
    """One master and its workers, each with one core. `start` returns when all workers are known to the master."""

    def __init__(self, java: Path) -> None:
        self._java = java
        self._port, self._pages = free_ports(2)
        self._folder = Path(tempfile.mkdtemp(prefix="lakehead-cluster-"))
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        """Its master URL."""
        return f"spark://127.0.0.1:{self._port}"

    @spent_on(Mechanism.SERVER)
    def start(self) -> None:
        """Start the master, then the workers."""
        self._run("master.Master", "--port", str(self._port), "--webui-port", str(self._pages))
        self._await_workers(0)  # a worker that finds no master tries again only after seconds
        for number in range(WORKERS):
            work = str(self._folder / f"work-{number}")
            self._run("worker.Worker", *("-c", "1", "-m", MEMORY, "-d", work, "--webui-port", "0", self.master))
        self._await_workers(WORKERS)

    def stop(self) -> None:
        """Stop every process, workers first, and remove what they wrote."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, daemon: str, *arguments: str) -> None:
        with (self._folder / "log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [
                        *(str(self._java), *LIGHT, "-Dspark.master.rest.enabled=false"),
                        *("-cp", f"{SPARK}/jars/*", f"org.apache.spark.deploy.{daemon}", "--host", "127.0.0.1"),
                        *arguments,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._folder,
                    env={
                        **os.environ,
                        "JAVA_HOME": str(self._java.parent.parent),
                        "SPARK_HOME": str(SPARK),
                        "SPARK_SCALA_VERSION": "2.13",
                        "SPARK_LOCAL_IP": "127.0.0.1",  # its pages too are for nobody outside
                    },
                )
            )

    def _await_workers(self, count: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while all(each.poll() is None for each in self._processes) and time.monotonic() < deadline:
            if self._known_workers() == count:
                return
            time.sleep(0.05)
        words = (self._folder / "log").read_text(errors="replace")[-2000:]
        raise TimeoutError(f"The Spark cluster did not start; its last words:\n{words}")

    def _known_workers(self) -> int | None:
        connection = HTTPConnection("127.0.0.1", self._pages, timeout=5)
        try:
            connection.request("GET", "/json/")
            known: int = json.load(connection.getresponse())["aliveworkers"]
        except (OSError, HTTPException, ValueError):
            return None
        else:
            return known
        finally:
            connection.close()
