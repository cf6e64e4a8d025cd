"""Why Spark refused, from its exceptions of many lines, in words that fit into a sentence."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

LONGEST = 400
DEEPEST = 20

SPARKS_ERRORS = (PySparkException, Py4JError)
"""What PySpark raises when Spark refuses or is gone."""


def reason_of(error: BaseException) -> str:
    """What an exception says, and what its innermost cause says if that is more, on one line and not too long."""
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
    """The first line that says something, without Java's stack and the full stop."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first[:LONGEST].rstrip(".")
