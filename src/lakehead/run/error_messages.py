"""One-sentence messages for any error that stops a table or a command."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from sqlalchemy.exc import DBAPIError

from lakehead.errors import DiskFull, LakeheadError
from lakehead.lake.ports import CONFIG_OPTION
from lakehead.run.file_errors import file_error_message
from lakehead.spark.reasons import SPARKS_ERRORS, reason_of
from lakehead.state.faults import first_line

MAX_LENGTH = 400


class CannotOpen(LakeheadError):
    """A catalog or one of its tables could not be opened. Nothing was changed."""


@contextmanager
def open_errors_as(what: str, advice: str) -> Iterator[None]:
    """Raise `CannotOpen` for any error that a library raises within the `with`. A `LakeheadError` passes through.

    Catches `Exception`, because every catalog client raises its own classes.
    """
    try:
        yield
    except LakeheadError:
        raise
    except Exception as error:
        if full := DiskFull.of(error, what):
            raise full from error
        raise CannotOpen(f"{what} cannot be opened: {short_message(error)}. {advice}") from error


def error_message(error: Exception, config: Path | None = None) -> str:
    """Return the message for an error that stops a table. Suggested commands get `--config` if it is given."""
    if isinstance(error, LakeheadError):
        return with_config(str(error), config)
    if isinstance(error, OSError) and (known := file_error_message(error)):
        return known
    if full := DiskFull.of(error, "the catalog or the table"):
        return str(full)
    if isinstance(error, SPARKS_ERRORS):
        return f"Spark failed: {reason_of(error)}."
    return f"Unexpected error: {type(error).__name__}: {short_message(error)}"


def with_config(text: str, config: Path | None) -> str:
    """Fill in the configuration file in the commands that a text suggests, if it is given."""
    return text if config is None else text.replace(CONFIG_OPTION, f"--config {quote(str(config))}")


def short_message(error: Exception) -> str:
    """Return the message of a library's error, on one line and cut to 400 characters."""
    text = first_line(error) if isinstance(error, DBAPIError) else str(error)
    return " ".join(text.split())[:MAX_LENGTH].rstrip(".") or type(error).__name__
