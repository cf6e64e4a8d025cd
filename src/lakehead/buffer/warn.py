"""Telling an operator of what goes wrong in the background, where nobody gets an exception."""

import logging

logger = logging.getLogger("lakehead.buffer")


class WarnOnce:
    """Logs each cause once, until it is over."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def warn(self, cause: str, message: str, error: BaseException | None = None) -> None:
        """Log a warning, unless the cause was told before; with the traceback of an error that nobody expected."""
        if cause not in self._told:
            self._told.add(cause)
            logger.warning("%s", message, exc_info=error)

    def over(self, cause: str) -> None:
        """The cause is gone: if it comes back, it is logged again."""
        self._told.discard(cause)
