"""A real server of SQS for tests: MiniStack, from PyPI, on a free loopback port, its queues in memory. It has S3 too.

It is installed into a folder of its own, because it needs another botocore than we do.
"""

import json
import os
import subprocess
import sys
import time
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from uuid import uuid4

from lakehead.consume.queues.sqs_settings import BATCH, SqsSettings
from lakehead.run.environment import spark_settings
from lakehead.spark.cache import locked, workshop
from lakehead.storage.connect import StoreSettings
from tests.servers.ports import free_ports
from tests.support.costs import Mechanism, spent_on

LOCK = Path(__file__).with_name("ministack.txt")
"""The server and what it needs, with hashes: made by `uv pip compile --universal --generate-hashes`."""

REGION = "us-east-1"
START_TIMEOUT = 60.0
INSTALL_TIMEOUT = 600.0


class SqsServer:
    """One server. `start` returns when it makes queues."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        [self.port] = free_ports(1)

    @spent_on(Mechanism.SERVER)
    def start(self) -> None:
        """Install it if this machine does not have it yet, and start it."""
        packages = installed()
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ministack"],
                cwd=self._folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(packages),  # before the packages of our own environment
                    "GATEWAY_PORT": str(self.port),
                    "BIND_HOST": "127.0.0.1",
                    "SERVICES": "s3,sqs",
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                self.new_queue()
            except (OSError, HTTPException):
                time.sleep(0.02)
            else:
                return
        self.stop()
        said = (self._folder / "log").read_text(errors="replace")[-2000:]
        raise TimeoutError(f"MiniStack did not start; its last words:\n{said}")

    def stop(self) -> None:
        """Stop the server, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def new_queue(self, *, suffix: str = "", **attributes: str) -> str:
        """The name of a new, empty queue."""
        name = f"q{uuid4().hex}{suffix}"
        self._ask("CreateQueue", QueueName=name, Attributes=attributes)
        return name

    def send(self, queue: str, *bodies: str) -> None:
        """Send messages, each as one of its own."""
        for start in range(0, len(bodies), BATCH):
            some = bodies[start : start + BATCH]
            entries = [{"Id": str(number), "MessageBody": body} for number, body in enumerate(some)]
            answer = self._ask("SendMessageBatch", QueueUrl=self._url(queue), Entries=entries)
            assert len(answer["Successful"]) == len(some), answer

    def left(self, queue: str) -> tuple[int, int]:
        """How many messages of a queue are visible, and how many a consumer has."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._ask("GetQueueAttributes", QueueUrl=self._url(queue), AttributeNames=names)["Attributes"]
        visible, hidden = (int(found[name]) for name in names)
        return visible, hidden

    def _url(self, queue: str) -> str:
        return f"http://127.0.0.1:{self.port}/000000000000/{queue}"

    def _ask(self, action: str, **asked: Any) -> Any:
        headers = {
            "X-Amz-Target": f"AmazonSQS.{action}",
            "Content-Type": "application/x-amz-json-1.0",
            "Authorization": f"AWS4-HMAC-SHA256 Credential=test/20260101/{REGION}/sqs/aws4_request, Signature=none",
        }
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("POST", "/", json.dumps(asked), headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != HTTPStatus.OK:
                raise HTTPException(said.decode(errors="replace"))
        finally:
            connection.close()
        return json.loads(said)

    def s3_settings(self) -> StoreSettings:
        """How to reach its S3, which keeps settings of buckets that other servers do not, and obeys none of them."""
        return StoreSettings(
            endpoint=f"http://127.0.0.1:{self.port}",
            region=REGION,
            credentials={"access_key_id": "test", "secret_access_key": "test"},
        )

    def settings(self, queue: str, *, port: int | None = None) -> SqsSettings:
        """How to reach a queue; by another port, such as that of a proxy, where one is given."""
        return SqsSettings(
            queue=queue,
            endpoint=f"http://127.0.0.1:{port or self.port}",
            region=REGION,
            credentials={"access_key_id": "test", "secret_access_key": "test"},
            connect_timeout=2,
            attempts=1,
        )


def installed() -> Path:
    """The folder of the server's packages, installed if this machine does not have them yet; at once by many, once."""
    lines = LOCK.read_text()
    version = next(line.partition(" ")[0] for line in lines.splitlines() if line.startswith("ministack=="))
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"  # some packages are compiled
    home = spark_settings().cache_folder.expanduser().absolute() / "pip" / f"{version}-{python}"
    with locked(home, wait=True):
        if not home.is_dir():
            with workshop(home) as folder:
                done = subprocess.run(
                    [
                        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
                        *("--no-input", "--require-hashes", "--target", str(folder), "-r", str(LOCK)),
                    ],
                    capture_output=True,
                    text=True,
                    timeout=INSTALL_TIMEOUT,
                    check=False,
                )
                if done.returncode:
                    raise RuntimeError(f"pip did not install {version}:\n{done.stderr[-2000:]}")
                folder.rename(home)
    return home


if __name__ == "__main__":
    installed()  # so that no test waits for it
