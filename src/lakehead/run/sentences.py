"""What a person reads of a failure: one sentence, whatever was raised."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from sqlalchemy.exc import DBAPIError

from lakehead.errors import DiskFull, LakeheadError
from lakehead.lake.ports import CONFIG_OPTION
from lakehead.run.file_errors import file_sentence
from lakehead.spark.reasons import SPARKS_ERRORS, reason_of
from lakehead.state.faults import first_line

LONGEST = 400


class CannotOpen(LakeheadError):
    """A catalog, or a table in one, could not be opened: its message says which, and why. Nothing was changed."""


@contextmanager
def opening(what: str, advice: str) -> Iterator[None]:
    """Raise `CannotOpen` for whatever a library raises within the `with`; errors of ours stay as they are.

    What can go wrong with a catalog is as various as catalogs, so no list of errors would be whole.
    """
    try:
        yield
    except LakeheadError:
        raise
    except Exception as error:
        if full := DiskFull.of(error, what):
            raise full from error
        raise CannotOpen(f"{what} cannot be opened: {brief(error)}. {advice}") from error


def sentence_of(error: Exception, config: Path | None = None) -> str:
    """The sentence for an error that stops a table. A command that it suggests names the configuration."""
    if isinstance(error, LakeheadError):
        return with_config(str(error), config)
    if isinstance(error, OSError) and (known := file_sentence(error)):
        return known
    if full := DiskFull.of(error, "the catalog or the table"):
        return str(full)
    if isinstance(error, SPARKS_ERRORS):
        return f"Spark refused: {reason_of(error)}."
    return f"An error that nobody expected: {type(error).__name__}: {brief(error)}"


def with_config(text: str, config: Path | None) -> str:
    """A text whose suggested commands name the configuration, where it is known."""
    return text if config is None else text.replace(CONFIG_OPTION, f"--config {quote(str(config))}")


def brief(error: Exception) -> str:
    """What a library's error says, on one line and not too long."""
    said = first_line(error) if isinstance(error, DBAPIError) else str(error)
    return " ".join(said.split())[:LONGEST].rstrip(".") or type(error).__name__
