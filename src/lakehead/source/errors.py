"""Errors of sources."""

from lakehead.errors import LakeheadError


class NotExact(LakeheadError):
    """A column or a value has no exact counterpart. Read the column as text, or fix the value in the source."""


class SourceFailed(LakeheadError):
    """The source refused a statement for an unknown reason. The message has its own words."""
