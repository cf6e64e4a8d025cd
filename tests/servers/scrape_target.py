"""Something for a Prometheus to scrape: a counter, a gauge that can go away, and a native histogram with exemplars.

Or counters alone, as text, which every Prometheus reads.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from lakehead.agent.receive.remote_write_messages import message_class

_CLIENT_MODEL: Mapping[str, Sequence[tuple[int, str, str]]] = {
    "MetricFamily": ((1, "string", "name"), (2, "string", "help"), (3, "int32", "type"), (4, "*Metric", "metric")),
    "Metric": (
        (1, "*LabelPair", "label"),
        (2, "Gauge", "gauge"),
        (3, "Counter", "counter"),
        (7, "Histogram", "histogram"),
    ),
    "LabelPair": ((1, "string", "name"), (2, "string", "value")),
    "Gauge": ((1, "double", "value"),),
    "Counter": ((1, "double", "value"), (2, "Exemplar", "exemplar")),
    "Exemplar": ((1, "*LabelPair", "label"), (2, "double", "value"), (3, "Timestamp", "timestamp")),
    "Timestamp": ((1, "int64", "seconds"), (2, "int32", "nanos")),
    "Histogram": (
        (1, "uint64", "sample_count"),
        (2, "double", "sample_sum"),
        (5, "sint32", "schema"),
        (6, "double", "zero_threshold"),
        (7, "uint64", "zero_count"),
        (9, "*BucketSpan", "negative_span"),
        (10, "*sint64", "negative_delta"),
        (12, "*BucketSpan", "positive_span"),
        (13, "*sint64", "positive_delta"),
    ),
    "BucketSpan": ((1, "sint32", "offset"), (2, "uint32", "length")),
}
MetricFamily = message_class("io.prometheus.client", _CLIENT_MODEL, "MetricFamily")
COUNTER, GAUGE, HISTOGRAM = 0, 1, 4


class ScrapeTarget:
    """A server with `/metrics` in protobuf, as long as a `with`.

    `seen_total` counts scrapes, `present` is 1 as long as `shows_gauge`, and `seconds` has n observations in each of
    the buckets -1, 0 and 3 after n scrapes, by Prometheus's numbers at schema 2, and one around zero.
    """

    content_type = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"

    def __init__(self) -> None:
        self.scrapes = 0
        self.shows_gauge = True
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def text(self) -> bytes:
        """What the next scrape gets."""
        self.scrapes += 1
        families = [self._counter(), self._histogram()]
        if self.shows_gauge:
            families.append(MetricFamily(name="present", type=GAUGE))
            families[-1].metric.add().gauge.value = 1
        return b"".join(_delimited(each.SerializeToString()) for each in families)

    def _counter(self) -> Any:
        family = MetricFamily(name="seen_total", help="Scrapes.", type=COUNTER)
        metric = family.metric.add()
        metric.label.add(name="color", value="grün")
        metric.counter.value = self.scrapes
        exemplar = metric.counter.exemplar
        exemplar.value = 1
        exemplar.timestamp.seconds = int(time.time())
        exemplar.label.add(name="trace_id", value=f"{self.scrapes}")
        return family

    def _histogram(self) -> Any:
        family = MetricFamily(name="seconds", help="Durations.", type=HISTOGRAM)
        histogram = family.metric.add().histogram
        count = self.scrapes
        histogram.sample_count, histogram.sample_sum = 3 * count + 1, count * 2.5
        histogram.schema, histogram.zero_threshold, histogram.zero_count = 2, 0.001, 1
        histogram.positive_span.add(offset=-1, length=2)
        histogram.positive_span.add(offset=2, length=1)
        histogram.positive_delta.extend([count, 0, 0])
        return family

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        target = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = target.text()
                self.send_response(200)
                self.send_header("Content-Type", target.content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                del code, size  # nobody reads it

        return Handler


class CounterTarget(ScrapeTarget):
    """Counters `seen_total`, each with a number as its label, that count scrapes. In text."""

    content_type = "text/plain; version=0.0.4"

    def __init__(self, counters: int = 10) -> None:
        super().__init__()
        self.counters = counters

    def text(self) -> bytes:
        """What the next scrape gets."""
        self.scrapes += 1
        lines = (f'seen_total{{counter="{each}"}} {self.scrapes}\n' for each in range(self.counters))
        return f"# TYPE seen_total counter\n{''.join(lines)}".encode()


def _delimited(message: bytes) -> bytes:
    """A message after its length."""
    size, length = b"", len(message)
    while length >= 0x80:
        size += bytes([length & 0x7F | 0x80])
        length >>= 7
    return size + bytes([length]) + message
