"""Tags of objects: what S3 would refuse is refused at the start."""

import sys

import pytest

from lakehead.consume.s3_tags import S3Tags, check_all_in_s3, tags_problem
from lakehead.errors import Misconfigured
from lakehead.run.config.consume_config import ConsumeConfig
from lakehead.run.consume_wiring import places_of
from lakehead.storage.connect import StoreSettings

TABLE = {"table": "raw.files", "format": "ndjson"}


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        ({}, None),
        ({"state": "landed", "größe": "1 + 1 = 2.0 @ x:y/z_-", "empty": ""}, None),
        ({"n" * 128: "v" * 256}, None),
        ({"n" * 129: "v"}, "1 to 128 characters"),
        ({"n": "v" * 257}, "256 at most"),
        ({"": "v"}, "1 to 128 characters"),
        ({"a&b": "v"}, "letters, digits"),
        ({"a": "<v>"}, "letters, digits"),
        ({"AWS:x": "v"}, "begins with aws:"),
        ({f"tag{number}": "" for number in range(11)}, "11 tags"),
    ],
)
def test_tags_are_checked_as_s3_does(tags: dict[str, str], problem: str | None) -> None:
    found = tags_problem(tags)

    assert found is None if problem is None else problem in (found or "")


@pytest.mark.parametrize(
    ("queue", "prefixes", "refused"),
    [
        ({"type": "sqs", "queue": "q"}, [], None),
        ({"type": "sqs", "queue": "q"}, ["s3://bucket/in/", "s3a://other/"], None),
        ({"type": "sqs", "queue": "q"}, ["s3://bucket/in/", "gs://bucket/in/"], "gs://bucket/in/"),
        ({"type": "folder", "url": "s3://bucket/in"}, [], None),
        ({"type": "folder", "url": "/data/in"}, [], "file:///data/in"),
        ({"type": "files", "uris": ["s3://bucket/a", "az://container/b"]}, [], "az://container/b"),
    ],
)
def test_a_pipeline_that_tags_objects_of_another_store_is_refused(
    queue: dict[str, object], prefixes: list[str], refused: str | None
) -> None:
    config = ConsumeConfig.model_validate(
        {
            "queue": queue,
            "tables": [{**TABLE, "prefixes": prefixes}],
            "after_landing": "tag",
            "tags": {"state": "landed"},
        }
    )

    if refused is None:
        check_all_in_s3(places_of(config))
    else:
        with pytest.raises(Misconfigured, match=f"{refused} is not there"):
            check_all_in_s3(places_of(config))


def test_tags_without_boto3_are_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)

    with pytest.raises(Misconfigured, match=r"need boto3\. Install lakehead\[s3\]"):
        S3Tags.open({"a": "b"}, StoreSettings())


@pytest.mark.slow
def test_settings_that_boto3_cannot_use_are_refused() -> None:
    with pytest.raises(Misconfigured, match="Tags of objects need a client of S3"):
        S3Tags.open({"a": "b"}, StoreSettings(endpoint="nonsense", region="eu-central-1"))


class FakeClient:
    """Answers requests for tags with what it is given, and keeps what is put."""

    def __init__(self, answer: dict[str, object]) -> None:
        self.answer = answer
        self.put: list[object] = []

    def get_object_tagging(self, **_: str) -> dict[str, object]:
        return self.answer

    def put_object_tagging(self, **request: object) -> None:
        self.put.append(request["Tagging"])


def test_a_server_that_answers_without_tags_is_not_sent_any_for_it_may_take_them_for_the_object() -> None:
    client = FakeClient({"ResponseMetadata": {"HTTPStatusCode": 200}})

    with pytest.raises(Misconfigured, match="does not tell the tags of bucket/key"):
        S3Tags({"a": "b"}, client).add("bucket", "key", None)

    assert client.put == []


def test_a_tag_without_a_value_is_kept() -> None:
    client = FakeClient({"TagSet": [{"Key": "old"}]})

    assert S3Tags({"a": "b"}, client).add("bucket", "key", None)

    assert client.put == [{"TagSet": [{"Key": "old", "Value": ""}, {"Key": "a", "Value": "b"}]}]
