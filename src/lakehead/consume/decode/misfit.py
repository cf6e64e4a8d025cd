"""The error of values that a column cannot hold."""


class Misfit(ValueError):
    """A value does not fit its column exactly. It goes to `_rescued`, or its object is refused."""
