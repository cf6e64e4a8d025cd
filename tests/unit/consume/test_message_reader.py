"""What the messages of a pipeline announce, as units of its tables."""

import json

import pytest

from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.iceberg_landings import _to_read as to_read
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.message_reader import MessageReader
from lakehead.consume.objects import MessageFormat, NotUnderstood
from lakehead.consume.queue import Message
from lakehead.consume.routes import Route
from lakehead.consume.uris import Identity, inline_id

ROUTES = (
    Route(table="t.clicks", prefixes=("s3://bucket/clicks/",)),
    Route(table="t.views", include=("*.json",), exclude=("*.tmp.json",)),
)


def read(body: bytes, *, form: MessageFormat = MessageFormat.AUTO, **more: object) -> tuple[list[Work], ConsumeCounts]:
    counts = ConsumeCounts()
    reader = MessageReader(format=form, routes=ROUTES, **more)  # type: ignore[arg-type]
    return list(reader(Message(id="m", body=body), counts)), counts


def test_each_object_is_a_unit_of_the_first_table_that_takes_it() -> None:
    works, counts = read(b"s3://bucket/clicks/a.json\ns3://bucket/b.json\ns3://bucket/c.csv\ns3://bucket/d.tmp.json\n")

    assert [work.key for work in works] == [
        UnitKey("t.clicks", "s3://bucket/clicks/a.json"),
        UnitKey("t.views", "s3://bucket/b.json"),
    ]
    assert all(work.object is not None and work.object.uri == work.key.unit for work in works)
    assert counts.filtered == 2


def test_an_object_that_a_message_names_twice_is_one_unit() -> None:
    works, _ = read(b"s3://bucket/b.json\ns3a://bucket/b.json\n")

    assert [work.key.unit for work in works] == ["s3://bucket/b.json"]


def test_a_message_of_objects_that_no_route_takes_announces_nothing() -> None:
    works, counts = read(b"s3://bucket/c.csv")

    assert (works, counts.filtered) == ([], 1)


def test_a_message_that_is_not_understood_is_told_so() -> None:
    for body in (b"", b"nonsense", b"{}", b"\xff"):
        with pytest.raises(NotUnderstood):
            read(body)


def test_removals_and_test_events_are_counted_and_announce_nothing() -> None:
    works, counts = read(json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}).encode())

    assert (works, counts.ignored) == ([], 1)


def test_inline_content_is_a_unit_of_the_first_table_by_its_content() -> None:
    [work], _ = read(b'{"n": 1}', form=MessageFormat.INLINE)
    [same], _ = read(b'{"n": 1}', form=MessageFormat.INLINE)
    [other], _ = read(b'{"n": 2}', form=MessageFormat.INLINE)

    assert work.key == same.key == UnitKey("t.clicks", inline_id(b'{"n": 1}'))
    assert work.key != other.key
    assert (work.content, work.size, work.object) == (b'{"n": 1}', 8, None)


def test_with_the_version_as_identity_a_message_without_one_is_not_understood() -> None:
    [work], _ = read(b"s3://bucket/b.json?versionId=7", identity=Identity.URI_AND_VERSION)
    assert "7" in work.key.unit
    with pytest.raises(NotUnderstood, match="version"):
        read(b"s3://bucket/b.json", identity=Identity.URI_AND_VERSION)


def test_only_a_unit_that_is_named_by_its_etag_is_read_by_its_etag() -> None:
    """Else what was announced as one content and as another would both land what is there now."""
    uri = b"s3://bucket/b.json?etag=abc"
    [by_etag], _ = read(uri, identity=Identity.URI_AND_ETAG)
    [by_uri], _ = read(uri)
    [inline], _ = read(b"{}", form=MessageFormat.INLINE)

    assert to_read(by_etag).etag == "abc"
    assert to_read(by_uri).etag is None
    assert (to_read(inline).etag, to_read(inline).content) == (None, b"{}")
