"""Logs flushes that fail: nobody may be waiting for their watchers."""

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
        """A batch for a manifest was given up."""
        self._failing.add(manifest)
        self._count += 1
        if type(error) not in self._logged:
            self._logged.add(type(error))
            outcome = "may not have been flushed" if isinstance(error, OutcomeUnknown) else "was not flushed"
            LOG.error(
                "A batch for %s %s: %s Await every watcher and ingest again what failed. "
                "More failures of this kind are counted, not logged, until flushes succeed again.",
                manifest,
                outcome,
                error,
            )

    def succeeded(self, manifest: str) -> None:
        """A batch for a manifest is durable."""
        if self._failing:
            self._failing.discard(manifest)
            if not self._failing:
                LOG.warning(
                    "Flushes succeed again. Batches that failed meanwhile: %d. Ingest again what watchers report.",
                    self._count,
                )
                self._start_over()

    def closed(self) -> None:
        """The ingestor flushes nothing more."""
        if self._count > 1:
            LOG.error(
                "The ingestor was closed before flushes succeeded again. Batches that failed: %d. "
                "Ingest again what watchers report.",
                self._count,
            )
        self._start_over()

    def _start_over(self) -> None:
        self._failing.clear()
        self._logged.clear()
        self._count = 0
