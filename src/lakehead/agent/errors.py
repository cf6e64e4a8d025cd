"""Errors of sending a batch to a gateway. Each class says what the caller should do."""

from typing import TYPE_CHECKING

from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from lakehead.agent.framed_batch import FramedBatch

DOUBT = "An earlier attempt may have been accepted."


class BadRecord(Misconfigured):
    """Fix the record: it cannot be made into one of its kind. Nothing was sent, and no sequence number is used."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"Record {index:,} (from 0): {reason}")
        self.index = index
        """Which of the records it is, from 0."""

        self.reason = reason

    def __reduce__(self) -> tuple[type["BadRecord"], tuple[int, str]]:
        return type(self), (self.index, self.reason)


class NotSent(LakeheadError):
    """A batch is not known to be accepted. The base class of all errors of sending one."""

    def __init__(self, batch: "FramedBatch", reason: str) -> None:
        super().__init__(reason)
        self.batch = batch
        """What was sent. `send_batch` takes it again, under the same identity and in the same bytes."""

        self.reason = reason


class GatewayUnavailable(NotSent, Unavailable):
    """Send `batch` again later: no attempt was taken by a gateway. Nothing was accepted."""


class BatchInDoubt(NotSent, OutcomeUnknown):
    """Send `batch` again, with the same bytes: it may have been accepted, or may be later."""


class UnexpectedAnswer(BatchInDoubt):
    """Check the URL: something answered that is no gateway, or of another version. Nothing follows from its answer."""


class ForeignAuthority(UnexpectedAnswer):
    """Check the URL: another acceptance authority answered than the one whose receipts count."""


class BatchRefused(NotSent):
    """A gateway refused a batch. The same bytes are refused again until something is changed."""

    def __init__(self, batch: "FramedBatch", reason: str, *, code: str, in_doubt: bool = False) -> None:
        super().__init__(batch, f"{reason} {DOUBT}" if in_doubt else reason)
        self.code = code
        """The gateway's word for the reason; empty if it gave none."""

        self.in_doubt = in_doubt
        """Whether an earlier attempt may have been accepted all the same."""

        self.authority = ""
        """The acceptance authority that says so of the identity (409, 410, 423); empty for other refusals."""


class FrameRefused(BatchRefused, Misconfigured):
    """400, 431: fix the sender, or update the gateway."""


class TokenRefused(BatchRefused, Misconfigured):
    """401: use a token that is known there, and not revoked. Then send `batch` again."""


class AgentRefused(BatchRefused, Misconfigured):
    """403: use the token of this agent, or its agent id with that token."""


class BatchTooLarge(BatchRefused, Misconfigured):
    """413: send the records in smaller batches."""


class EncodingRefused(BatchRefused, Misconfigured):
    """415: something between here and there adds a Content-Encoding. Turn it off."""


class IdentityConflict(BatchRefused):
    """409: keep the batch until an operator has decided. Another frame was accepted under its identity."""

    accepted_frame_sha256: str = ""
    resolution: str = ""
    """What an operator decided about this very batch: after `accept_existing` it may be dropped. Empty: nothing yet."""


class VoidBatch(BatchRefused):
    """410: send the records again with `send`. Nothing was ever accepted under the identity of the batch."""


class BootQuarantined(BatchRefused):
    """423: keep the batch, and send further records under a new boot id. An operator has to decide."""
