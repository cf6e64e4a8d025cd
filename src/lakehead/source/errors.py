"""What goes wrong with a source, for whoever must do something about it."""

from lakehead.errors import LakeheadError


class NotExact(LakeheadError):
    """A column or a value cannot be carried as it is. Read the column as text, or mend the source."""


class SourceFailed(LakeheadError):
    """The source refused a statement for a reason that is not known here. Its own words say why."""
