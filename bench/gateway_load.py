"""What clients of gateways send."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any

from bench.gateway_frames import Frames


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLoad:
    """So many batches to some servers, over so many connections to each."""

    ports: Sequence[int]
    connections: int
    batches: int
    boot: str
    """Names the frames: another one for each load."""

    tokens: Sequence[tuple[str, str]]
    """Agents with their tokens, who share the connections."""

    per_second: float | None = None

    def requests(self) -> list[list[Any]]:
        """The requests, each in parts."""
        return [_request(self, _frames(), number) for number in range(self.batches)]


@cache
def _frames() -> Frames:
    return Frames()


def _request(load: BatchLoad, frames: Frames, number: int) -> list[Any]:
    """A whole request in parts. Its own hash is for the bare server, which computes none."""
    agent, token = load.tokens[number % len(load.tokens)]
    head, payload = frames.frame(agent, load.boot, number)
    digest = sha256(head)
    digest.update(payload)
    lines = (
        "POST /ingest/v1/batch HTTP/1.1",
        "host: 127.0.0.1",
        f"authorization: Bearer {token}",
        "content-type: application/octet-stream",
        f"content-length: {len(head) + len(payload)}",
        f"x-frame-sha256: {digest.hexdigest()}",
    )
    return ["\r\n".join((*lines, "", "")).encode() + head, payload]
