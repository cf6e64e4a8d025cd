"""Gateways as processes of their own, and frames to send to them."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import httpx
import pyarrow as pa

import lakehead.run.gateway_wiring  # noqa: F401 - loaded before processes are forked
from lakehead.clock import SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.storage.connect import StoreSettings
from lakehead.storage.open_store import open_store
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, decode_at_identity
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import encode_frame
from lakehead.wire.record_schemas import SAMPLES_V1, FrameKind
from tests.consumer import aws
from tests.servers.seaweed import BUCKET, Seaweed
from tests.support.commands import lakehead_command
from tests.support.serving import ServingProcess


def sample_frame(identity: BatchIdentity, value: float = 1.0) -> bytes:
    """A frame with one sample for each sequence number."""
    rows = [
        {"time": 1_760_000_000_000_000_000 + number, "metric": "cpu", "labels": [("host", "a")], "type": "gauge"}
        | {"value": value + number}
        for number in range(identity.record_count)
    ]
    return encode_frame(identity, FrameKind.SAMPLES, pa.RecordBatch.from_pylist(rows, schema=SAMPLES_V1))


def gateway_config(folder: Path, store: str, **more: Any) -> Path:
    """A configuration of a gateway on free ports."""
    listeners = {"ingest_listener": {"port": 0}, "private_listener": {"port": 0}}
    folder.mkdir(exist_ok=True)
    path = folder / "gateway.json"
    path.write_text(json.dumps({"gateway": {"store": store, **listeners, **more}}))
    return path


class GatewayAuthority:
    """An acceptance authority on an S3 server or in a folder, and the token of the agent `agent`."""

    def __init__(self, folder: Path, seaweed: Seaweed | None, **config: Any) -> None:
        """`config` is that of its gateways."""
        self.folder = folder
        if seaweed is None:
            (folder / "store").mkdir()
            self.env, self.url, self._settings = {}, (folder / "store").as_uri(), StoreSettings()
        else:
            self.env, self.url, self._settings = aws(seaweed), f"s3://{BUCKET}/{uuid4().hex}", seaweed.settings()
        self.config = gateway_config(folder, self.url)  # commands have the time that they need
        self._command("init", self.config)
        self.token = self.add_token("agent")
        self.config = gateway_config(folder, self.url, **config)

    def add_token(self, agent: str) -> str:
        """A new token for an agent."""
        return self._command("token", "add", self.config, "--agent", agent)

    def token_ids(self) -> list[str]:
        """The ids of all live tokens."""
        return [each["id"] for each in json.loads(self._command("token", "list", self.config, "--json"))["tokens"]]

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token."""
        self._command("token", "revoke", self.config, token_id)

    def _command(self, *words: str | Path) -> str:
        """What `lakehead gateway` with these words prints."""
        done = lakehead_command("gateway", *words, env=self.env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def gateway(
        self, name: str, *, endpoint: str | None = None, before: Callable[[], None] | None = None
    ) -> "GatewayProcess":
        """A gateway that is not started yet; `endpoint` is another way to the server, such as a proxy."""
        env = self.env if endpoint is None else {**self.env, "AWS_ENDPOINT_URL": endpoint}
        return GatewayProcess(self.config, env, self.folder / f"{name}.log", before=before)

    def store(self) -> Store:
        """The store itself, past all gateways and proxies."""
        return open_store(self.url, self._settings, clock=SystemClock(), ids=RandomIds(), random=system_random())

    async def send(self, http: httpx.AsyncClient, gateway: "GatewayProcess", frame: bytes) -> httpx.Response:
        """Upload a frame with the agent's token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return await http.post(f"{gateway.ingest}/ingest/v1/batch", content=frame, headers=headers)


async def accepted_manifest(store: Store, identity: BatchIdentity) -> IdentityManifest | None:
    """The identity manifest, whose blob is there and as it says; None if nothing is accepted under the identity."""
    found = await store.get(keys.accepted(identity))
    if found is None:
        return None
    manifest = decode_at_identity(found.body, identity)
    if not isinstance(manifest, IdentityManifest):
        return None
    blob = await store.get(manifest.raw_blob_key)
    assert blob is not None
    assert sha256(blob.body).hexdigest() == manifest.frame_sha256
    return manifest


@dataclass
class GatewayProcess(ServingProcess):
    """A gateway that was started, and may be killed."""

    words: ClassVar = ("gateway",)
    ingest: str = ""
    private: str = ""

    def is_listening(self, said: str) -> bool:
        found = re.findall(r"http://127\.0\.0\.1:\d+", said)
        if len(found) < 2:
            return False
        self.ingest, self.private = found[:2]
        return True
