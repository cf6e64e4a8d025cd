"""Files have one name, however they are spelled, and are deleted by it."""

from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lakehead.maintain.places import delete_files, place
from tests.unit.lake.local_table import create, local_catalog


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


def test_a_file_is_deleted_by_its_name_to_the_letter(tmp_path: Path) -> None:
    names = ["a", "a#1", "a?b=c", "a;p", "a%20b", "a b"]
    with local_catalog(tmp_path) as catalog:
        table = create(catalog, "t", Schema(NestedField(1, "v", LongType()))).load()
        folder = tmp_path / "imported"
        folder.mkdir()
        for name in names:
            for each in names:
                (folder / each).touch()
            (folder / f".{name}.crc").touch()

            assert delete_files(table, [f"file://{folder}/{name}"]) == []

            assert {file.name for file in folder.iterdir()} == set(names) - {name}


def test_a_file_that_cannot_be_deleted_keeps_no_other_from_being_deleted(tmp_path: Path) -> None:
    with local_catalog(tmp_path) as catalog:
        table = create(catalog, "t", Schema(NestedField(1, "v", LongType()))).load()
        file, folder = tmp_path / "file", tmp_path / "folder"
        file.touch()
        folder.mkdir()

        failed = delete_files(table, ["unknown://bucket/key", f"file://{folder}", f"file://{file}", f"{file}-gone"])

        assert [reason.partition(": ")[0] for reason in failed] == ["unknown://bucket/key", f"file://{folder}"]
        assert not file.exists()
