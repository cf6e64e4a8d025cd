"""What drivers raise, in our words: one sentence that says what to do, and never the password."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.source.errors import SourceFailed
from lakehead.source.settings import SourceSettings

_NUMBER = re.compile(r"ERROR (\d{4}) \(")
_DENIED = ("password authentication failed", "no pg_hba.conf entry", "no password supplied", "not permitted to log in")
_AWAY = (
    "connection refused",
    "could not translate host name",
    "name or service not known",
    "timeout expired",
    "timed out",
    "server closed the connection",
    "could not connect",
    "can't connect",
    "network is unreachable",
    "no route to host",
    "connection reset",
    "lost connection",
    "starting up",
    "shutting down",
    "too many connections",
    "too many clients",
    "remaining connection slots",
    "bytes remaining on stream",
    "broken pipe",
    "terminating connection",
    "database is locked",
)
_UNTRUSTED = ("certificate", "ssl is required", "requires secure connection")
_DENIED_NUMBERS = {1044, 1045, 1698}
_RIGHTS_NUMBERS = {1142, 1143, 1227, 1370}
_AWAY_NUMBERS = {1040, 1053, 1077, 1152, 1159, 1161, 1205, 1213, 1927, *range(2000, 2030)}


@contextmanager
def told(settings: SourceSettings) -> Iterator[None]:
    """Turn what a driver raises into our errors. Nothing of the driver's own error is kept but its first line."""
    ours: LakeheadError
    try:
        yield
        return
    except LakeheadError:
        raise
    except ImportError as error:
        ours = missing_driver(settings, error)
    except Exception as error:  # noqa: BLE001 - drivers share no class, and each is told apart by its words
        ours = sentence(error, settings)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # how a driver written in Rust ends what it did not foresee
            raise
        ours = sentence(error, settings)
    # Raised outside of the handler: the driver's error, which may hold the URL, is in no chain.
    raise ours


def missing_driver(settings: SourceSettings, error: ImportError) -> Misconfigured:
    """The driver is not installed where it is needed."""
    return Misconfigured(
        f"The driver for {settings} is missing ({error.name}). Install lakehead[{settings.kind}], on the workers too."
    )


def sentence(error: BaseException, settings: SourceSettings) -> LakeheadError:
    """What an error of a driver means."""
    state, number, said = _state(error), _number(error), _gist(error, settings)
    low = str(error).lower()
    if (state or "").startswith("28") or number in _DENIED_NUMBERS or any(sign in low for sign in _DENIED):
        return Misconfigured(
            f"{settings} refused user {settings.user!r} or the password. Check both.", fault="password refused"
        )
    if settings.tls is not None and any(sign in low for sign in _UNTRUSTED):
        return Misconfigured(
            f"{settings} is not trusted ({said}). Check that it has TLS, that its certificate is for this host, and "
            "that tls.ca has signed it.",
            fault="not trusted",
        )
    if state == "3D000" or number == 1049 or re.search(r'database ".*" does not exist', low):
        return Misconfigured(
            f"{settings.host} has no database {settings.database!r}. Check the name.", fault="no database"
        )
    if state == "42501" or number in _RIGHTS_NUMBERS:
        return Misconfigured(
            f"User {settings.user!r} may not read what it should of {settings} ({said}). Grant it.",
            fault="no right to read",
        )
    if "unable to open database file" in low or "failed to open" in low:
        return Misconfigured(
            f"There is no file {settings.database!r} that can be read. Check the path and its rights.", fault="no file"
        )
    if "file is not a database" in low:
        return Misconfigured(f"The file {settings.database!r} is not a SQLite database.", fault="no SQLite database")
    if "invalid snapshot identifier" in low or ("snapshot" in low and "does not exist" in low):
        return Unavailable(
            f"The snapshot in which {settings} was being read is gone. Read it again from the start.",
            fault="snapshot gone",
        )
    if (
        (state or "")[:2] in ("08", "53", "57", "58", "40")
        or number in _AWAY_NUMBERS
        or any(sign in low for sign in _AWAY)
    ):
        return Unavailable(
            f"{settings} cannot be reached ({said}). Check host and port, and that it is running.", fault="not reached"
        )
    return SourceFailed(f"{settings} refused a statement ({said}).")


def _state(error: BaseException) -> str | None:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else None


def _number(error: BaseException) -> int | None:
    """The server's number of a MySQL error: PyMySQL's first argument, or in ConnectorX's text."""
    if error.args and isinstance(error.args[0], int) and not isinstance(error, OSError):
        return error.args[0]
    found = _NUMBER.search(str(error))
    return int(found.group(1)) if found else None


def _gist(error: BaseException, settings: SourceSettings) -> str:
    told = error.args[1] if len(error.args) > 1 and isinstance(error.args[0], int) else error
    lines = [line.strip() for line in str(told).splitlines() if line.strip()]
    return settings.scrubbed(lines[0] if lines else type(error).__name__).rstrip(".")
