"""Settings of a gateway's listeners and limits, each with its default and its unit."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from lakehead.errors import Misconfigured
from lakehead.wire.frame_limits import FrameLimits

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The certificate of a listener, and whose client certificates it asks for."""

    cert_file: str
    """A PEM file with the certificate and those that it depends on."""

    key_file: str
    """A PEM file with the private key."""

    key_password: str | None = field(default=None, repr=False)
    client_ca_file: str | None = None
    """A PEM file of authorities. If it is given, every client must show a certificate of one of them,
    beside its token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """One port, and what a connection to it may cost. Raises `Misconfigured`."""

    host: str = "127.0.0.1"
    """The address to listen at. The default can be reached from the same machine only."""

    port: int = 0
    """0 takes any free port."""

    tls: TlsSettings | None = None
    """None: connections are not encrypted."""

    max_connections: int = 800
    """Connections that may be open. At the limit, a new one takes the place of the one that has been without a request
    for the longest; if all have one, it is answered 503. Stay below the process's limit of open files."""

    head_seconds: float = 10.0
    """How long a client may take to send a request line and its headers, also for the first of a connection."""

    head_bytes: int = 16 * KIB
    """The longest request line with headers, in bytes."""

    write_seconds: float = 30.0
    """How long a client may leave its answers unread once they fill the buffers. Then the connection is closed."""

    idle_seconds: int = 75
    """How long a connection may stay open between two requests, in seconds."""

    handshake_seconds: float = 10.0
    """How long a client may take for the TLS handshake."""

    linger_seconds: float = 2.0
    """How long the rest of a body is read and thrown away after it was answered unread. Closing at once could take the
    answer with it."""

    linger_bytes: int = 16 * MIB
    """How much of it is thrown away before the connection is closed all the same, in bytes."""

    backlog: int = 1024
    """Connections that may wait for the process to take them."""

    def __post_init__(self) -> None:
        """Check all settings."""
        _raise_if_any(self._problems())

    def _problems(self) -> Iterator[str]:
        if not 0 <= self.port <= 65_535:
            yield f"port is {self.port}, and must be from 0 to 65535"
        yield from _not_positive(
            self,
            *("max_connections", "head_seconds", "write_seconds", "idle_seconds", "handshake_seconds", "backlog"),
        )
        if self.head_bytes < 1 * KIB:
            yield f"head_bytes is {self.head_bytes:,}, and must be at least {KIB:,}"
        if self.linger_seconds < 0 or self.linger_bytes < 0:
            yield "linger_seconds and linger_bytes must not be negative"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """Limits on uploads. Raises `Misconfigured`."""

    body_bytes: int = 16 * MIB
    """The largest frame that is taken, in bytes. A larger one is answered 413."""

    payload_bytes: int = 64 * MIB
    """The largest payload of a frame, decompressed, in bytes. A larger one is answered 413."""

    records: int = 1_000_000
    """The most records of a frame. A frame with more is answered 413."""

    read_seconds: float = 30.0
    """How long a client may take to send a body. A slower one is answered 408."""

    accept_seconds: float = 60.0
    """How long acceptance may take, and how long the record of a conflict. An upload that takes longer, because the
    store does not answer, is answered 503: it may have been accepted."""

    requests_per_second: float | None = 50.0
    """How many requests an agent may make on average; more are answered 429. None: any number."""

    burst: int = 200
    """How many requests an agent may make at once after a pause."""

    agent_requests: int = 16
    """Requests of one agent that may be under way; more are answered 429, so that none holds up the others."""

    requests_in_flight: int = 256
    """Requests of all agents that may be under way; more are answered 503."""

    bytes_in_flight: int = 256 * MIB
    """Bytes of bodies that may be held, each counted in full before it is read; more are answered 503. The process uses
    up to four times as much for them, because a body is copied on its way."""

    retry_after_seconds: int = 2
    """What a 503 tells agents to wait, in seconds."""

    inline_bytes: int = 256 * KIB
    """Frames up to this size in bytes, compressed and decompressed, are decoded on the event loop: handing them to a
    thread would take longer."""

    decode_threads: int = 2
    """Threads that decode larger frames. Each may hold one decompressed payload."""

    def __post_init__(self) -> None:
        """Check all settings."""
        _raise_if_any(self._problems())

    @property
    def agent_bytes(self) -> int:
        """Bytes of one agent's bodies that may be held: a quarter of all, and at least one largest body. More are
        answered 429, so that none holds up the others."""
        return max(self.body_bytes, self.bytes_in_flight // 4)

    @property
    def frame_limits(self) -> FrameLimits:
        """The limits for decoding."""
        return FrameLimits(frame_bytes=self.body_bytes, payload_bytes=self.payload_bytes, records=self.records)

    def _problems(self) -> Iterator[str]:
        yield from _not_positive(
            self,
            *("body_bytes", "payload_bytes", "records", "read_seconds", "accept_seconds", "burst"),
            *("agent_requests", "requests_in_flight", "retry_after_seconds", "decode_threads"),
        )
        if self.requests_per_second is not None and self.requests_per_second <= 0:
            yield f"requests_per_second is {self.requests_per_second:g}, and must be positive, or None for no limit"
        if self.bytes_in_flight < self.body_bytes:
            yield (
                f"bytes_in_flight is {self.bytes_in_flight:,}, and must be at least body_bytes, {self.body_bytes:,}: "
                "otherwise the largest frames are never taken"
            )
        if self.inline_bytes < 0:
            yield f"inline_bytes is {self.inline_bytes:,}, and must not be negative"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessSettings:
    """When a gateway says that it is ready. Raises `Misconfigured`."""

    cache_seconds: float = 5.0
    """How long an answer is repeated without asking the store again."""

    probe_seconds: float = 3600.0
    """How often the store is probed for its preconditions again, which writes and deletes two small objects."""

    check_seconds: float = 10.0
    """How long the store may take for a check. After that it counts as out of reach."""

    tolerated_seconds: float = 0.5
    """The same for a gateway that can do without its store for a while: whoever asks whether it is ready may wait for a
    second only, and take no answer for a bad one."""

    reconciler_seconds: float = 900.0
    """How old the reconciler's last sign of life may be."""

    def __post_init__(self) -> None:
        """Check all settings."""
        _raise_if_any(_not_positive(self, "probe_seconds", "check_seconds", "tolerated_seconds", "reconciler_seconds"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """All settings of a gateway's server. Raises `Misconfigured`."""

    ingest_listener: ListenerSettings = field(default_factory=ListenerSettings)
    private_listener: ListenerSettings = field(default_factory=lambda: ListenerSettings(max_connections=64))
    ingest: IngestSettings = field(default_factory=IngestSettings)
    readiness: ReadinessSettings = field(default_factory=ReadinessSettings)
    metrics_need_token: bool = True
    """Whether `/metrics` asks for a token with a role, as every other route but `/healthz` and `/readyz` does."""

    unready_seconds: float = 0.0
    """How long a stopping gateway says that it is not ready before it closes its ingest listener: as long as a load
    balancer needs to notice."""

    stop_seconds: int = 30
    """How long requests under way may take when the gateway stops, in seconds. What is left is answered 503."""

    side_effect_seconds: float = 10.0
    """How long derived indexes and the landing queue may take after that. What is left is the reconciler's."""

    def __post_init__(self) -> None:
        """Check all settings."""
        _raise_if_any(_not_positive(self, "stop_seconds"))


def _not_positive(settings: object, *names: str) -> Iterator[str]:
    for name in names:
        if (value := getattr(settings, name)) <= 0:
            yield f"{name} is {value:g}, and must be positive"


def _raise_if_any(problems: Iterator[str]) -> None:
    if found := list(problems):
        raise Misconfigured(f"Invalid settings of the gateway: {'; '.join(found)}.")
