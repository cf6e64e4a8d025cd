"""A real S3 server for tests: SeaweedFS on free loopback ports, its data in a folder of its own."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import obstore
from obstore.exceptions import BaseError

from lakehead.storage.backoff import Backoff
from lakehead.storage.connect import Bucket, StoreSettings, connect
from tests.servers.ports import free_ports

BUCKET = "lake"
ACCESS_KEY = "test-key"
SECRET_KEY = "test-secret"
START_TIMEOUT = 60.0
ADMIN_GRPC_OFFSET = 10_000


class Seaweed:
    """One server. `start` returns when an object was stored; `kill` is a power cut; both can be repeated."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        # The admin server insists on its gRPC port being its port plus this.
        self._ports["admin.port"] = 20_000 + self._ports["admin.port"] % ADMIN_GRPC_OFFSET
        self._ports["admin.port.grpc"] = self._ports["admin.port"] + ADMIN_GRPC_OFFSET
        self.endpoint = f"http://127.0.0.1:{self._ports['s3.port']}"

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._process is not None
        return self._process.pid

    def settings(self, *, endpoint: str | None = None, request_timeout: float = 20.0) -> StoreSettings:
        """How to reach it; by another way, such as a proxy, where an endpoint is given."""
        return StoreSettings(
            endpoint=endpoint or self.endpoint,
            region="us-east-1",
            credentials={"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY},
            request_timeout=request_timeout,
            backoff=Backoff(attempts=6, first_seconds=0.02, cap_seconds=0.5),
        )

    def start(self) -> None:
        """Start the server and wait until its bucket takes objects."""
        weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
        if weed is None:
            raise FileNotFoundError("The program 'weed' is missing. Run 'make install'.")
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    weed,
                    "mini",
                    f"-dir={self._folder}",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    "-webdav=false",
                    "-admin.ui=false",
                    "-master.telemetry=false",
                    "-s3.localSocket=",
                    "-s3.autoCreateBucket=false",
                    f"-bucket={BUCKET}",
                    *(f"-{name}={port}" for name, port in self._ports.items()),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY},
            )
        self._await_ready()

    def stop(self) -> None:
        """Stop the server, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Kill the server at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _await_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._takes_objects():
                return
            time.sleep(0.05)
        raise TimeoutError(f"SeaweedFS did not start; its last words:\n{self._last_words()}")

    def _takes_objects(self) -> bool:
        settings = self.settings(request_timeout=5)
        try:
            obstore.put(connect(Bucket("s3", BUCKET, ""), settings, retries=0), "ready", b"")
        except (BaseError, OSError):
            return False
        return True

    def _last_words(self) -> str:
        return (self._folder / "weed.log").read_text(errors="replace")[-2000:]


_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
    "s3.port.iceberg",
    "s3.port.lance",
    "admin.port",
    "admin.port.grpc",
)
