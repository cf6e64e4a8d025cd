"""Files have one name, however they are spelled."""

import pytest

from lakehead.maintain.places import place


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file:/x/y", "file:///x/y"),
        ("/x/y", "file:///x/y"),
        ("file:////x//y", "/x/y"),
        ("FILE:///x", "/x"),
        ("file://localhost/x", "/x"),
        ("s3://bucket/key", "s3a://bucket/key"),
        ("s3n://bucket/key", "s3://bucket/key"),
        ("hdfs://name:8020/x", "hdfs:/x"),
    ],
)
def test_spellings_of_one_file_are_one_place(one: str, other: str) -> None:
    assert place(one) == place(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://bucket/a", "s3://other/a"),
        ("s3://bucket/a//b", "s3://bucket/a/b"),
        ("s3://bucket/a?b", "s3://bucket/a"),
        ("s3://bucket/a#b", "s3://bucket/a"),
        ("/x/a%20b", "/x/a b"),
        ("/x/A", "/x/a"),
    ],
)
def test_different_files_are_different_places(one: str, other: str) -> None:
    assert place(one) != place(other)


def test_a_place_is_what_a_file_system_calls_it() -> None:
    assert place("s3://bucket/folder/file") == "bucket/folder/file"
    assert place("file:///folder/file") == "/folder/file"
    assert place("/folder/with:colon") == "/folder/with:colon"
