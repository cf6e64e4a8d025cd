"""A filter of the config, parsed into one condition of one table's columns and written anew; nothing else gets in."""

from collections.abc import Mapping

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lakehead.errors import Misconfigured
from lakehead.source.port import Filter, TableInfo

_DIALECTS: Mapping[str, str] = {
    "postgresql": "postgres",
    "mysql": "mysql",
    "sqlite": "sqlite",
    "jdbc": "",
    "spark": "spark",
}

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
_LENGTH = 10_000


def parse_filter(text: str, table: TableInfo, kind: str, *, qualifier: str | None = None) -> Filter:
    """The filter that a text means, in the SQL of a kind of source; raises `Misconfigured` for anything but one
    condition made of this table's columns, literals, comparisons and a few functions that only compute. With a
    qualifier, every column is written with it."""
    dialect = _DIALECTS[kind]
    condition = _only_condition(_statement(text, dialect), text)
    _check_texts(text, dialect, table)
    for node in condition.walk():
        if node.comments:
            raise _refused(text, "it has a comment in it")
        if not isinstance(node, _ALLOWED) or (isinstance(node, exp.In) and not node.expressions):
            raise _refused(text, f"{node.sql(dialect=dialect)!r} is more than a comparison of columns and values")
    if not isinstance(condition.unnest(), _CONDITIONS):
        raise _refused(text, "it is no condition")
    for column in list(condition.find_all(exp.Column)):
        _name(column, table, text, qualifier)
    return Filter(condition.sql(dialect=dialect, comments=False))


def _statement(text: str, dialect: str) -> exp.Expr:
    if len(text) > _LENGTH:
        raise _refused(text, f"it is longer than {_LENGTH} characters")
    try:
        tokens = sqlglot.tokenize(text, read=dialect)
        parsed = [statement for statement in sqlglot.parse(f"SELECT 1 WHERE {text}", read=dialect) if statement]
    except (SqlglotError, RecursionError):
        raise _refused(text, "it cannot be read") from None
    if any(token.comments for token in tokens):
        raise _refused(text, "it has a comment in it")
    if not tokens or tokens[-1].text == ",":
        raise _refused(text, "it cannot be read")
    if len(parsed) != 1 or any(token.token_type.name == "SEMICOLON" for token in tokens):
        raise _refused(text, "it is more than one statement")
    return parsed[0]


def _check_texts(text: str, dialect: str, table: TableInfo) -> None:
    """Raise for a column in double quotes where these make a text: such a condition compares no column at all."""
    columns = {column.name.lower(): column.name for column in table.columns}
    for token in sqlglot.tokenize(text, read=dialect):
        meant = columns.get(token.text.lower())
        if token.token_type.name == "STRING" and text[token.start] == '"' and meant is not None:
            raise _refused(
                text, f"\"{token.text}\" is a text there, and a column has this name: write `{meant}` or '{token.text}'"
            )


def _only_condition(statement: exp.Expr, text: str) -> exp.Expr:
    """What stands behind WHERE, if that is all there is: a UNION, an ORDER BY or a lock may hide behind it."""
    where = statement.args.get("where")
    others = {name for name, value in statement.args.items() if value} - {"where", "expressions", "kind"}
    if not isinstance(statement, exp.Select) or where is None or others or len(statement.expressions) != 1:
        raise _refused(text, "it is more than a condition")
    condition: exp.Expr = where.this
    return condition


def _name(column: exp.Column, table: TableInfo, text: str, qualifier: str | None) -> None:
    """Put the catalogue's own spelling, quoted, for a column that the filter names."""
    if column.args.get("db") or column.args.get("catalog") or (column.table and column.table != table.name):
        raise _refused(text, f"{column.sql()!r} is not a column of {table}")
    if not isinstance(column.this, exp.Identifier):
        raise _refused(text, f"{column.sql()!r} is no column")
    known = table.column(column.name)
    if column.this.quoted and known.name != column.name:
        raise Misconfigured(f"The table {table} has no column {column.name!r}. It has {known.name!r}.")
    column.set("table", exp.to_identifier(qualifier) if qualifier else None)
    column.set("this", exp.to_identifier(known.name, quoted=True))


def _refused(text: str, why: str) -> Misconfigured:
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    return Misconfigured(
        f"The filter {shown!r} is refused: {why}. Write one condition of this table's columns, such as "
        "status = 'open' AND total > 10."
    )
