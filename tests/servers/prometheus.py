"""A real Prometheus for tests: Debian's package, on a free loopback port, its data in a folder of its own.

`python -m tests.servers.prometheus` unpacks the package into the cache, without installing it: that would start a
service. It needs Debian's or Ubuntu's `apt-get`, or it is given the file of the package.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lakehead.run.environment import spark_settings
from lakehead.spark.cache import locked, workshop
from tests.servers.ports import free_ports
from tests.support.costs import Mechanism, spent_on

START_TIMEOUT = 100.0
"""Seconds for a start, which takes one: it ends what hangs, and not what is slow beside others."""

DOWNLOAD_TIMEOUT = 600.0


class Prometheus:
    """One server. `start` returns when it is ready; `kill` is a power cut; both can be repeated."""

    def __init__(self, folder: Path, config: str, *options: str) -> None:
        """`config` is the content of its configuration file."""
        [self.port] = free_ports(1)
        self._folder, self._config, self._options = folder, config, options
        self._process: subprocess.Popen[bytes] | None = None

    @spent_on(Mechanism.SERVER)
    def start(self) -> None:
        """Start the server. Raises `FileNotFoundError` where the program is missing."""
        binary = program()
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "prometheus.yml").write_text(self._config)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(binary), f"--config.file={self._folder / 'prometheus.yml'}", "--log.level=warn"),
                    *(f"--storage.tsdb.path={self._folder / 'data'}", f"--web.listen-address=127.0.0.1:{self.port}"),
                    *self._options,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._is_ready():
                return
            time.sleep(0.02)
        said = self.log()
        self.kill()
        raise TimeoutError(f"Prometheus did not start; its last words:\n{said[-2000:]}")

    def stop(self) -> None:
        """Stop the server if it runs: what it can still send it sends, for a minute at most."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=90)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Kill the server at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        """What it has said."""
        return (self._folder / "log").read_text(errors="replace")

    def raw_samples(self, series: str, seconds: int = 600) -> dict[str, list[tuple[int, float]]]:
        """The samples of the last seconds as they were scraped: of each series times in milliseconds, and values."""
        found = self._ask(f"/api/v1/query?query={quote(f'{series}[{seconds}s]')}")["data"]["result"]
        return {
            json.dumps(each["metric"], sort_keys=True): [
                (round(at * 1000), float(value)) for at, value in each.get("values", ())
            ]
            for each in found
        }

    def reload(self, config: str) -> None:
        """Give it another configuration. It was started with --web.enable-lifecycle."""
        (self._folder / "prometheus.yml").write_text(config)
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/-/reload")
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """One of its own metrics, the sum over its labels; 0 if it is not there."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.partition("{")[0].split(" ")[0] == name)

    def _ask(self, path: str) -> Any:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            return json.load(connection.getresponse())
        finally:
            connection.close()

    def _is_ready(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/-/ready")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


def program() -> Path:
    """The program: the system's, or the one in the cache. Raises `FileNotFoundError` if there is neither."""
    if found := shutil.which("prometheus"):
        return Path(found)
    if (cached := _home() / "usr/bin/prometheus").exists():
        return cached
    raise FileNotFoundError(
        "The program 'prometheus' is missing. Run '.venv/bin/python -m tests.servers.prometheus' on Debian or Ubuntu, "
        "or install it."
    )


def unpack(package: Path | None = None) -> Path:
    """Put Debian's package into the cache if it is not there yet, downloaded or from a file; at once by many, once."""
    home = _home()
    with locked(home, wait=True):
        if not home.is_dir():
            with workshop(home) as folder:
                file = package.absolute() if package else _downloaded(folder)
                _run("dpkg", "-x", str(file), str(folder / "unpacked"), cwd=folder)
                (folder / "unpacked").rename(home)
    return home


def _downloaded(folder: Path) -> Path:
    options = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []  # the folder is ours, not of apt's user
    try:
        _run("apt-get", "download", "-qq", *options, "prometheus", cwd=folder)
    except subprocess.CalledProcessError:  # a fresh machine has no lists of packages
        _run("apt-get", "update", "-qq", cwd=folder)
        _run("apt-get", "download", "-qq", *options, "prometheus", cwd=folder)
    [found] = folder.glob("prometheus_*.deb")
    return found


def _run(command: str, *arguments: str, cwd: Path) -> None:
    found = shutil.which(command)
    if found is None:
        raise FileNotFoundError(f"The program {command!r} is missing. Only Debian and Ubuntu have it.")
    subprocess.run([found, *arguments], cwd=cwd, check=True, timeout=DOWNLOAD_TIMEOUT)


def _home() -> Path:
    return spark_settings().cache_folder.expanduser().absolute() / "debian" / "prometheus"


if __name__ == "__main__":
    try:
        program()
    except FileNotFoundError:
        print(f"Prometheus is in {unpack(Path(sys.argv[1]) if len(sys.argv) > 1 else None)}.")
