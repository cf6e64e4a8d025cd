"""A real server of Azure's blob storage for tests: Azurite, from npm, on a free loopback port, its data in memory."""

import base64
import hmac
import os
import secrets
import shutil
import subprocess
import time
from email.utils import formatdate
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from lakehead.retry import Backoff
from lakehead.run.environment import spark_settings
from lakehead.spark.cache import locked, workshop
from lakehead.storage.connect import StoreSettings
from tests.servers.ports import free_ports
from tests.support.costs import Mechanism, spent_on

PACKAGE = "azurite@3.35.0"  # the newest that works with Node 20
CONTAINER = "lake"
ACCOUNT = "lakehead"
START_TIMEOUT = 60.0
INSTALL_TIMEOUT = 600.0


class Azurite:
    """One server. `start` returns when its container takes objects."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._key = base64.b64encode(secrets.token_bytes(64)).decode()
        [self._port] = free_ports(1)

    def settings(self) -> StoreSettings:
        """How to reach it."""
        return StoreSettings(
            endpoint=f"http://127.0.0.1:{self._port}/{ACCOUNT}",
            credentials={"account_name": ACCOUNT, "account_key": self._key},
            backoff=Backoff(attempts=6, first_seconds=0.02, cap_seconds=0.5),
        )

    @spent_on(Mechanism.SERVER)
    def start(self) -> None:
        """Install it if this machine does not have it yet, start it, and make its container.

        Raises `FileNotFoundError` where Node is missing.
        """
        node, program = _program("node"), installed() / "node_modules/azurite/dist/src/blob/main.js"
        self._folder.mkdir(parents=True, exist_ok=True)
        options = ["--inMemoryPersistence", "--disableTelemetry", "--silent", "--skipApiVersionCheck"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [node, program, "--blobHost", "127.0.0.1", "--blobPort", str(self._port), *options],
                cwd=self._folder,
                env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{self._key}"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._makes_container():
                return
            time.sleep(0.05)
        said = (self._folder / "log").read_text(errors="replace")[-2000:]
        self.stop()
        raise TimeoutError(f"Azurite did not start; its last words:\n{said}")

    def stop(self) -> None:
        """Stop the server, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _makes_container(self) -> bool:
        """Ask for the container, signed as Azure wants it: obstore makes none."""
        path = f"/{ACCOUNT}/{CONTAINER}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        signed = "".join(f"{name}:{value}\n" for name, value in headers.items())
        text = "PUT" + "\n" * 12 + signed + f"/{ACCOUNT}{path}\nrestype:container"
        signature = base64.b64encode(hmac.digest(base64.b64decode(self._key), text.encode(), "sha256")).decode()
        connection = HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
            connection.request("PUT", f"{path}?restype=container", headers={**headers, "Content-Length": "0"})
            return connection.getresponse().status in (HTTPStatus.CREATED, HTTPStatus.CONFLICT)
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


def installed() -> Path:
    """The folder of the package, installed if this machine does not have it yet; at once by many, once.

    Raises `FileNotFoundError` where npm is missing.
    """
    home = spark_settings().cache_folder.expanduser().absolute() / "npm" / PACKAGE
    with locked(home, wait=True):
        if not home.is_dir():
            npm = _program("npm")
            with workshop(home) as folder:
                done = subprocess.run(
                    [npm, "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", PACKAGE],
                    capture_output=True,
                    text=True,
                    timeout=INSTALL_TIMEOUT,
                    check=False,
                )
                if done.returncode:
                    raise RuntimeError(f"npm did not install {PACKAGE}:\n{done.stderr[-2000:]}")
                folder.rename(home)
    return home


def _program(name: str) -> str:
    if found := shutil.which(name):
        return found
    raise FileNotFoundError(f"The program {name!r} is missing. Install Node.js 20 or newer, with npm.")
