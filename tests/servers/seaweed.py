"""A real S3 server for tests: SeaweedFS on free loopback ports, its data in a folder of its own.

It serves an Iceberg REST catalog too, whose tables lie in a bucket of their own.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlencode

import obstore
from obstore.exceptions import BaseError

from lakehead.retry import Backoff
from lakehead.storage.connect import Bucket, StoreSettings, connect
from tests.servers.ports import free_ports
from tests.support.costs import Mechanism, spent_on

BUCKET = "lake"
TABLE_BUCKET = "warehouse"
REGION = "us-east-1"
ACCESS_KEY = "test-key"
SECRET_KEY = "test-secret"
START_TIMEOUT = 60.0
ADMIN_GRPC_OFFSET = 10_000


class Seaweed:
    """One server. `start` returns when it takes objects and tables; `kill` is a power cut; both can be repeated."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        # The admin server insists on its gRPC port being its port plus this.
        [self._ports["admin.port"]] = free_ports(1, offsets=(0, ADMIN_GRPC_OFFSET))
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
            region=REGION,
            credentials={"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY},
            request_timeout=request_timeout,
            backoff=Backoff(attempts=6, first_seconds=0.02, cap_seconds=0.5),
        )

    @property
    def rest_catalog_uri(self) -> str:
        """Where its Iceberg REST catalog answers."""
        return f"http://127.0.0.1:{self._ports['s3.port.iceberg']}"

    def rest_catalog(self) -> dict[str, str]:
        """Iceberg's properties, for Spark, of its REST catalog. There is one, and every test sees all its tables."""
        return {
            "type": "rest",
            "uri": self.rest_catalog_uri,
            "warehouse": f"s3://{TABLE_BUCKET}",
            "credential": f"{ACCESS_KEY}:{SECRET_KEY}",
            "oauth2-server-uri": f"{self.rest_catalog_uri}/v1/oauth/tokens",  # or clients warn that they guess it
            **self._file_io(),
        }

    def sqlite_catalog(self, file: Path, *, warehouse: str = f"s3://{BUCKET}/warehouse") -> dict[str, str]:
        """Iceberg's properties, for Spark, of a catalog in a SQLite file with its warehouse on this server."""
        return {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{file}?journal_mode=WAL&busy_timeout=30000",
            "jdbc.schema-version": "V1",
            "warehouse": warehouse,
            **self._file_io(),
        }

    @spent_on(Mechanism.SERVER)
    def start(self) -> None:
        """Start the server and wait until its buckets take objects and tables."""
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
                    f"-tableBucket={TABLE_BUCKET}",
                    *(f"-{name}={port}" for name, port in self._ports.items()),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY},
            )
        self._await_ready()

    def stop(self) -> None:
        """Stop the server, if it runs: nobody needs it to be tidy, which takes it seconds."""
        if self._process is not None and self._process.poll() is None:
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
            if self._takes_objects() and self._takes_tables():
                return
            time.sleep(0.05)
        self.stop()
        disk = shutil.disk_usage(self._folder)
        raise TimeoutError(
            f"SeaweedFS takes no objects. It refuses them while less than 1 % of its disk is free; at "
            f"{self._folder} {disk.free / disk.total:.1%} are. Its log ends:\n{self._end_of_log()}"
        )

    def _takes_objects(self) -> bool:
        settings = self.settings(request_timeout=5)
        try:
            obstore.put(connect(Bucket("s3", BUCKET, ""), settings, retries=0), "ready", b"yes")
        except (BaseError, OSError):
            return False
        return True

    def _takes_tables(self) -> bool:
        asked = {"grant_type": "client_credentials", "client_id": ACCESS_KEY, "client_secret": SECRET_KEY}
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        connection = HTTPConnection("127.0.0.1", self._ports["s3.port.iceberg"], timeout=5)
        try:
            connection.request("POST", "/v1/oauth/tokens", urlencode(asked), form)
            token = json.load(connection.getresponse()).get("access_token")
            connection.request("GET", f"/v1/{TABLE_BUCKET}/namespaces", headers={"Authorization": f"Bearer {token}"})
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, HTTPException, ValueError):
            return False
        finally:
            connection.close()

    def _file_io(self) -> dict[str, str]:
        return {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint": self.endpoint,
            "s3.path-style-access": "true",
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "client.region": REGION,
        }

    def _end_of_log(self) -> str:
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
)
