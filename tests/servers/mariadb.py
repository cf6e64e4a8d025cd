"""A real MariaDB for tests, from the system's packages, on a free loopback port, its data in a folder of its own."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import pymysql  # type: ignore[import-untyped]
import pymysql.connections  # type: ignore[import-untyped]

from tests.servers.ports import free_ports
from tests.support.costs import Mechanism, spent_on

USER = "lakehead"
PASSWORD = "s3cret/of:a@test"
START_TIMEOUT = 100.0
"""Seconds for each step of a start, which takes one or two: it ends what hangs, and not what is slow beside others."""
_WHERE = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/opt/homebrew/bin"


class MariaDB:
    """One server. `start` returns when it takes connections; `kill` is a power cut; both can be repeated."""

    def __init__(self, *options: str) -> None:
        self._options = options
        [self.port] = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="lakehead-mariadb-"))
        self._made = False

    @spent_on(Mechanism.SERVER)
    def start(self) -> None:
        """Make the data folder, the first time, and start the server."""
        if not self._made:
            self._make()
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    _program("mariadbd"),
                    "--no-defaults",
                    *_as_nobody(),
                    f"--datadir={self._folder / 'data'}",
                    f"--socket={self._folder / 'socket'}",
                    f"--pid-file={self._folder / 'pid'}",
                    "--bind-address=127.0.0.1",
                    f"--port={self.port}",
                    "--skip-log-bin",
                    "--innodb-flush-log-at-trx-commit=0",
                    "--innodb-flush-method=nosync",
                    "--innodb-log-file-size=16M",
                    "--innodb-buffer-pool-size=64M",
                    "--init-file=" + str(self._folder / "init.sql"),
                    *self._options,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._await_ready()

    def stop(self) -> None:
        """Stop the server, if it runs, and remove its data: nobody needs it to be tidy."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill the server at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def database(self, name: str | None = None) -> str:
        """The URL of a new, empty database, in the server's usual character set, which is not ours."""
        name = name or f"t{uuid4().hex}"
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE `{name}` CHARACTER SET latin1")
        return self.url(name)

    def url(self, database: str, *, user: str = USER, password: str = PASSWORD, port: int | None = None) -> str:
        """How to reach a database."""
        quoted = password.replace("/", "%2F").replace(":", "%3A").replace("@", "%40")
        return f"mysql://{user}:{quoted}@127.0.0.1:{port or self.port}/{database}"

    def connect(self, database: str | None = None) -> "pymysql.connections.Connection":
        """A connection of the test's own, in autocommit."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, database=database, autocommit=True
        )

    def _make(self) -> None:
        (self._folder / "init.sql").write_text(
            f"CREATE USER IF NOT EXISTS '{USER}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        if os.geteuid() == 0:
            for path in (self._folder, self._folder / "init.sql"):
                shutil.chown(path, "nobody", "nogroup")
        subprocess.run(
            [
                _program("mariadb-install-db"),
                "--no-defaults",
                *_as_nobody(),
                f"--datadir={self._folder / 'data'}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
                "--innodb-flush-method=nosync",
                "--innodb-log-file-size=16M",
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
            except pymysql.OperationalError:
                time.sleep(0.02)
            else:
                return
        words = (self._folder / "log").read_text(errors="replace")[-2000:]
        raise TimeoutError(f"MariaDB did not start; its last words:\n{words}")


def _program(name: str) -> str:
    found = shutil.which(name, path=_WHERE)
    if found is None:
        raise FileNotFoundError(f"The program '{name}' is missing. Install the system's package 'mariadb-server'.")
    return found


def _as_nobody() -> list[str]:
    return ["--user=nobody"] if os.geteuid() == 0 else []
