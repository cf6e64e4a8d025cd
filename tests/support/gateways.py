"""Gateways as processes of their own, and frames to send to them."""

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import lakehead.run.gateway_wiring  # noqa: F401 - loaded before processes are forked
from lakehead.run.main import command
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import encode_frame
from lakehead.wire.record_schemas import SAMPLES_V1, FrameKind
from tests.support.forks import FORKS

START_SECONDS = 60.0


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
    path = folder / "gateway.json"
    path.write_text(json.dumps({"gateway": {"store": store, **listeners, **more}}))
    return path


@dataclass
class GatewayProcess:
    """A gateway that was started, and may be killed."""

    config: Path
    env: Mapping[str, str]
    log: Path
    ingest: str = ""
    private: str = ""
    _process: Any = field(default=None, repr=False)

    def start(self) -> "GatewayProcess":
        """Start it, and wait until it says where it listens."""
        self.log.unlink(missing_ok=True)
        self._process = FORKS.Process(target=_run, args=(self.config, dict(self.env), self.log), daemon=True)
        self._process.start()
        ends = time.monotonic() + START_SECONDS
        while not (found := re.findall(r"http://127\.0\.0\.1:\d+", self._said())) or len(found) < 2:
            assert self._process.is_alive(), self._said()
            assert time.monotonic() < ends, self._said()
            time.sleep(0.02)
        self.ingest, self.private = found
        return self

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def terminate(self) -> int | None:
        """Stop it as an operator does. Returns its exit code."""
        self._process.terminate()
        self._process.join(START_SECONDS)
        code: int | None = self._process.exitcode
        return code

    def _said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def _run(config: Path, env: Mapping[str, str], log: Path) -> None:
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.update(env)
    sys.argv = ["lakehead", "gateway", str(config)]
    command()
