"""Names in Spark's SQL."""

import re

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def quoted(*words: str) -> str:
    """A column's name, or a table's with all that stands before it."""
    return ".".join(f"`{word.replace('`', '``')}`" for word in words)


def readable(*words: str) -> str:
    """The same for people: only what Spark does not read without backticks has them."""
    return ".".join(word if _PLAIN.fullmatch(word) else quoted(word) for word in words)


def text(value: str) -> str:
    """A value as SQL's text."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def argument(table: str) -> str:
    """The table `namespace.table` as an argument of a procedure, which parses the text that it is given."""
    return text(readable(*table.split(".")))
