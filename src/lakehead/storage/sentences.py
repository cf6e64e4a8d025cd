"""What obstore raises, in our words: one sentence, and an error that says what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.storage.writes import Refused

_STATUS = re.compile(r"status code: (\d{3})")
_NO_BUCKET = (
    "NoSuchBucket",
    "ContainerNotFound",
    "The specified bucket does not exist",
    "The specified container does not exist",
)


class PastTheEnd(Exception):
    """A range starts behind the last byte of the object."""


class Sentences:
    """Errors of one store, which they name."""

    def __init__(self, store: str) -> None:
        self._store = store

    @contextmanager
    def __call__(self, *, writing: str | None = None) -> Iterator[None]:
        """Turn what obstore raises into our errors; `Refused` and `OutcomeUnknown` only where a key is written.

        A missing object stays `FileNotFoundError`, and a range behind the end is `PastTheEnd`: both for the caller.
        """
        try:
            yield
        except FileNotFoundError as error:
            if _names_no_bucket(error):
                raise self.no_bucket() from error
            raise
        except (AlreadyExistsError, PreconditionError) as error:
            raise (Refused if writing else Unavailable)(_gist(error)) from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise self._denied(error) from error
        except BaseError as error:
            status = int(found.group(1)) if (found := _STATUS.search(str(error))) else 0
            raise self._known(error, status) or self._unclear(error, writing) from error

    def no_bucket(self) -> Misconfigured:
        """The bucket is not there, as far as anybody can tell."""
        return Misconfigured(
            f"The bucket of {self._store} does not exist: create it, or correct the URL or the endpoint."
        )

    def _known(self, error: BaseError, status: int) -> Exception | None:
        """What obstore leaves to its text, where that is a definite answer."""
        text = str(error)
        if "performing token request" in text:  # so the request itself was never sent
            if status in (400, 401, 403, 404):
                return Misconfigured(f"{self._store} needs credentials: none were given, and this machine has no role.")
            return Unavailable(f"The cloud gave no token for {self._store} ({_gist(error)}).")
        if status == 416 or "StartTooLarge" in text:
            return PastTheEnd()
        if status in (401, 403):
            return self._denied(error)
        if status == 404:
            return self.no_bucket() if _names_no_bucket(error) else FileNotFoundError(_gist(error))
        if status == 501:
            return Misconfigured(f"{self._store} does not know a request that Lakehead needs ({_gist(error)}).")
        if 300 <= status < 500 and status not in (408, 429) and "RequestTimeout" not in text:
            return Misconfigured(f"{self._store} refused a request ({_gist(error)}). Check endpoint and region.")
        return None

    def _unclear(self, error: BaseError, writing: str | None) -> Exception:
        """Whatever we do not recognise may have been applied, unless it never left this machine."""
        if writing is None or "kind: Connect" in str(error):
            return Unavailable(f"{self._store} did not answer ({_gist(error)}). Check the endpoint and that it is up.")
        return OutcomeUnknown(f"{self._store} left a write to {writing} without a clear answer ({_gist(error)}).")

    def _denied(self, error: Exception) -> Misconfigured:
        return Misconfigured(
            f"{self._store} refused the credentials ({_gist(error)}). Check the access key and its secret, and that "
            "they may list the bucket and read, write and delete objects below the prefix."
        )


def _names_no_bucket(error: Exception) -> bool:
    return any(sign in str(error) for sign in _NO_BUCKET)


def _gist(error: Exception) -> str:
    """What a person needs of obstore's long message: the server's own code, or what went wrong on the way."""
    text = str(error)
    if found := re.search(r"<Code>([^<]+)</Code>", text):
        return found.group(1)
    if found := re.search(r"kind: (Connect|Timeout|Interrupted)", text):
        return {"Connect": "could not connect", "Timeout": "timed out", "Interrupted": "connection lost"}[
            found.group(1)
        ]
    if found := re.search(r"status code: (\d{3} [A-Za-z ]+)", text):
        return found.group(1).strip()
    return text.partition("\n")[0]
