"""A filter is one condition of one table's columns, or it is refused."""

import pyarrow as pa
import pytest

from lakehead.errors import Misconfigured
from lakehead.source.filters import parse_filter
from lakehead.source.port import Column, TableInfo

TABLE = TableInfo(
    schema="shop",
    name="orders",
    quoted='"shop"."orders"',
    columns=tuple(
        Column(name=name, declared="text", arrow=pa.string()) for name in ("id", "Status", "a b", "select", "it's")
    ),
)

KINDS = ["postgres", "mysql", "sqlite"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("status = 'open'", "\"Status\" = 'open'"),
        ("orders.id > 5", '"id" > 5'),
        ('"a b" IS NULL OR "select" LIKE \'x%\'', '"a b" IS NULL OR "select" LIKE \'x%\''),
        ("id IN (1, 2) AND NOT id BETWEEN 3 AND 4", '"id" IN (1, 2) AND NOT "id" BETWEEN 3 AND 4'),
        ("lower(status) <> coalesce(id, '')", 'LOWER("Status") <> COALESCE("id", \'\')'),
        ("(id = 1)", '("id" = 1)'),
        ("status = 'it''s; -- no /* comment */'", "\"Status\" = 'it''s; -- no /* comment */'"),
        ("status = '#1'", "\"Status\" = '#1'"),
    ],
)
def test_a_condition_of_columns_and_values_is_written_anew_with_every_name_quoted(text: str, written: str) -> None:
    assert parse_filter(text, TABLE.column_names, "postgres").sql == written


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text",
    [
        "id = 1; DROP TABLE orders",
        "id = 1;",
        "id = 1 -- and so on",
        "id = 1 /* and so on */",
        "-- nothing\nid = 1",
        "id /*! + 1 */ = 1",
        "id = (SELECT max(id) FROM orders)",
        "id IN (SELECT id FROM others)",
        "EXISTS (SELECT 1)",
        "id = 1 UNION SELECT 1",
        "id = 1 ORDER BY id",
        "id = 1 LIMIT 5",
        "id = 1 GROUP BY id",
        "id = 1 FOR UPDATE",
        "id = 1) OR (1 = 1",
        "pg_sleep(10) IS NULL",
        "sleep(10) = 0",
        "load_extension('x') IS NULL",
        "nextval('s') = 1",
        "id = @@version",
        "id = @a := 1",
        "id = ?",
        "id = :name",
        "id = $1",
        "id",
        "1",
        "'open'",
        "",
        "   ",
        "id = 1,",
        "other.id = 1",
        "shop.orders.id = 1",
        "nothing = 1",
        "id = CASE WHEN 1 = 1 THEN 1 END",
        "count(*) > 1",
        "row_number() OVER () = 1",
        "id = 'unclosed",
        "*",
        "id = current_user",
        "id = now()",
    ],
)
def test_anything_else_is_refused_with_a_sentence(text: str, kind: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        parse_filter(text, TABLE.column_names, kind)
    assert str(refused.value).endswith(".")


def test_a_hash_begins_a_comment_in_mysql() -> None:
    with pytest.raises(Misconfigured, match="comment"):
        parse_filter("id = 1 # rest", TABLE.column_names, "mysql")


def test_a_backslash_in_a_text_cannot_end_it() -> None:
    for kind, text in (("mysql", r"status = 'a\' OR 1=1 -- '"), ("mysql", "status = 'a\\\\'")):
        written = parse_filter(text, TABLE.column_names, kind).sql
        assert written.startswith("`Status` = '")
        assert parse_filter(written, TABLE.column_names, kind).sql == written


def test_a_deep_filter_is_refused_and_not_a_crash() -> None:
    with pytest.raises(Misconfigured):
        parse_filter("(" * 4_000 + "id = 1" + ")" * 4_000, TABLE.column_names, "postgres")


def test_a_long_filter_is_refused() -> None:
    with pytest.raises(Misconfigured, match="longer than"):
        parse_filter("id = 1 OR " * 2_000 + "id = 1", TABLE.column_names, "postgres")


@pytest.mark.parametrize("text", ['"id" < 5', 'status = "open" AND "STATUS" <> "x"'])
@pytest.mark.parametrize("kind", ["mysql", "spark"])
def test_a_column_in_quotes_that_make_a_text_is_refused_instead_of_keeping_every_row(kind: str, text: str) -> None:
    with pytest.raises(Misconfigured, match=r"is a string there, but a column has this name: write `(id|Status)` or '"):
        parse_filter(text, TABLE.column_names, kind)


def test_any_other_text_in_double_quotes_is_a_text_in_mysql() -> None:
    assert parse_filter('status = "open"', TABLE.column_names, "mysql").sql == "`Status` = 'open'"
