"""Why Spark refused, in words that fit into a sentence."""

from pyspark.errors import PySparkRuntimeError, PySparkValueError

from lakehead.spark.reasons import LONGEST, SPARKS_ERRORS, reason_of


def test_an_exception_of_many_lines_becomes_its_first_that_says_something() -> None:
    assert reason_of(RuntimeError("\n\n  No suitable driver.\n\tat java.base/x\n")) == "No suitable driver"


def test_an_exception_without_words_is_named() -> None:
    assert reason_of(EOFError()) == "EOFError"


def test_a_long_reason_is_cut() -> None:
    assert len(reason_of(RuntimeError("x" * 10_000))) == LONGEST


def test_what_pyspark_raises_is_known_as_sparks() -> None:
    assert issubclass(PySparkRuntimeError, SPARKS_ERRORS)
    assert issubclass(PySparkValueError, SPARKS_ERRORS)
