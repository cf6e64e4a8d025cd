"""How units are spelled, and what the small files of a file sink hold."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.errors import Misconfigured
from lakehead.lake.filesink.file_names import InvalidUnit, Places, Spelled, key_of, name_of, spelled_in
from lakehead.lake.filesink.records import (
    BrokenRecord,
    Label,
    decode_label,
    decode_pointer,
    encode_label,
    encode_pointer,
)
from lakehead.lake.landing import Unit

UNITS = st.builds(Unit, st.text(st.characters(), min_size=1, max_size=300), st.integers(0, 2**63))


@pytest.mark.parametrize(
    ("unit", "name"),
    [
        (Unit("orders-2024_02.29"), "orders-2024_02.29.g0"),
        (Unit("orders", 12), "orders.g12"),
        (Unit("orders.g1", 2), "orders.g1.g2"),
        (Unit("Orders"), "~orders.g0"),
        (Unit("a/b c=d"), "a~02fb~020c~03dd.g0"),
        (Unit("_hidden"), "~05fhidden.g0"),
        (Unit("..", 1), "~02e..g1"),
        (Unit("é~"), "~0c3~0a9~07e.g0"),
    ],
)
def test_a_unit_is_spelled_so_that_a_person_can_read_it(unit: Unit, name: str) -> None:
    assert name_of(unit) == name
    assert spelled_in(name) == Spelled(key_of(unit), unit.generation)


@given(UNITS)
def test_no_file_system_glob_or_spark_reads_anything_into_a_name(unit: Unit) -> None:
    name = name_of(unit)

    assert re.fullmatch(r"[a-z0-9~-][a-z0-9~_.-]*", name)
    assert len(name) < 255
    assert spelled_in(name) == Spelled(key_of(unit), unit.generation)


@given(UNITS, UNITS)
def test_two_units_never_share_a_name_and_two_ids_never_a_key(one: Unit, other: Unit) -> None:
    assert (name_of(one) == name_of(other)) == (one == other)
    assert (key_of(one) == key_of(other)) == (one.id == other.id)


@given(st.text("aA~0_.f2eg1", min_size=1, max_size=6), st.text("aA~0_.f2eg1", min_size=1, max_size=6))
def test_ids_made_of_the_spelling_itself_never_share_a_key(one: str, other: str) -> None:
    assert (key_of(Unit(one)) == key_of(Unit(other))) == (one == other)


def test_very_long_ids_that_differ_only_at_their_end_have_names_of_their_own() -> None:
    names = {name_of(Unit("x" * 5_000 + end)) for end in "abc"} | {name_of(Unit("x" * 180)), name_of(Unit("x" * 181))}

    assert len(names) == 5
    assert max(map(len, names)) < 190


@pytest.mark.parametrize("unit", [Unit(""), Unit("a", -1)])
def test_a_unit_that_cannot_be_spelled_is_refused(unit: Unit) -> None:
    with pytest.raises(InvalidUnit):
        name_of(unit)


@pytest.mark.parametrize("name", ["orders", "_staging", ".g0", "_a.g0", "A.g0", "a.g01", "a.g-1", "a b.g0", "a.g0.crc"])
def test_what_is_not_the_name_of_a_unit_is_left_alone(name: str) -> None:
    assert spelled_in(name) is None


@pytest.mark.parametrize("root", ["", "/", "hdfs://", "file:///"])
def test_a_sink_needs_a_folder_of_its_own(root: str) -> None:
    with pytest.raises(Misconfigured):
        Places.below(root)


def test_the_stored_files_are_as_they_always_were() -> None:
    label = Label(Unit("a/ü", 3), "2024-02-29T00:00:00.000001Z")
    stored = rb'{"version": 1, "id": "a/\u00fc", "generation": 3, "watermark": "2024-02-29T00:00:00.000001Z"}'
    pointer = b'{"version": 1, "directory": "a.g0/3f2b"}'

    assert (encode_label(label), decode_label(stored, file="f")) == (stored, label)
    assert (encode_pointer("a.g0/3f2b"), decode_pointer(pointer, file="f")) == (pointer, "a.g0/3f2b")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"version": 2, "directory": "a.g0/x"}',
        b'{"version": 1, "directory": 7}',
        b'{"version": 1, "directory": "a.g0"}',
        b'{"version": 1, "directory": "a.g0/../../etc"}',
        b'{"version": 1, "directory": "../a.g0/x"}',
        b'{"version": 1, "directory": "a.g0/.."}',
    ],
)
def test_a_pointer_that_leads_elsewhere_is_refused(body: bytes) -> None:
    with pytest.raises(BrokenRecord, match="the-file"):
        decode_pointer(body, file="the-file")
    with pytest.raises(BrokenRecord, match="the-file"):
        decode_label(body, file="the-file")
