"""Shortens Spark's exceptions to one line, for messages."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

LONGEST = 400
DEEPEST = 20

SPARKS_ERRORS = (PySparkException, Py4JError)
"""What PySpark raises if Spark fails or has ended."""


def reason_of(error: BaseException) -> str:
    """An exception's message, and that of its innermost cause if it adds something, on one line and shortened."""
    if not isinstance(error, Py4JJavaError):
        return _line(str(error)) or type(error).__name__
    said = [_line(str(each.toString())) for each in islice(_causes(error.java_exception), DEEPEST)]
    outer, inner = said[0], said[-1]
    return outer if inner in outer else f"{outer} ({inner})"


def _causes(throwable: Any) -> Iterator[Any]:
    while throwable is not None:
        yield throwable
        throwable = throwable.getCause()


def _line(text: str) -> str:
    """The first non-empty line, without Java's stack trace and the full stop."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first[:LONGEST].rstrip(".")
