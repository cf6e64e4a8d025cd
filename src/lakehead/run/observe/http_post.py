"""Posts JSON to a URL that may hold a secret: neither errors nor logs show it."""

import http.client
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from lakehead.errors import Misconfigured
from lakehead.telemetry.background_sender import NotSent

TIMEOUT_SECONDS = 5.0
"""How long each step of a request may take."""

RETRIED = frozenset({408, 425, 429})
"""Refusals that a later try may not get, besides all of 500 and above."""


class JsonPost:
    """Posts bodies of JSON to a URL. Redirects are not followed: they would take the body elsewhere.

    Made with urllib, because other HTTP clients write URLs into the log.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Raises `Misconfigured` if the URL is not one of HTTP; the message does not show it."""
        if not is_http_url(url):
            raise Misconfigured("A URL to post to must begin with http:// or https:// and name a host. Correct it.")
        self._url, known = _without_user(url)
        self._headers = {"Content-Type": "application/json", "User-Agent": "lakehead", **known, **(headers or {})}
        self._timeout = timeout
        self._opener = build_opener(_NoRedirects)

    def __call__(self, body: bytes) -> None:
        """Post the body. Raises `NotSent` unless the receiver answers with a status from 200 to 299."""
        request = Request(self._url, data=body, headers=self._headers, method="POST")  # noqa: S310 - only HTTP, see above
        try:
            # The status is all that counts: a body could come one byte at a time, for ever.
            self._opener.open(request, timeout=self._timeout).close()
        except HTTPError as error:
            error.close()
            retried = error.code >= 500 or error.code in RETRIED
            raise NotSent(f"it answered {error.code}", try_again=retried) from None
        except TimeoutError:
            raise NotSent(f"it did not answer within {self._timeout:g} s") from None
        except URLError as error:
            timed_out = isinstance(error.reason, TimeoutError)
            reason = f"no answer within {self._timeout:g} s" if timed_out else _reason(error.reason)
            raise NotSent(f"it cannot be reached ({reason})") from None
        except (OSError, http.client.HTTPException) as error:
            raise NotSent(f"the connection broke ({_reason(error)})") from None
        except ValueError:
            raise NotSent("its URL is not valid", try_again=False) from None


def _without_user(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without the user and password before its host, and the header that says them instead."""
    parts = urlsplit(url)
    if parts.username is None:
        return url, {}
    given = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    header = {"Authorization": f"Basic {b64encode(given.encode()).decode()}"}
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(), header


def is_http_url(url: str) -> bool:
    """Whether a URL is one of HTTP or HTTPS with a host, and without spaces and control characters."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and url.isprintable() and " " not in url


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect; the answer is then an error."""


def _reason(error: object) -> str:
    """Return why a connection failed, without the text of an unknown error, which may hold the URL."""
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__
