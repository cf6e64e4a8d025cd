"""A real NATS server with JetStream for tests, on a free loopback port, its streams in memory."""

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.servers.ports import free_ports
from tests.support.costs import Mechanism, spent_on

START_TIMEOUT = 60.0


class NatsServer:
    """One server. `start` returns when it greets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        [self._port] = free_ports(1)
        self.url = f"nats://127.0.0.1:{self._port}"

    @spent_on(Mechanism.SERVER)
    def start(self) -> None:
        """Start the server."""
        program = shutil.which("nats-server", path=str(Path(sys.executable).parent))
        if program is None:
            raise FileNotFoundError("The program 'nats-server' is missing. Run 'make install'.")
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "-a", "127.0.0.1", "-p", str(self._port), "-js", "-sd", str(self._folder)],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
                    if connection.recv(5) == b"INFO ":
                        return
            except OSError:
                time.sleep(0.01)
        self.stop()
        said = (self._folder / "log").read_text(errors="replace")[-2000:]
        raise TimeoutError(f"NATS did not start; its last words:\n{said}")

    def stop(self) -> None:
        """Stop the server, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
