"""What an answer of a gateway means for the batch that was sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

import msgspec

from lakehead.agent.errors import (
    AgentRefused,
    BatchRefused,
    BatchTooLarge,
    BootQuarantined,
    EncodingRefused,
    ForeignAuthority,
    FrameRefused,
    IdentityConflict,
    TokenRefused,
    UnexpectedAnswer,
    VoidBatch,
)
from lakehead.agent.framed_batch import FramedBatch, Receipt
from lakehead.wire.batch_identity import BatchIdentity

SHOWN = 300
"""The most characters of an answer that stand in a message."""

_TRY_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_NOT_TAKEN = frozenset({"body_timeout", "overloaded", "rate_limited", "too_many_connections"})
"""Codes that a gateway answers before anything is stored. After any other, the batch may have been accepted."""

_REFUSED: Mapping[int, tuple[type[BatchRefused], str]] = {
    400: (FrameRefused, "Fix what sends it, or update the gateway."),
    401: (TokenRefused, "Use a token of this gateway that was not revoked."),
    403: (AgentRefused, "Use the token of this agent, or the agent id of this token."),
    413: (BatchTooLarge, "Send smaller batches."),
    415: (EncodingRefused, "Something on the way compresses requests: turn that off for the gateway."),
    431: (FrameRefused, "Use a shorter token."),
}
_DECIDED: Mapping[tuple[int, str], tuple[type[BatchRefused], str]] = {
    (409, "identity_conflict"): (IdentityConflict, "Keep the batch until an operator has decided."),
    (410, "identity_void"): (VoidBatch, "Send its records again under the next sequence numbers."),
    (423, "identity_quarantined"): (BootQuarantined, "Keep the batch, and send further records under a new boot id."),
}
"""Only a gateway of the same authority can say these, by their codes: records could be doubled or dropped if a proxy's
page, or another deployment, were believed."""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The same bytes should be sent again."""

    reason: str
    in_doubt: bool
    """Whether the batch may have been accepted."""

    after_seconds: float = 0.0
    """How long to wait at least."""


class _Error(msgspec.Struct):
    code: str = ""
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _Error
    authority: str = ""
    submitted_frame_sha256: str = ""
    accepted_frame_sha256: str = ""
    resolution: str | None = None


class _AcceptedBody(msgspec.Struct):
    duplicate: bool
    authority: str
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    frame_sha256: str
    accepted_at_unix_ns: int


@dataclass(frozen=True, slots=True)
class Answered:
    """An HTTP answer."""

    status: int
    body: bytes
    retry_after: str = ""
    """The header of that name."""


def interpret(
    answer: Answered, batch: FramedBatch, *, in_doubt: bool, now_ns: int, authority: str = ""
) -> Receipt | TryAgain:
    """Return the receipt, or that the bytes should be sent again. `in_doubt`: an earlier attempt may be accepted.
    `authority` is the one that must have answered; empty: any.

    Raises a `BatchRefused`, or `UnexpectedAnswer` for what no gateway answers about this batch.
    """
    if answer.status == 200:
        return _receipt(answer, batch, authority)
    told = _error_body(answer)
    code, said = told.error.code, _one_line(told.error.message) or _text(answer)
    if answer.status in _TRY_AGAIN:
        reason = f"{answer.status} {said}".strip()
        return TryAgain(reason, code not in _NOT_TAKEN, _seconds(answer.retry_after, now_ns))
    if decided := _DECIDED.get((answer.status, code)):
        kind, advice = decided
        _check_authority(told.authority, batch, authority)
        # A conflict and a void say for certain that this batch was not accepted.
        refused = kind(
            batch,
            f"{_what(batch)} was refused: {_advised(said, advice)}",
            code=code,
            in_doubt=in_doubt and answer.status == 423,
        )
        refused.authority = told.authority
        if isinstance(refused, IdentityConflict):
            refused.accepted_frame_sha256 = told.accepted_frame_sha256
            refused.resolution = (told.resolution or "") if told.submitted_frame_sha256 == batch.sha256 else ""
        raise refused
    if known := _REFUSED.get(answer.status):
        kind, advice = known
        raise kind(
            batch,
            f"{_what(batch)} was refused ({answer.status}): {_advised(said, advice)}",
            code=code,
            in_doubt=in_doubt,
        )
    raise UnexpectedAnswer(
        batch, f"{_what(batch)} was answered {answer.status}, as no gateway does: {said} Check the URL of the gateway."
    )


def _receipt(answer: Answered, batch: FramedBatch, authority: str) -> Receipt:
    try:
        told = msgspec.json.decode(answer.body, type=_AcceptedBody)
        identity = BatchIdentity(told.agent_id, told.boot_id, told.seq_start, told.seq_end)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        raise UnexpectedAnswer(
            batch,
            f"{_what(batch)} was answered 200, but not by a gateway: {_text(answer)} Check the URL of the gateway.",
        ) from None
    _check_authority(told.authority, batch, authority)
    if (identity, told.frame_sha256) != (batch.identity, batch.sha256):
        raise UnexpectedAnswer(
            batch,
            f"{_what(batch)} was answered with the receipt of another batch ({identity}, {told.frame_sha256}). Check "
            "what is between here and the gateway.",
        )
    return Receipt(identity, told.duplicate, told.authority, told.frame_sha256, told.accepted_at_unix_ns)


def _check_authority(answered: str, batch: FramedBatch, expected: str) -> None:
    """Raise `ForeignAuthority` for what another deployment says of the batch: it knows nothing of this one's."""
    if not answered or expected not in ("", answered):
        raise ForeignAuthority(
            batch,
            f"{_what(batch)} was answered by the authority {_one_line(answered)!r}, not by {expected!r}. It is "
            "accepted in another deployment, if at all: check the URL of the gateway, and what is between.",
        )


def _error_body(answer: Answered) -> _ErrorBody:
    try:
        return msgspec.json.decode(answer.body, type=_ErrorBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _ErrorBody(_Error())


def _text(answer: Answered) -> str:
    """The beginning of an answer that is not a gateway's, on one line."""
    text = _one_line(answer.body[: 4 * SHOWN].decode(errors="replace"))
    return f"{text!r}." if text else ""


def _one_line(said: str) -> str:
    """The beginning of what a server says, without what a terminal would obey."""
    text = " ".join(said[: 4 * SHOWN].split())[:SHOWN]
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _advised(said: str, advice: str) -> str:
    """What a gateway said with what to do, which it may have said itself."""
    return said if said.endswith(advice) else f"{said} {advice}".strip()


def _what(batch: FramedBatch) -> str:
    one = batch.identity
    return f"The batch {one.seq_start}-{one.seq_end} of the agent {one.agent_id!r}, boot {one.boot_id!r},"


def _seconds(retry_after: str, now_ns: int) -> float:
    """How long a Retry-After says, in seconds or as a date; 0 if it says nothing."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        when = parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return 0.0
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, when.timestamp() - now_ns / 10**9)
