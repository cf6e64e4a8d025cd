"""Parses a filter of the configuration into one condition over one table's columns, and writes it again as SQL."""

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lakehead.errors import Misconfigured
from lakehead.source.port import ColumnNames, Filter

_ALLOWED: tuple[type[exp.Expression], ...] = (
    *(exp.And, exp.Or, exp.Not, exp.Paren),
    *(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.Escape),
    *(exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Neg),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod),
    *(exp.Cast, exp.DataType, exp.DataTypeParam),
    *(exp.Lower, exp.Upper, exp.Coalesce, exp.Abs, exp.Length, exp.Trim),
)
_CONDITIONS = (
    *(exp.And, exp.Or, exp.Not),
    *(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.Escape, exp.Boolean),
)
_MAX_LENGTH = 10_000


def parse_filter(text: str, columns: ColumnNames, dialect: str, *, qualifier: str | None = None) -> Filter:
    """Parse a filter in a dialect of sqlglot, such as `Source.sql_dialect`. Columns are written with the qualifier.

    Raises `Misconfigured` for anything but one condition of this table's columns, literals, comparisons and a few pure
    functions.
    """
    condition = _only_condition(_statement(text, dialect), text)
    _check_texts(text, dialect, columns)
    for node in condition.walk():
        if node.comments:
            raise _refused(text, "it contains a comment")
        if not isinstance(node, _ALLOWED) or (isinstance(node, exp.In) and not node.expressions):
            raise _refused(text, f"{node.sql(dialect=dialect)!r} is more than a comparison of columns and values")
    if not isinstance(condition.unnest(), _CONDITIONS):
        raise _refused(text, "it is not a condition")
    for column in list(condition.find_all(exp.Column)):
        _name(column, columns, text, qualifier)
    return Filter(condition.sql(dialect=dialect, comments=False))


def _statement(text: str, dialect: str) -> exp.Expr:
    if len(text) > _MAX_LENGTH:
        raise _refused(text, f"it is longer than {_MAX_LENGTH} characters")
    try:
        tokens = sqlglot.tokenize(text, read=dialect)
        parsed = [statement for statement in sqlglot.parse(f"SELECT 1 WHERE {text}", read=dialect) if statement]
    except (SqlglotError, RecursionError):
        raise _refused(text, "it cannot be parsed") from None
    if any(token.comments for token in tokens):
        raise _refused(text, "it contains a comment")
    if not tokens or tokens[-1].text == ",":
        raise _refused(text, "it cannot be parsed")
    if len(parsed) != 1 or any(token.token_type.name == "SEMICOLON" for token in tokens):
        raise _refused(text, "it is more than one statement")
    return parsed[0]


def _check_texts(text: str, dialect: str, columns: ColumnNames) -> None:
    """Raise for a column name in double quotes where these make a string, so that no column would be compared."""
    by_lower_case = {name.lower(): name for name in columns.names}
    for token in sqlglot.tokenize(text, read=dialect):
        meant = by_lower_case.get(token.text.lower())
        if token.token_type.name == "STRING" and text[token.start] == '"' and meant is not None:
            raise _refused(
                text,
                f"\"{token.text}\" is a string there, but a column has this name: write `{meant}` or '{token.text}'",
            )


def _only_condition(statement: exp.Expr, text: str) -> exp.Expr:
    """Return the WHERE condition, if there is nothing else: a UNION, ORDER BY or lock could follow it."""
    where = statement.args.get("where")
    others = {name for name, value in statement.args.items() if value} - {"where", "expressions", "kind"}
    if not isinstance(statement, exp.Select) or where is None or others or len(statement.expressions) != 1:
        raise _refused(text, "it is more than a condition")
    condition: exp.Expr = where.this
    return condition


def _name(column: exp.Column, columns: ColumnNames, text: str, qualifier: str | None) -> None:
    """Replace a column of the filter by its exact, quoted name in the catalog."""
    if column.args.get("db") or column.args.get("catalog") or (column.table and column.table != columns.qualifier):
        raise _refused(text, f"{column.sql()!r} is not a column of {columns.table}")
    if not isinstance(column.this, exp.Identifier):
        raise _refused(text, f"{column.sql()!r} is not a column")
    known = columns.find(column.name)
    if column.this.quoted and known != column.name:
        raise Misconfigured(f"The table {columns.table} has no column {column.name!r}. It has {known!r}.")
    column.set("table", exp.to_identifier(qualifier) if qualifier else None)
    column.set("this", exp.to_identifier(known, quoted=True))


def _refused(text: str, why: str) -> Misconfigured:
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    return Misconfigured(
        f"The filter {shown!r} is refused: {why}. Write one condition over this table's columns, such as "
        "status = 'open' AND total > 10."
    )
