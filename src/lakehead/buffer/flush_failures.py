"""Logs failed flushes, because callers may not await their watchers."""

import logging

from lakehead.errors import OutcomeUnknown

LOG = logging.getLogger("lakehead.buffer")


class FlushFailures:
    """Logs the first failure of each kind, counts the others, and logs the count once every manifest works again."""

    def __init__(self) -> None:
        self._failing: set[str] = set()
        self._logged: set[type[BaseException]] = set()
        self._count = 0

    def failed(self, manifest: str, error: BaseException) -> None:
        """Note that a batch for a manifest has failed."""
        self._failing.add(manifest)
        self._count += 1
        if type(error) not in self._logged:
            self._logged.add(type(error))
            outcome = "may not have been flushed" if isinstance(error, OutcomeUnknown) else "was not flushed"
            LOG.error(
                "A batch for %s %s: %s Await every watcher, and ingest the failed entries again. "
                "More failures of this kind are counted, not logged, until flushes succeed again.",
                manifest,
                outcome,
                error,
            )

    def succeeded(self, manifest: str) -> None:
        """Note that a batch for a manifest has become durable."""
        if self._failing:
            self._failing.discard(manifest)
            if not self._failing:
                LOG.warning(
                    "Flushes succeed again. Batches that failed meanwhile: %d. "
                    "Ingest the entries again whose watchers failed.",
                    self._count,
                )
                self._start_over()

    def closed(self) -> None:
        """Note that the ingestor is closed."""
        if self._count > 1:
            LOG.error(
                "The ingestor was closed before flushes succeeded again. Batches that failed: %d. "
                "Ingest the entries again whose watchers failed.",
                self._count,
            )
        self._start_over()

    def _start_over(self) -> None:
        self._failing.clear()
        self._logged.clear()
        self._count = 0
