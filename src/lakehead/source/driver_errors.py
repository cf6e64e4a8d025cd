"""Translates errors of database drivers to our own: what to do in one sentence, and never the password."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.source.dialect import DriverProblem
from lakehead.source.dialects import DIALECTS
from lakehead.source.errors import SourceFailed
from lakehead.source.source_settings import SourceSettings

_NETWORK_TEXTS = (
    "connection refused",
    "name or service not known",
    "timeout expired",
    "timed out",
    "could not connect",
    "network is unreachable",
    "no route to host",
    "connection reset",
    "too many connections",
    "broken pipe",
)
"""Messages of a server that cannot be reached, whatever the driver."""


@contextmanager
def translate_errors(settings: SourceSettings) -> Iterator[None]:
    """Raise a `LakeheadError` for whatever a driver raises within the `with`. It keeps only the driver's first line."""
    translated: LakeheadError
    try:
        yield
        return
    except LakeheadError:
        raise
    except ImportError as error:
        translated = missing_driver(settings, error)
    except Exception as error:  # noqa: BLE001 - drivers have no common base class
        translated = translate_error(error, settings)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # raised by drivers written in Rust
            raise
        translated = translate_error(error, settings)
    # Raised outside of the handler: the driver's error, which may contain the URL, is not chained.
    raise translated


def missing_driver(settings: SourceSettings, error: ImportError) -> Misconfigured:
    """Return the error for a driver that is not installed."""
    return Misconfigured(
        f"The driver for {settings} is missing ({error.name}). Install lakehead[{settings.dialect}], on the workers "
        "too."
    )


def translate_error(error: BaseException, settings: SourceSettings) -> LakeheadError:
    """Return our own error for one of a driver."""
    message = _first_line(error, settings)
    match problem_of(error, settings):
        case DriverProblem.ACCESS_DENIED:
            return Misconfigured(
                f"{settings} refused user {settings.user!r} or the password. Check both.", fault="password refused"
            )
        case DriverProblem.UNTRUSTED:
            return Misconfigured(
                f"{settings} is not trusted ({message}). Check that it has TLS, that its certificate is valid for this "
                "host, and that tls.ca has signed it.",
                fault="not trusted",
            )
        case DriverProblem.NO_DATABASE:
            return Misconfigured(
                f"{settings.host} has no database {settings.database!r}. Check the name.", fault="no database"
            )
        case DriverProblem.NO_PRIVILEGE:
            return Misconfigured(
                f"User {settings.user!r} may not read the table in {settings} ({message}). Grant the privilege.",
                fault="no right to read",
            )
        case DriverProblem.NO_FILE:
            return Misconfigured(
                f"There is no readable file {settings.database!r}. Check the path and its permissions.", fault="no file"
            )
        case DriverProblem.NOT_A_DATABASE:
            return Misconfigured(
                f"The file {settings.database!r} is not a SQLite database. Check the path.", fault="no SQLite database"
            )
        case DriverProblem.SNAPSHOT_GONE:
            return Unavailable(
                f"The snapshot in which {settings} was being read has ended. Read it again from the start.",
                fault="snapshot gone",
            )
        case DriverProblem.UNREACHABLE:
            return Unavailable(
                f"{settings} cannot be reached ({message}). Check host and port, and that it is running.",
                fault="not reached",
            )
        case None:
            return SourceFailed(f"{settings} refused a statement ({message}).")


def problem_of(error: BaseException, settings: SourceSettings) -> DriverProblem | None:
    """Return what an error of a driver means, by its code or its text; None if it is unknown."""
    dialect, text = DIALECTS.named(settings.dialect), str(error).lower()
    by_code = dialect.problem_of(error)
    for problem in DriverProblem:
        if problem is DriverProblem.UNTRUSTED and settings.tls is None:
            continue
        common = _NETWORK_TEXTS if problem is DriverProblem.UNREACHABLE else ()
        texts = (*dialect.problem_texts.get(problem, ()), *common)
        if problem is by_code or any(re.search(pattern, text, re.DOTALL) for pattern in texts):
            return problem
    return None


def _first_line(error: BaseException, settings: SourceSettings) -> str:
    message = error.args[1] if len(error.args) > 1 and isinstance(error.args[0], int) else error
    lines = [line.strip() for line in str(message).splitlines() if line.strip()]
    return settings.redact(lines[0] if lines else type(error).__name__).rstrip(".")
