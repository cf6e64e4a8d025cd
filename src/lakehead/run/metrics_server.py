"""Serves the Prometheus metrics of a resident command on a port of this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from lakehead.errors import Misconfigured

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

MetricsPort: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        metavar="PORT",
        help="Serve Prometheus metrics on this port of 127.0.0.1.",
        show_default=False,
    ),
]

MetricsFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.prom",
        help="Write Prometheus metrics to this file at the end, for node_exporter's textfile collector.",
        show_default=False,
    ),
]


@contextmanager
def serve_metrics(metrics: "Collector", port: int) -> Iterator[str]:
    """Serve metrics until the end of the `with`, and yield their URL. Port 0 is any that is free.

    Raises `Misconfigured` if the port cannot be had.
    """
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - only with metrics

    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, _ = start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise Misconfigured(
            f"Metrics cannot be served on port {port} of 127.0.0.1: {error.strerror or error}. Choose another "
            "--metrics-port."
        ) from error
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
