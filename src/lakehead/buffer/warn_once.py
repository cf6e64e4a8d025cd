"""Logging problems of background tasks, whose exceptions no caller sees."""

import logging

logger = logging.getLogger("lakehead.buffer")


class WarnOnce:
    """Logs a warning once for each problem, until the problem is resolved."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def warn(self, problem: str, message: str, error: BaseException | None = None) -> None:
        """Log a warning, unless this problem was logged before; with the traceback of `error` if it is given."""
        if problem not in self._logged:
            self._logged.add(problem)
            logger.warning("%s", message, exc_info=error)

    def resolved(self, problem: str) -> None:
        """Note that the problem is gone: if it comes back, it is logged again."""
        self._logged.discard(problem)
