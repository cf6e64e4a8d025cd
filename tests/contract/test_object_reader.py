"""Objects as tasks read them: local files, and a real S3 server."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import obstore
import pytest

from lakehead.consume import object_reader
from lakehead.consume.decode.rows import ObjectRefused
from lakehead.consume.object_reader import ObjectReader, ReplacedWhileRead
from lakehead.consume.uris import object_uri
from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.storage.connect import Bucket, StoreSettings, connect
from tests.servers.seaweed import BUCKET, Seaweed

Put = Callable[[str, bytes], str]
"""Stores an object under a key. Returns its URI."""

ODD_KEYS = [
    "plain.json",
    "with spaces.json",
    "100%.json",
    "a%20b.json",
    "what?.json",
    "a+b.json",
    "a#b.json",
    "a&b=c.json",
    "grüße-日本-\N{GRINNING FACE}.json",
    "deep/er/and.deeper",
    "quote'\".json",
    "[1]{2}~.json",
]


@pytest.fixture(params=["local", "seaweed"])
def put(request: pytest.FixtureRequest, tmp_path: Path) -> Put:
    if request.param == "local":

        def put_file(key: str, body: bytes) -> str:
            path = tmp_path / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
            return object_uri("file", "", str(path)[1:])

        return put_file
    client = connect(Bucket("s3", BUCKET, ""), request.getfixturevalue("seaweed").settings(), retries=3)
    prefix = uuid4()

    def put_object(key: str, body: bytes) -> str:
        obstore.put(client, f"{prefix}/{key}", body)
        return object_uri("s3", BUCKET, f"{prefix}/{key}")

    return put_object


@pytest.fixture
def reader(seaweed: Seaweed) -> ObjectReader:
    return ObjectReader({"s3": seaweed.settings()})


@pytest.mark.parametrize("key", ODD_KEYS)
def test_an_object_is_found_by_its_uri_whatever_its_key_is(put: Put, reader: ObjectReader, key: str) -> None:
    uri = put(key, key.encode())

    source, size, _ = reader.open(uri)

    assert source.read() == key.encode()
    assert size == len(key.encode())


def test_an_empty_object_is_empty(put: Put, reader: ObjectReader) -> None:
    source, size, _ = reader.open(put("empty", b""))

    assert (source.read(), size) == (b"", 0)


def test_an_object_that_does_not_exist_is_refused(put: Put, reader: ObjectReader) -> None:
    uri = put("there", b"x")

    with pytest.raises(ObjectRefused, match="does not exist"):
        reader.open(f"{uri}-not")


def test_a_large_object_is_read_by_ranges_in_any_order(
    put: Put, reader: ObjectReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_reader, "WHOLE_BYTES", 1_000)
    monkeypatch.setattr(object_reader, "RANGE_BYTES", 300)
    body = bytes(number % 251 for number in range(10_000))
    uri = put("large", body)

    source, size, _ = reader.open(uri)
    assert (source.read(), size) == (body, 10_000)
    for start, end in [(0, 10), (9_990, 10_000), (900, 1_100), (0, 10_000), (5_000, 5_001)]:
        source.seek(start)
        assert source.read(end - start) == body[start:end]
    assert source.size() == 10_000
    source.seek(10_000)
    assert source.read(10) == b""


@pytest.mark.parametrize("size", [999, 1_000, 1_001])
def test_an_object_about_as_large_as_one_request_is_whole(
    put: Put, reader: ObjectReader, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(object_reader, "WHOLE_BYTES", 1_000)
    source, found, _ = reader.open(put("object", b"x" * size))

    assert (len(source.read()), found) == (size, size)


def test_a_large_object_that_is_replaced_while_it_is_read_is_not_mixed(
    seaweed: Seaweed, reader: ObjectReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_reader, "WHOLE_BYTES", 1_000)
    monkeypatch.setattr(object_reader, "RANGE_BYTES", 300)
    client, key = connect(Bucket("s3", BUCKET, ""), seaweed.settings(), retries=3), f"{uuid4()}"
    obstore.put(client, key, b"a" * 5_000)
    source, _, _ = reader.open(f"s3://{BUCKET}/{key}")
    assert source.read(500) == b"a" * 500
    obstore.put(client, key, b"b" * 5_000)

    with pytest.raises(ReplacedWhileRead):
        source.read()


@pytest.mark.parametrize("size", [1, 5_000])
def test_an_object_that_was_replaced_since_it_was_announced_is_refused(
    seaweed: Seaweed, reader: ObjectReader, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(object_reader, "WHOLE_BYTES", 1_000)
    client, key = connect(Bucket("s3", BUCKET, ""), seaweed.settings(), retries=3), f"{uuid4()}"
    announced = str(obstore.put(client, key, b"a" * size)["e_tag"]).strip('"')
    source, found, _ = reader.open(f"s3://{BUCKET}/{key}", etag=announced)
    assert (source.read(), found) == (b"a" * size, size)
    obstore.put(client, key, b"b" * size)

    with pytest.raises(ReplacedWhileRead):
        reader.open(f"s3://{BUCKET}/{key}", etag=announced)
    assert reader.open(f"s3://{BUCKET}/{key}")[1] == size


def test_a_large_object_that_vanishes_while_it_is_read_is_refused(
    seaweed: Seaweed, reader: ObjectReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_reader, "WHOLE_BYTES", 1_000)
    client, key = connect(Bucket("s3", BUCKET, ""), seaweed.settings(), retries=3), f"{uuid4()}"
    obstore.put(client, key, b"a" * 5_000)
    source, _, _ = reader.open(f"s3://{BUCKET}/{key}")
    obstore.delete(client, key)

    with pytest.raises(ObjectRefused):
        source.read()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"credentials": {"access_key_id": "no", "secret_access_key": "such key"}}, Misconfigured),
        ({"endpoint": "http://127.0.0.1:1"}, Unavailable),
    ],
)
def test_who_may_not_read_or_finds_nobody_is_told_so(
    seaweed: Seaweed, settings: dict[str, object], error: type[LakeheadError]
) -> None:
    known = seaweed.settings(request_timeout=2)
    wrong = StoreSettings(
        endpoint=str(settings.get("endpoint", known.endpoint)),
        region=known.region,
        credentials=settings.get("credentials", known.credentials),  # type: ignore[arg-type]
        request_timeout=2,
        backoff=known.backoff,
    )

    with pytest.raises(error):
        ObjectReader({"s3": wrong}).open(f"s3://{BUCKET}/any")


def test_a_bucket_that_does_not_exist_is_a_mistake_of_the_configuration(reader: ObjectReader) -> None:
    with pytest.raises(Misconfigured, match="does not exist"):
        reader.open("s3://no-such-bucket-here/any")


def test_a_folder_is_refused(reader: ObjectReader, tmp_path: Path) -> None:
    with pytest.raises(ObjectRefused, match="folder"):
        reader.open(f"file://{tmp_path}")


def test_a_file_that_cannot_be_opened_is_a_mistake_of_the_configuration(reader: ObjectReader, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    with pytest.raises(Misconfigured, match="cannot be opened"):
        reader.open(f"file://{tmp_path}/loop")
