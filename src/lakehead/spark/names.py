"""Quoting of names and texts for Spark SQL."""

import re

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def quoted(*words: str) -> str:
    """A column's name, or a table's with its catalog and namespace, in backticks."""
    return ".".join(f"`{word.replace('`', '``')}`" for word in words)


def readable(*words: str) -> str:
    """The same for messages: with backticks only where Spark needs them."""
    return ".".join(word if _PLAIN.fullmatch(word) else quoted(word) for word in words)


def text(value: str) -> str:
    """A value as a SQL string literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def argument(table: str) -> str:
    """The table `namespace.table` as a string literal for a procedure, which parses it as a name."""
    return text(readable(*table.split(".")))
