"""Names as Spark reads them, and as people do."""

import pytest

from lakehead.spark.names import argument, readable, text


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("sales.orders", "'sales.orders'"),
        ("sales.order-items", "'sales.`order-items`'"),
        ("sales.it's", r"'sales.`it\'s`'"),
        ("sales.tick`s", "'sales.`tick``s`'"),
        ("sales.1st", "'sales.`1st`'"),
        ("sales.sélect", "'sales.`sélect`'"),
        ("sales.back\\slash", r"'sales.`back\\slash`'"),
    ],
)
def test_a_procedure_is_given_a_name_that_it_can_parse(table: str, said: str) -> None:
    assert argument(table) == said


def test_only_what_must_be_quoted_is() -> None:
    assert readable("lake", "my sales", "orders") == "lake.`my sales`.orders"


def test_a_text_keeps_its_quotes_and_backslashes() -> None:
    assert text("a'b\\c") == r"'a\'b\\c'"
