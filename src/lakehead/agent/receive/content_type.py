"""What the headers of a request say about its body."""

from dataclasses import dataclass

from starlette.datastructures import Headers

from lakehead.agent.receive.content_encoding import Encoding
from lakehead.agent.receive.refusals import ErrorCode, Refusal

_SHOWN = 100


@dataclass(frozen=True, slots=True)
class ContentType:
    """A media type with its parameter `proto`, which names a message of protobuf."""

    media_type: str
    """In lower case; empty if there is none."""

    proto: str = ""


def content_type(headers: Headers) -> ContentType:
    """Return the Content-Type of a request. Raises `Refusal` if there are several."""
    given = headers.getlist("content-type")
    if len(given) > 1:
        raise Refusal(ErrorCode.UNSUPPORTED, "There is more than one Content-Type.")
    media_type, *parameters = (part.strip() for part in (given[0] if given else "").split(";"))
    named = (parameter.partition("=") for parameter in parameters)
    protos = [value.strip().strip('"') for name, _, value in named if name.strip().lower() == "proto"]
    return ContentType(media_type.lower(), protos[0] if protos else "")


def content_encoding(headers: Headers, *known: Encoding) -> Encoding:
    """Return the one Content-Encoding of a request. Raises `Refusal` if it is not one of those that are known."""
    given = headers.getlist("content-encoding")
    word = ",".join(given).strip().lower() or Encoding.IDENTITY.value
    for encoding in known:
        if encoding.value == word:
            return encoding
    raise Refusal(
        ErrorCode.UNSUPPORTED,
        f"The Content-Encoding is {word[:_SHOWN]!r}, and must be {' or '.join(repr(each.value) for each in known)}.",
        headers={"Accept-Encoding": ", ".join(each.value for each in known)},
    )


def unsupported(found: ContentType, known: str) -> Refusal:
    """Return the answer to a content type that a route does not take."""
    shown = f"{found.media_type};proto={found.proto}" if found.proto else found.media_type
    return Refusal(ErrorCode.UNSUPPORTED, f"The Content-Type is {shown[:_SHOWN]!r}, and must be {known}.")
