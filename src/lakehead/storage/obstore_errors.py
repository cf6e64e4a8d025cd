"""Translates obstore's exceptions into Lakehead's errors, each with a short message that says what to do."""

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
from lakehead.storage.reliable_writes import NoBucket, WriteRefused

_STATUS = re.compile(r"status code: (\d{3})")
_ODD_KEY = re.compile(r'Encountered object with invalid path: Error parsing Path "(.*?)": ', re.DOTALL)
_NO_BUCKET = (
    "NoSuchBucket",
    "ContainerNotFound",
    "The specified bucket does not exist",
    "The specified container does not exist",
)


class RangePastEnd(Exception):
    """The requested range starts behind the last byte of the object."""


class ObstoreErrors:
    """Translates the errors of one store. Its messages name the store."""

    def __init__(self, store: str) -> None:
        self._store = store

    @contextmanager
    def translated(self, *, writing: str | None = None) -> Iterator[None]:
        """Translate what obstore raises in this block; `writing` is the key that is written, if any.

        `WriteRefused` and `OutcomeUnknown` are raised only for writes. The caller handles two more: a missing object
        stays a `FileNotFoundError`, and a range behind the end of the object raises `RangePastEnd`.
        """
        try:
            yield
        except FileNotFoundError as error:
            if _says_no_bucket(error):
                raise self.no_bucket() from error
            raise
        except (AlreadyExistsError, PreconditionError) as error:
            raise (WriteRefused if writing else Unavailable)(_short(error)) from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise self._denied(error) from error
        except BaseError as error:
            status = int(found.group(1)) if (found := _STATUS.search(str(error))) else 0
            raise self._known(error, status) or self._unclear(error, writing) from error

    def no_bucket(self) -> NoBucket:
        """Return the error for a bucket that does not exist."""
        return NoBucket(f"The bucket of {self._store} does not exist. Create it, or correct the URL or the endpoint.")

    def _known(self, error: BaseError, status: int) -> Exception | None:
        """Translate an error that only its text identifies, if the text is a definite answer."""
        text = str(error)
        if "performing token request" in text:  # so the request itself was never sent
            if status in (400, 401, 403, 404):
                return Misconfigured(
                    f"No credentials for {self._store}: none are configured, this machine has no role. Configure them."
                )
            return Unavailable(f"Could not get a token for {self._store} ({_short(error)}). Try again later.")
        if found := _ODD_KEY.search(text):
            return Misconfigured(
                f"{self._store} has an object whose key cannot be read, {found.group(1)[:200]!r}: it has an empty "
                "segment, '.', '..' or a control character, and what is behind it cannot be listed. Rename or remove "
                "it, or choose a folder that it is not in."
            )
        if status == 416 or "StartTooLarge" in text:
            return RangePastEnd()
        if status in (401, 403):
            return self._denied(error)
        if status == 404:
            return self.no_bucket() if _says_no_bucket(error) else FileNotFoundError(_short(error))
        if status == 501:
            return Misconfigured(
                f"{self._store} does not implement a request that Lakehead needs ({_short(error)}). Use another store."
            )
        if 300 <= status < 500 and status not in (408, 429) and "RequestTimeout" not in text:
            return Misconfigured(f"{self._store} refused a request ({_short(error)}). Check endpoint and region.")
        return None

    def _unclear(self, error: BaseError, writing: str | None) -> Exception:
        """Translate any other error: a write may have been applied, unless the request never left this machine."""
        if writing is None or "kind: Connect" in str(error):
            return Unavailable(
                f"{self._store} did not respond ({_short(error)}). Check the endpoint, and that the server is up."
            )
        return OutcomeUnknown(f"{self._store} did not confirm a write to {writing} ({_short(error)}).")

    def _denied(self, error: Exception) -> Misconfigured:
        return Misconfigured(
            f"{self._store} refused the credentials ({_short(error)}). Check the access key and its secret, and that "
            "they may list the bucket and read, write and delete objects under the prefix."
        )


def _says_no_bucket(error: Exception) -> bool:
    return any(text in str(error) for text in _NO_BUCKET)


def _short(error: Exception) -> str:
    """Return the useful part of obstore's long message: the server's error code, or the network error."""
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
