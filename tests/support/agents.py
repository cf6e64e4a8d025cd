"""Agents as processes of their own."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx
import uvloop  # noqa: F401 - as below

import lakehead.run.agent_wiring  # noqa: F401 - loaded before processes are forked
from tests.support.agent_requests import AgentRequest
from tests.support.serving import ServingProcess

BY_SOCKET = "http://localhost"
"""How a client calls an agent that has no port."""


def agent_config(folder: Path, agent_id: str, token: str, gateways: Sequence[str], **more: Any) -> Path:
    """A configuration of an agent, in a folder of its own with its spool."""
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(token)
    config = {
        "agent_id": agent_id,
        "gateways": list(gateways),
        "token": {"file": str(folder / "token")},
        "spool_folder": str(folder / "spool"),
        "listener": {"port": 0},
        **more,
    }
    path = folder / "agent.json"
    path.write_text(json.dumps({"agent": config}))
    return path


@dataclass
class AgentProcess(ServingProcess):
    """An agent that was started, and may be killed."""

    words: ClassVar = ("agent",)
    url: str = ""
    """Where it listens."""

    unix_socket: str | None = None

    def is_listening(self, said: str) -> bool:
        found = re.search(r"^  listens  (?:(http://[^,\s]+)|unix:(\S+))(?:, unix:(\S+))?$", said, re.MULTILINE)
        if found is None:
            return False
        self.unix_socket = found[2] or found[3]
        self.url = found[1] or BY_SOCKET
        return True

    @property
    def spool(self) -> Path:
        return self.config.parent / "spool"

    def left(self) -> dict[str, int]:
        """How many files are in each folder of the spool that is empty when all was accepted."""
        return {name: len(list((self.spool / name).iterdir())) for name in ("entries", "parked", "damaged", "tmp")}

    def client(self) -> httpx.AsyncClient:
        """A client of this agent, also after it was started again: by its Unix socket, if it has no port."""
        return httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=self.unix_socket if self.url == BY_SOCKET else None)
        )

    async def post(self, http: httpx.AsyncClient, request: AgentRequest, *, seconds: float) -> httpx.Response:
        """Send a request to where it listens now."""
        return await http.post(
            f"{self.url}{request.path}", content=request.body, headers=request.headers, timeout=seconds
        )

    def send(self, request: AgentRequest) -> httpx.Response:
        """Send a request once, and wait for the answer."""
        with self._http() as http:
            return http.post(request.path, content=request.body, headers=request.headers)

    def flush(self) -> dict[str, Any]:
        """Wait until all that it was given is accepted, or something needs an operator. Returns what it tells."""
        with self._http() as http:
            told: dict[str, Any] = http.post("/v1/flush", params={"timeout_seconds": 60}).json()
        return told

    def _http(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=self.unix_socket if self.url == BY_SOCKET else None)
        return httpx.Client(base_url=self.url, transport=transport, timeout=120)
