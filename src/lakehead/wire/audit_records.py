"""The audit trail: who did what, and when."""

from typing import Annotated

import msgspec

from lakehead.wire import acceptance_keys as keys
from lakehead.wire.stored_record import Name, StoredRecord, UnixNs

AuditValues = dict[
    Annotated[str, msgspec.Meta(max_length=256)], str | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
]
"""What a record said, or was to say, by the names of its fields."""


class AuditEntry(StoredRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.audit.v1"):
    """What somebody did, or was about to do: it is created before, so the action itself may have failed."""

    action_id: str
    """A UUID."""

    at_unix_ns: UnixNs
    by: Name
    action: Name
    """What was done, in one stable word such as `accept_existing`."""

    subject: Name
    """The key of the object that was to be changed."""

    because_of: str = ""
    """Why: the key of the conflict that was decided about, the id of the spool that was meant, or the key of the entry
    whose outcome this is. Empty if there is nothing of the kind."""

    before: AuditValues | None = None
    """What it said shortly before; None if it was not there."""

    after: AuditValues | None = None
    """What it was to say; None if it was to be removed."""

    def __post_init__(self) -> None:
        self.key  # noqa: B018 - raises if it is not valid

    @property
    def key(self) -> str:
        """Where the entry is stored."""
        return keys.audit_entry(self.at_unix_ns, self.action_id)
