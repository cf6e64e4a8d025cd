"""Frames as agents in a cluster send them: a thousand samples of some forty metrics, each with six labels, zstd."""

from random import Random

import pyarrow as pa

from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import encode_frame, peek_frame
from lakehead.wire.frame_header import encode_head
from lakehead.wire.record_schemas import SAMPLES_V1, FrameKind

RECORDS = 1_000
_SECOND = 1_000_000_000
_NOON = 1_760_000_000 * _SECOND

_SERVICES = ("cart", "checkout", "payments", "recommendations", "shipping", "storefront-web")
_COMMON = ("cluster", "instance", "namespace", "pod")
_SPECIFIC = (("code", "method"), ("container", "image"), ("device", "mountpoint"), ("le", "route"), ("cpu", "mode"))
_METRICS = tuple(
    f"{family}_{what}"
    for family in ("http_server_requests", "container_memory", "node_filesystem", "rpc_client", "process_cpu")
    for what in ("total", "bytes", "seconds_sum", "seconds_count", "errors_total", "in_flight", "limit", "usage_ratio")
)


def sample_batch(random: Random) -> pa.RecordBatch:
    """A thousand samples, in the order in which a scrape finds them: metric by metric, pod by pod."""
    pods = [_pod(random) for _ in range(RECORDS // len(_METRICS))]
    rows = []
    for number, metric in enumerate(_METRICS):
        names = _SPECIFIC[number // 8]
        for pod in pods:
            labels = pod | {name: f"{name}-{random.randrange(20)}" for name in names}
            is_sum = metric.endswith(("total", "sum", "count"))
            rows.append(
                {
                    "time": _NOON + random.randrange(15 * _SECOND),
                    "metric": metric,
                    "labels": sorted(labels.items()),
                    "type": "sum" if is_sum else "gauge",
                    "temporality": "cumulative" if is_sum else None,
                    "monotonic": True if is_sum else None,
                    "value": float(random.randrange(1 << 32)) if is_sum else random.random(),
                }
            )
    return pa.RecordBatch.from_pylist(rows, schema=SAMPLES_V1)


class Frames:
    """Frames with an identity each, all of the same few batches: so that thousands are made in a moment."""

    def __init__(self, *, seed: int = 1, batches: int = 8) -> None:
        random, any_identity = Random(seed), BatchIdentity("a", "b", 0, RECORDS - 1)
        encoded = [encode_frame(any_identity, FrameKind.SAMPLES, sample_batch(random)) for _ in range(batches)]
        self._payloads = [(peek_frame(body), pa.py_buffer(body[peek_frame(body).payload_at :])) for body in encoded]

    def frame(self, agent_id: str, boot_id: str, number: int) -> tuple[bytes, pa.Buffer]:
        """The frame with this number of an agent's boot: its head, and its payload, which it shares with others."""
        header, stored = self._payloads[number % len(self._payloads)]
        identity = BatchIdentity(agent_id, boot_id, number * RECORDS, (number + 1) * RECORDS - 1)
        size = header.payload_bytes
        head = encode_head(identity, header.kind, header.schema_version, payload_bytes=size, stored=stored, zstd=True)
        return head, stored


def _pod(random: Random) -> dict[str, str]:
    service = random.choice(_SERVICES)
    values = (
        f"prod-eu-west-{random.randrange(4)}",
        f"10.{random.randrange(256)}.{random.randrange(256)}.{random.randrange(256)}:9100",
        f"shop-{service}",
        f"{service}-{random.getrandbits(40):010x}-{random.getrandbits(20):05x}",
    )
    return dict(zip(_COMMON, values, strict=True))
