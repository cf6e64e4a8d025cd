"""Which objects a route takes, what its globs mean, and that a move target in its reach is noticed."""

import fnmatch
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.consume.globs import MAX_ALTERNATIVES, compile_glob
from lakehead.consume.routes import Route, route_into, route_of
from lakehead.errors import Misconfigured


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*.json", ["a.json", ".json"], ["a.jsonl", "in/a.json", "a.JSON", "ajson"]),
        ("in/*.json", ["in/a.json", "in/.json"], ["in/x/a.json", "a.json", "in/a.csv", "xin/a.json"]),
        ("in/**", ["in/a", "in/a/b/c", "in/a/"], ["in", "in/", "inn/a"]),
        ("**/a.json", ["a.json", "x/a.json", "x/y/a.json"], ["xa.json", "x/ya.json", "a.json/x"]),
        ("in/**/a", ["in/a", "in/x/a", "in/x/y/a"], ["in/xa", "ina", "in/a/b"]),
        ("**", ["a", "a/b"], [""]),
        ("**/**/a", ["a", "x/a", "x/y/z/a"], ["b"]),
        ("day=*/*/x", ["day=1/a/x", "day=/a/x"], ["day=1/x", "day=1/a/b/x"]),
        ("a?c", ["abc", "a.c", "aüc"], ["ac", "a/c", "abbc"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "Ax", "x"]),
        ("[!a-c]x", ["dx", "-x"], ["ax", "/x"]),
        ("[^ab]", ["c"], ["a", "/"]),
        ("[]x]", ["]", "x"], ["a"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[*][?][[][{]", ["*?[{"], ["a?[{"]),
        ("*.{json,csv}", ["a.json", "a.csv"], ["a.", "a.jsoncsv", "a.{json,csv}"]),
        ("{a,b/**}/c", ["a/c", "b/x/c", "b/c"], ["b", "c"]),
        ("a{,b}{1,2}", ["a1", "ab2"], ["a", "ab"]),
        ("a.b+c(d)$", ["a.b+c(d)$"], ["aXb+c(d)$"]),
        ("s3://b/in/*", ["s3://b/in/x"], ["s3://b/in/x/y", "s3://bb/in/x"]),
    ],
)
def test_globs_are_as_people_know_them(pattern: str, matching: list[str], other: list[str]) -> None:
    glob = compile_glob(pattern)

    assert [text for text in matching if not glob.matches(text)] == []
    assert [text for text in other if glob.matches(text)] == []


@pytest.mark.parametrize(
    "pattern",
    ["", "[a", "[]", "[!]", "[c-a]", "a**", "**b/c", "***", "{a", "a}", "{a,{b,c}}", "{a,b}" * 7, "[a/b]"],
)
def test_malformed_globs_are_refused(pattern: str) -> None:
    with pytest.raises(Misconfigured):
        compile_glob(pattern)


def test_braces_stand_for_a_bounded_number_of_patterns() -> None:
    assert len(compile_glob("{a,b}" * 6).alternatives) == MAX_ALTERNATIVES


def test_no_key_makes_a_glob_slow() -> None:
    assert not compile_glob("**/" * 8 + "*a" * 12 + "b").matches("a/" * 40 + "a" * 900)


PIECES = st.lists(st.sampled_from(["a", "b", ".", "*", "?", "[ab]", "[!a]"]), min_size=1, max_size=6).map("".join)
NAMES = st.text(alphabet="ab.c", max_size=8)


@given(PIECES.filter(lambda pattern: "**" not in pattern), NAMES)
def test_within_a_segment_a_glob_is_as_in_fnmatch(pattern: str, name: str) -> None:
    assert compile_glob(pattern).matches(name) == fnmatch.fnmatchcase(name, pattern)


PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "**", "a*", "?", "{a,b}"]), min_size=1, max_size=4).map("/".join)
PATHS = st.lists(st.sampled_from(["a", "b", "ab", "c"]), min_size=1, max_size=5).map("/".join)


@given(PATTERNS, PATHS, st.integers(0, 9))
def test_what_may_match_below_a_beginning_is_never_missed(pattern: str, path: str, cut: int) -> None:
    glob = compile_glob(pattern)

    if glob.matches(path):
        assert glob.may_match_below(path[:cut])
    elif len(path) > cut:
        assert not glob.matches_all_below(path[:cut])


def takes(uri: str, **filters: tuple[str, ...]) -> bool:
    return Route(table="shop.orders", **filters).takes(uri)  # type: ignore[arg-type]


def test_a_route_without_filters_takes_everything() -> None:
    assert takes("s3://b/k")
    assert takes("file:///a%20b")


def test_prefixes_are_text_in_any_spelling() -> None:
    assert takes("s3://b/in/x", prefixes=("gs://b", "s3a://b/in/"))
    assert takes("s3://b/input", prefixes=("s3://b/in",))
    assert not takes("s3://b/input", prefixes=("s3://b/in/",))
    assert not takes("s3://bb/x", prefixes=("s3://b",))
    assert takes("file:///data%20in/x", prefixes=("/data in/",))


def test_globs_are_for_the_name_the_key_or_the_whole_uri() -> None:
    assert takes("s3://b/in/x.json", include=("*.json",))
    assert takes("s3://b/x.json", include=("*.json",))
    assert takes("s3://b/in/x.json", include=("in/*.json",))
    assert not takes("s3://b/a/in/x.json", include=("in/*.json",))
    assert takes("s3://b/in/x.json", include=("s3://b/**/*.json",))
    assert not takes("s3://c/in/x.json", include=("s3://b/**/*.json",))
    assert takes("file:///data/a%20b%25.json", include=("data/a b%.json",))
    assert takes("file:///data/a%20b.json", include=("file:///data/a b.json",))


def test_what_is_excluded_is_not_taken_though_it_is_included() -> None:
    assert not takes("s3://b/in/_SUCCESS", include=("in/**",), exclude=("_*", "*.tmp"))
    assert takes("s3://b/in/a", include=("in/**",), exclude=("_*", "*.tmp"))


def test_the_first_route_that_takes_an_object_wins() -> None:
    orders = Route(table="shop.orders", prefixes=("s3://b/orders/",))
    rest = Route(table="shop.rest", prefixes=("s3://b/",), format="ndjson")

    assert route_of("s3://b/orders/1", [orders, rest]) is orders
    assert route_of("s3://b/orders/1", [rest, orders]) is rest
    assert route_of("s3://b/other", [orders, rest]) is rest
    assert route_of("s3://c/other", [orders, rest]) is None


@pytest.mark.parametrize(
    "filters",
    [
        {"prefixes": ("nonsense",)},
        {"include": ("[a",)},
        {"exclude": ("",)},
        {"exclude": ("in/",)},
        {"include": ("/a/*",)},
        {"include": ("s3a://b/*",)},
    ],
)
def test_a_route_that_cannot_be_is_refused_when_it_is_made(filters: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(Misconfigured):
        takes("s3://b/k", **filters)


def test_routes_are_values_and_can_be_pickled() -> None:
    route = Route(table="t", include=("*.{a,b}", "[!x]/**"))

    assert route == Route(table="t", include=("*.{a,b}", "[!x]/**"))
    assert pickle.loads(pickle.dumps(route)).takes("s3://b/y/z")  # noqa: S301 - it was made here


@pytest.mark.parametrize(
    ("target", "filters", "inside"),
    [
        ("s3://b/done/", {}, True),
        ("s3://b/in/done", {"prefixes": ("s3://b/in/",)}, True),
        ("s3a://b/in/done", {"prefixes": ("s3://b/in/",)}, True),
        ("s3://b/done", {"prefixes": ("s3://b/in/",)}, False),
        ("s3://b/input/", {"prefixes": ("s3://b/in/",)}, False),
        ("s3://b/input/", {"prefixes": ("s3://b/in",)}, True),
        ("s3://b", {"prefixes": ("s3://b/in/",)}, True),
        ("s3://b/in", {"prefixes": ("s3://b/in/",)}, True),
        ("s3://c/", {"prefixes": ("s3://b/in/",)}, False),
        ("s3://b/done", {"include": ("*.json",)}, True),
        ("s3://b/done", {"include": ("in/*.json",)}, False),
        ("s3://b/in/done", {"include": ("in/*.json",)}, False),
        ("s3://b/in", {"include": ("in/*.json",)}, True),
        ("s3://b/in/done", {"include": ("in/**/*.json",)}, True),
        ("s3://b/in/done", {"include": ("in/**",), "exclude": ("in/done/**",)}, False),
        ("s3://b/in/done/x", {"include": ("in/**",), "exclude": ("*/done/**",)}, False),
        ("s3://b/in/done", {"include": ("in/**",), "exclude": ("in/done/*.json",)}, True),
        ("s3://b", {"prefixes": ("s3://b/in/",), "exclude": ("in/**",)}, False),
        ("s3://b", {"prefixes": ("s3://b/in/",), "include": ("out/**",)}, False),
        ("s3://b/in/done", {"include": ("s3://b/in/**",)}, True),
        ("s3://c/in/done", {"include": ("s3://b/in/**",)}, False),
        ("/data in/done", {"prefixes": ("file:///data%20in/",)}, True),
        ("/data/done", {"include": ("data/in/*",)}, False),
    ],
)
def test_a_move_target_from_which_objects_would_be_consumed_again_is_noticed(
    target: str,
    filters: dict[str, tuple[str, ...]],
    inside: bool,  # noqa: FBT001
) -> None:
    route = Route(table="shop.orders", **filters)  # type: ignore[arg-type]

    assert route_into(target, [route]) == (route if inside else None)


def test_a_target_that_is_no_folder_of_a_store_is_refused() -> None:
    with pytest.raises(Misconfigured):
        route_into("done", [Route(table="t")])
