"""What messages announce, and that none is taken for understood of which a part is not."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.consume.messages import MAX_BODY_BYTES, announced
from lakehead.consume.objects import Announced, MessageFormat, NotUnderstood, ObjectRef
from lakehead.errors import Misconfigured
from tests.unit.consume.payloads import Json, bridge, gcs, gcs_attributes, push, s3, s3_record, s3_test_event, sns

AUTO, S3, GCS = MessageFormat.AUTO, MessageFormat.S3, MessageFormat.GCS
RAW_URI, LOCATION, INLINE = MessageFormat.RAW_URI, MessageFormat.LOCATION, MessageFormat.INLINE

IN_S3 = ObjectRef(uri="s3://shop/in/a.json", size=7, etag="e1")
IN_GCS = ObjectRef(uri="gs://shop/in/a.json", size=7, version="1700")


def read(message: Json | str, format: MessageFormat = AUTO, **more: Any) -> Announced:  # noqa: A002
    return announced((message if isinstance(message, str) else json.dumps(message)).encode(), format, **more)


def reason(message: Json | str | bytes, format: MessageFormat = AUTO, **more: Any) -> str:  # noqa: A002
    body = (
        message
        if isinstance(message, bytes)
        else (message if isinstance(message, str) else json.dumps(message)).encode()
    )
    with pytest.raises(NotUnderstood) as error:
        announced(body, format, **more)
    assert len(str(error.value)) < 600
    return str(error.value)


@pytest.mark.parametrize("format", [AUTO, S3])
@pytest.mark.parametrize(
    "message",
    [
        s3(),
        sns(s3()),
        sns(sns(s3())),
        bridge(),
        sns(bridge()),
        s3(s3_record(event="s3:ObjectCreated:Put")),
        s3(s3_record(event="ObjectCreated:Post")),
        s3(s3_record(event="ObjectCreated:Copy")),
        s3(s3_record(event="ObjectCreated:CompleteMultipartUpload")),
        s3({**s3_record(), "eventVersion": "2.6"}),
        s3({**s3_record(), "eventSource": "minio:s3"}),
        s3(s3_record(eTag='"e1"', versionId="")),
        s3(s3_record(versionId=None, sequencer=None)),
        s3(s3_record(), s3_record()),
    ],
)
def test_a_new_object_of_s3_is_announced_once_in_every_shape(message: Json, format: MessageFormat) -> None:  # noqa: A002
    assert read(message, format) == Announced((IN_S3,))


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("a+b.json", "a b.json"),
        ("a%20b.json", "a b.json"),
        ("a%2Bb.json", "a+b.json"),
        ("a%252Bb.json", "a%2Bb.json"),
        ("day%3D1/%C3%BC.json", "day=1/ü.json"),
        ("in%2Fa.json", "in/a.json"),
        ("100%25", "100%"),
        ("why%3F.json", "why?.json"),
        ("a%23b", "a#b"),
    ],
)
def test_s3_writes_keys_as_in_a_form_and_eventbridge_as_they_are(written: str, key: str) -> None:
    assert [found.uri for found in read(s3(s3_record(written))).objects] == [f"s3://shop/{key}"]
    assert [found.uri for found in read(bridge(key=key)).objects] == [f"s3://shop/{key}"]
    assert [found.uri for found in read(bridge(key=written)).objects] == [f"s3://shop/{written}"]
    assert [found.uri for found in read(gcs(name=written)).objects] == [f"gs://shop/{written}"]


def test_size_etag_and_version_are_kept() -> None:
    assert read(s3(s3_record(versionId="v1", size=0, eTag=None))).objects == (
        ObjectRef(uri="s3://shop/in/a.json", size=0, version="v1"),
    )
    assert read(bridge(**{"version-id": "v1"})).objects[0].version == "v1"


def test_several_records_are_all_announced_and_removals_are_not() -> None:
    found = read(
        s3(
            s3_record("a"),
            s3_record("a", event="ObjectRemoved:Delete"),
            s3_record("b"),
            s3_record("a"),
            s3_record("b", versionId="v2"),
        )
    )

    assert [(ref.uri, ref.version) for ref in found.objects] == [
        ("s3://shop/a", None),
        ("s3://shop/b", None),
        ("s3://shop/b", "v2"),
    ]
    assert found.ignored == ("ObjectRemoved:Delete: the object was removed",)


@pytest.mark.parametrize(
    "event",
    [
        "ObjectRemoved:Delete",
        "ObjectRemoved:DeleteMarkerCreated",
        "s3:ObjectRemoved:Delete",
        "LifecycleExpiration:Delete",
        "LifecycleExpiration:DeleteMarkerCreated",
        "LifecycleTransition",
        "IntelligentTiering",
        "ObjectTagging:Put",
        "ObjectTagging:Delete",
        "ObjectAcl:Put",
        "ObjectRestore:Post",
        "ObjectRestore:Completed",
        "ObjectRestore:Delete",
        "ReducedRedundancyLostObject",
        "Replication:OperationFailedReplication",
    ],
)
def test_events_of_s3_that_create_nothing_are_ignored_with_a_reason(event: str) -> None:
    found = read(s3(s3_record(event=event)))

    assert found.objects == ()
    assert found.ignored[0].startswith(f"{event.removeprefix('s3:')}: ")


@pytest.mark.parametrize(
    "kind",
    [
        "Object Deleted",
        "Object Restore Initiated",
        "Object Restore Completed",
        "Object Restore Expired",
        "Object Storage Class Changed",
        "Object Access Tier Changed",
        "Object ACL Updated",
        "Object Tags Added",
        "Object Tags Deleted",
    ],
)
def test_events_by_eventbridge_that_create_nothing_are_ignored_with_a_reason(kind: str) -> None:
    assert read(bridge(kind)).ignored[0].startswith(f"{kind}: ")


@pytest.mark.parametrize("message", [s3_test_event(), sns(s3_test_event())])
def test_the_test_event_of_s3_is_ignored(message: Json) -> None:
    assert read(message).ignored == read(message, S3).ignored
    assert read(message).ignored[0].startswith("s3:TestEvent")


def test_the_empty_marker_of_a_folder_is_ignored_and_a_full_one_is_not() -> None:
    assert read(s3(s3_record("in/", size=0))).ignored == ("the object is the empty marker of a folder",)
    assert "ends with a slash" in reason(s3(s3_record("in/", size=5)))
    assert "ends with a slash" in reason(s3(s3_record("in/", size=None)))
    assert "folder" in reason("s3://shop/in/")


@pytest.mark.parametrize("format", [AUTO, GCS])
@pytest.mark.parametrize(
    ("message", "attributes"),
    [
        (gcs(), gcs_attributes()),
        (gcs(), None),
        (gcs(generation=1700, size=7), {}),
        (push(gcs(), gcs_attributes()), None),
        (push(gcs(), {}), None),
    ],
)
def test_a_new_object_of_gcs_is_announced(message: Json, attributes: Any, format: MessageFormat) -> None:  # noqa: A002
    assert read(message, format, attributes=attributes) == Announced((IN_GCS,))


@pytest.mark.parametrize("format", [AUTO, GCS])
def test_a_notification_of_gcs_without_payload_is_read_from_its_attributes(format: MessageFormat) -> None:  # noqa: A002
    bare = Announced((ObjectRef(uri="gs://shop/in/a.json", version="1700"),))

    assert read("", format, attributes=gcs_attributes()) == bare
    assert read(push(None, gcs_attributes()), format) == bare


@pytest.mark.parametrize("event", ["OBJECT_DELETE", "OBJECT_ARCHIVE", "OBJECT_METADATA_UPDATE"])
def test_events_of_gcs_that_create_nothing_are_ignored_with_a_reason(event: str) -> None:
    for found in (read(gcs(), attributes=gcs_attributes(event)), read(push(gcs(), gcs_attributes(event)))):
        assert found.objects == ()
        assert found.ignored[0].startswith(f"{event}: ")
    assert read(gcs(timeDeleted="2031-05-06T07:08:09Z")).ignored == ("timeDeleted: the object was removed",)


@pytest.mark.parametrize("format", [AUTO, RAW_URI])
def test_uris_stand_one_in_each_line(format: MessageFormat) -> None:  # noqa: A002
    found = read("\ufeffs3a://shop/a b.json\r\n\n  /data/x.csv\t\ngs://g/k?generation=5\ns3://shop/a b.json\n", format)

    assert found == Announced(
        (
            ObjectRef(uri="s3://shop/a b.json"),
            ObjectRef(uri="file:///data/x.csv"),
            ObjectRef(uri="gs://g/k", version="5"),
        )
    )


def test_a_uri_may_be_in_an_sns_envelope() -> None:
    assert read(sns("s3://shop/in/a.json")) == Announced((ObjectRef(uri="s3://shop/in/a.json"),))
    assert "not valid JSON" in reason(sns("s3://shop/in/a.json"), S3)


@pytest.mark.parametrize(
    ("store_url", "location", "uri"),
    [
        ("s3://lake/pre", "data/1.batch", "s3://lake/pre/data/1.batch"),
        ("s3://lake", "data/1.batch", "s3://lake/data/1.batch"),
        ("s3://lake/a%20b?endpoint=http://x:1&region=y", "k", "s3://lake/a b/k"),
        ("file:///q", "k 1", "file:///q/k%201"),
        ("memory://", "k", "memory:///k"),
        ("s3://lake", "dead/1.json#6ba7b810-9dad-11d1-80b4-00c04fd430c8", "s3://lake/dead/1.json"),
        ("s3://lake", "dead/1.json#other", "s3://lake/dead/1.json#other"),
    ],
)
def test_a_location_is_a_key_of_the_queues_store(store_url: str, location: str, uri: str) -> None:
    assert read(location, LOCATION, store_url=store_url) == Announced((ObjectRef(uri=uri),))


@pytest.mark.parametrize("location", ["", "/k", "a//b", "../k", "a\nb", "k/", "k#0-1"])
def test_what_is_no_key_is_no_location(location: str) -> None:
    reason(location, LOCATION, store_url="s3://lake")


def test_a_location_needs_its_store() -> None:
    with pytest.raises(Misconfigured):
        read("k", LOCATION)


def test_inline_content_announces_nothing_here() -> None:
    assert announced(b"\xff" * (MAX_BODY_BYTES + 1), INLINE) == Announced()


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("", "1 to 10000 URIs"),
        ("  \n ", "1 to 10000 URIs"),
        ("s3://shop/a\nnonsense", "Line 2"),
        ("s3://shop/a\n" * 10_001, "1 to 10000 URIs"),
        ("[]", "not a URI"),
        ("{", "not valid JSON"),
        ("{}", "no fields"),
        ('{"a": 1, "b": 2}', "the fields 'a', 'b'"),
        ('{"Records": [], "Records": []}', "not valid JSON"),
        ('{"kind": NaN}', "not valid JSON"),
        ('{"a":' * 100_000, "not valid JSON"),
        (f'{{"a": {"[" * 100_000}{"]" * 100_000}}}', "not valid JSON"),
        (f'{{"Records": {"9" * 10_000}}}', "not valid JSON"),
        (s3({**s3_record(), "eventVersion": "3.0"}), "version '3.0'"),
        (s3({**s3_record(), "eventVersion": 2.1}), "eventVersion should be a text"),
        (s3({**s3_record(), "eventSource": "aws:sqs"}), "eventSource is 'aws:sqs'"),
        (s3(s3_record(event="ObjectFrozen:Put")), "ObjectFrozen:Put"),
        (s3(s3_record(event="ObjectRemoved:a b")), "ObjectRemoved:a b"),
        (s3(s3_record(key="")), "key should be a text, and is an empty text"),
        (s3(s3_record(key="a%2F..%2Fb")), "may lead out of a prefix"),
        (s3(s3_record(key="a%ff")), "not UTF-8"),
        (s3(s3_record(key="\ud800")), "not valid Unicode"),
        (s3(s3_record(key="a%23" + "0-5")), "Rename it"),
        (s3(s3_record(size=-1)), "number of bytes"),
        (s3(s3_record(size=2**63)), "number of bytes"),
        (s3(s3_record(size=1.5)), "number of bytes"),
        (s3(s3_record(size=True)), "number of bytes"),
        (s3(s3_record(versionId={"a": 1})), "versionId should be a text, and is an object"),
        (s3(s3_record(versionId="\ud800")), "not valid Unicode"),
        (s3(s3_record(), {}), "Records[1].eventSource"),
        ({"Records": []}, "1 to 10000"),
        ({"Records": {}}, "1 to 10000"),
        ({"Records": [{}] * 10_001}, "1 to 10000"),
        ({"Records": ["x"]}, "Records[0]"),
        ({"Event": "s3:OtherEvent"}, "the fields 'Event'"),
        (sns(s3(), "SubscriptionConfirmation"), "Confirm it in SNS"),
        (sns(s3(), "UnsubscribeConfirmation"), "UnsubscribeConfirmation"),
        (sns(""), "URIs"),
        ({"Type": "Notification"}, "a text as its Message"),
        ({"Type": 5}, "Type should be a text"),
        (sns(sns(sns(sns(sns(s3()))))), "more than 4 envelopes"),
        ({**bridge(), "source": "aws.ec2"}, "aws.ec2"),
        (bridge("Object Melted"), "Object Melted"),
        ({**bridge(), "detail": None}, "detail should be an object"),
        (bridge(key=5), "detail.object.key should be a text"),
        (gcs(name=None), "name should be a text"),
        (gcs(generation="x"), "generation"),
        (push(gcs(bucket=5), {}), "bucket should be a text"),
        ({"message": {"data": "%%%"}}, "base64"),
        ({"message": {"data": 5}}, "base64"),
        ({"message": {"data": "ü"}}, "base64"),
        ({"message": {"attributes": [1]}}, "attributes"),
        ({"message": {"attributes": {"a": 1}}}, "attributes"),
        ({"message": []}, "message should be an object"),
    ],
)
def test_what_is_not_understood_is_said_with_what_was_expected(message: Json | str, said: str) -> None:
    assert said in reason(message)


def test_a_good_record_beside_a_bad_one_is_not_understood_either() -> None:
    bad_ones: list[Any] = [{}, [], None, {**s3_record(), "eventName": "New:Thing"}, {**s3_record(), "s3": {}}]
    for bad in bad_ones:
        reason({"Records": [s3_record("good"), bad, s3_record("good")]})


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (gcs_attributes("OBJECT_MELTED"), "OBJECT_MELTED"),
        ({**gcs_attributes(), "objectId": "other"}, "name another object"),
        ({**gcs_attributes(), "bucketId": "other"}, "name another object"),
    ],
)
def test_attributes_that_are_unknown_or_contradict_are_not_understood(attributes: dict[str, str], said: str) -> None:
    assert said in reason(gcs(), attributes=attributes)


@pytest.mark.parametrize(
    ("message", "format"),
    [
        (gcs(), S3),
        (s3(), GCS),
        (push(gcs(), {}), S3),
        (bridge(), GCS),
        ("s3://a/b", S3),
        ("", S3),
        ("", GCS),
        (gcs(kind="storage#bucket"), GCS),
    ],
)
def test_a_message_of_another_format_is_not_understood(message: Json | str, format: MessageFormat) -> None:  # noqa: A002
    reason(message, format)


@pytest.mark.parametrize("body", [b"\xff\xfe", b"\xc3", "s3://a/ü".encode("latin-1"), b"x" * (MAX_BODY_BYTES + 1)])
def test_bytes_that_are_no_text_or_too_many_are_not_understood(body: bytes) -> None:
    for format in (AUTO, S3, GCS, RAW_URI, LOCATION):  # noqa: A001
        reason(body, format, store_url="s3://lake")


@pytest.mark.parametrize(
    "message",
    [
        "https://minio.example/a?X-Amz-Signature=hunter2",
        "s3://KEY:hunter2@shop/a",
        '{"url": "https://h/a?sig=hunter2"',
        '{"Token": "hunter2"',
        sns(s3(), "SubscriptionConfirmation"),
        {"password": "hunter2"},
        s3(s3_record(key="https://h/a?X-Amz-Signature=hunter2")),
    ],
)
def test_no_secret_is_shown(message: Json | str) -> None:
    assert "hunter2" not in reason(message)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([2**70, -1, "\ud800", "7"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SHAPES: list[Callable[[], Json]] = [
    lambda: s3(s3_record(versionId="v"), s3_record(event="ObjectRemoved:Delete")),
    lambda: bridge(**{"version-id": "v"}),
    gcs,
    lambda: push(gcs(), gcs_attributes()),
    lambda: sns("s3://a/b"),
    s3_test_event,
]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container in a message, with each of its keys."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data(), st.sampled_from(SHAPES), st.sampled_from(MessageFormat))
def test_any_value_in_any_field_is_understood_or_not_and_nothing_else(
    data: st.DataObject,
    shape: Callable[[], Json],
    format: MessageFormat,  # noqa: A002
) -> None:
    message = shape()
    container, key = data.draw(st.sampled_from(list(places(message))))
    container[key] = data.draw(JSON)
    wrapped = sns(message) if data.draw(st.booleans()) else message

    check_any(json.dumps(wrapped).encode(), format)


@given(
    st.binary() | st.text().map(str.encode) | JSON.map(lambda value: json.dumps({"Records": value}).encode()),
    st.sampled_from(MessageFormat),
)
def test_any_bytes_are_understood_or_not_and_nothing_else(body: bytes, format: MessageFormat) -> None:  # noqa: A002
    check_any(body, format)


@given(
    st.dictionaries(
        st.sampled_from([*gcs_attributes(), "x"]), st.text(max_size=8) | st.sampled_from(["OBJECT_FINALIZE", "5"])
    )
)
def test_any_attributes_are_understood_or_not_and_nothing_else(attributes: dict[str, str]) -> None:
    check_any(b"", AUTO, attributes=attributes)


def check_any(body: bytes, format: MessageFormat, **more: Any) -> None:  # noqa: A002
    try:
        found = announced(body, format, store_url="s3://lake", **more)
    except NotUnderstood as error:
        said = str(error)
    else:
        assert found.objects or found.ignored or format is INLINE
        said = " ".join(found.ignored)
    assert len(said) < 600
    assert said.isprintable()


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/in/a.json ",
        "s3://bucket/in/ a#b?c=%2B+d",
        "file:///in/a%20.json%20",
        "gs://b/k?versionId=1/x",
        "memory:///a",
    ],
)
def test_a_listed_uri_is_taken_to_the_letter(uri: str) -> None:
    assert announced(uri.encode(), MessageFormat.LISTED) == Announced((ObjectRef(uri=uri),))


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/a.json?versionId=abc",
        "s3://bucket/a.json?etag=abc",
        "s3://bucket/a.json#0-100",
        "s3://bucket/x\ns3://other/secret.json",
        "s3://bucket/a//b",
        "s3://bucket/folder/",
        "file:///in/a b",
        "/in/a",
        "",
    ],
)
def test_a_listed_key_that_reads_as_something_else_is_not_understood(uri: str) -> None:
    with pytest.raises(NotUnderstood):
        announced(uri.encode(), MessageFormat.LISTED)
