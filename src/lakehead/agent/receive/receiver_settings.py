"""Settings of an agent's HTTP receivers, each with its default and its unit."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from lakehead.agent.receive.sample_columns import RecordLimits
from lakehead.errors import Misconfigured

KIB, MIB = 1 << 10, 1 << 20
OTLP_PORT = 4318
"""Where OpenTelemetry's exporters send OTLP over HTTP if they are told nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """Whose requests are taken, and how much of them at once. Raises `Misconfigured`."""

    hosts: tuple[str, ...] = ()
    """Names by which requests may call this machine, beside those of loopback. A web page that makes its own name point
    to this machine calls it by that name."""

    origins: tuple[str, ...] = ()
    """Origins of web pages that may send, such as `https://grafana.example`."""

    body_bytes: int = 16 * MIB
    """The largest body of a request in bytes, as sent and decompressed. A larger one is answered 413."""

    records: RecordLimits = field(default_factory=RecordLimits)
    """How much the records of one request may be. More is answered 413."""

    requests_in_flight: int = 128
    """Requests that may be under way. More are answered 503."""

    bytes_in_flight: int = 64 * MIB
    """Bytes of bodies that may be under way, each counted before it is read, or as it comes if it is chunked, and again
    before it is decompressed. More are answered 503, but for a request that is alone. Decoding takes several times as
    many for a moment."""

    read_seconds: float = 30.0
    """How long a sender may take to send a body. A slower one is answered 503."""

    retry_after_seconds: int = 5
    """What a 503 tells senders to wait, in seconds."""

    inline_bytes: int = 64 * KIB
    """Bodies up to this size in bytes, decompressed, are decoded on the event loop: a thread would take longer."""

    decode_threads: int = 2
    """Threads that decode larger bodies."""

    flush_seconds: float = 600.0
    """The longest that a request to flush may wait."""

    def __post_init__(self) -> None:
        """Check all settings."""
        _check(
            self,
            *("body_bytes", "requests_in_flight", "bytes_in_flight", "read_seconds", "retry_after_seconds"),
            *("decode_threads", "flush_seconds"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Where an agent listens, and what a connection may cost. Raises `Misconfigured`."""

    host: str = "127.0.0.1"
    """The address of the TCP port: loopback, unless `allow_remote` is set."""

    port: int | None = OTLP_PORT
    """The TCP port; 0 takes any free one. None: there is none."""

    unix_socket: str | None = None
    """The path of a Unix socket for this user alone. None: there is none."""

    allow_remote: bool = False
    """Whether `host` may be an address that other machines reach. Everybody who does can write."""

    max_connections: int = 256
    """Connections that may be open. A further one is answered 503."""

    head_seconds: float = 10.0
    """How long a sender may take for a request line and its headers."""

    head_bytes: int = 32 * KIB
    """The longest request line with headers, in bytes."""

    idle_seconds: int = 75
    """How long a connection may stay open between two requests."""

    stop_seconds: int = 10
    """How long requests under way may take when the agent stops. What is left is answered 503."""

    def __post_init__(self) -> None:
        """Check all settings."""
        if self.port is None and self.unix_socket is None:
            raise Misconfigured("There is neither a port nor a Unix socket to listen on. Give one.")
        if self.port is not None and not 0 <= self.port <= 65_535:
            raise Misconfigured(f"port is {self.port}, and must be from 0 to 65535.")
        _check(self, "max_connections", "head_seconds", "head_bytes", "idle_seconds", "stop_seconds")


def _check(settings: object, *names: str) -> None:
    if problems := list(_not_positive(settings, *names)):
        raise Misconfigured(f"Invalid settings of the agent's receivers: {'; '.join(problems)}.")


def _not_positive(settings: object, *names: str) -> Iterator[str]:
    for name in names:
        if (value := getattr(settings, name)) <= 0:
            yield f"{name} is {value:g}, and must be positive"
