"""Whatever is sent as OTLP becomes what the obvious reading of it is, or is refused as a whole."""

from contextlib import suppress
from random import Random

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint

from lakehead.agent.receive.decoded import BadBody, Decoded
from lakehead.agent.receive.otlp_logs import decode_otlp_logs
from lakehead.agent.receive.otlp_metrics import decode_otlp_metrics
from lakehead.wire.record_schemas import FrameKind, newest_schema
from tests.unit.agent.receive.otlp_oracle import Expected, comparable, expected_logs, expected_samples
from tests.unit.agent.receive.otlp_requests import NOW, field, logs_requests, metrics_requests, number_points


def decoded_metrics(body: bytes, *, is_json: bool = False) -> Decoded:
    found = decode_otlp_metrics(body, is_json=is_json, now_ns=NOW)
    newest_schema(FrameKind.SAMPLES).check(found.records)
    found.records.validate(full=True)
    return found


def decoded_logs(body: bytes, *, is_json: bool = False) -> Decoded:
    found = decode_otlp_logs(body, is_json=is_json, now_ns=NOW)
    newest_schema(FrameKind.LOGS).check(found.records)
    found.records.validate(full=True)
    return found


def agrees(found: Decoded, expected: Expected) -> bool:
    assert comparable(found.records) == comparable(expected.records)
    assert found.records.schema.equals(expected.records.schema, check_metadata=True)
    assert (found.rejected, found.have_own_times) == (expected.rejected, expected.have_own_times)
    assert bool(found.reason) == bool(found.rejected)
    return True


@given(metrics_requests)
def test_metrics_are_what_the_obvious_reading_makes_of_them(request: ExportMetricsServiceRequest) -> None:
    assert agrees(decoded_metrics(request.SerializeToString()), expected_samples(request, NOW))


@given(logs_requests)
def test_logs_are_what_the_obvious_reading_makes_of_them(request: ExportLogsServiceRequest) -> None:
    assert agrees(decoded_logs(request.SerializeToString()), expected_logs(request, NOW))


@given(
    points=st.lists(st.lists(number_points, min_size=1, max_size=3), min_size=1, max_size=3),
    has_new_field=st.booleans(),
)
def test_a_point_may_be_encoded_in_any_order_and_say_things_twice(
    points: list[list[NumberDataPoint]], *, has_new_field: bool
) -> None:
    """Encodings one after the other are one message: what comes last counts, and attributes are added."""
    encoded = [b"".join(part.SerializeToString() for part in parts) for parts in points]
    if has_new_field:
        encoded = [each + field(15, b"of a newer version") for each in encoded]
    gauge = b"".join(field(1, each) for each in encoded)
    metric = field(1, b"up") + field(5, gauge)
    body = field(1, field(2, field(2, metric)))

    request = ExportMetricsServiceRequest.FromString(body)

    assert len(request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points) == len(points)
    assert agrees(decoded_metrics(body), expected_samples(request, NOW))


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_decoded_or_refused(body: bytes) -> None:
    for decode in (decoded_metrics, decoded_logs):
        for is_json in (False, True):
            with suppress(BadBody):
                decode(body, is_json=is_json)


def damaged(body: bytes, random: Random) -> bytes:
    """The body with some bytes changed, put in or taken out."""
    changed = bytearray(body)
    for _ in range(random.choice([1, 1, 2, 4])):
        at = random.randrange(len(changed) + 1)
        match random.randrange(4):
            case 0 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                changed[at : at + 1] = random.randbytes(1)
            case 2:
                changed[at:at] = random.randbytes(random.randrange(1, 3))
            case _:
                del changed[at : at + random.randrange(1, 3)]
    return bytes(changed)


@given(metrics_requests, st.integers(0, 2**32))
def test_damaged_metrics_are_refused_or_what_they_say_now(request: ExportMetricsServiceRequest, seed: int) -> None:
    body = damaged(request.SerializeToString(), Random(seed))
    try:
        says = ExportMetricsServiceRequest.FromString(body)
    except DecodeError:
        with suppress(BadBody):  # the damage may be in what is not read, as in an exemplar
            decoded_metrics(body)
    else:
        assert agrees(decoded_metrics(body), expected_samples(says, NOW))


@given(logs_requests, st.integers(0, 2**32))
def test_damaged_logs_are_refused_or_what_they_say_now(request: ExportLogsServiceRequest, seed: int) -> None:
    body = damaged(request.SerializeToString(), Random(seed))
    try:
        says = ExportLogsServiceRequest.FromString(body)
    except DecodeError:
        with suppress(BadBody):  # the damage may be in a resource that has no records
            decoded_logs(body)
    else:
        assert agrees(decoded_logs(body), expected_logs(says, NOW))
