"""Looks at a bucket's settings again and again while a gateway runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from lakehead.accept.bucket_findings import lines_for, unread_findings
from lakehead.accept.bucket_settings import Finding, Severity
from lakehead.clock import Clock

LOG = logging.getLogger(__name__)


class BucketWatch:
    """The findings of the last check. `run` makes one at once and one every hour; it holds up nothing else."""

    def __init__(
        self,
        check: Callable[[], Awaitable[tuple[Finding, ...]]],
        clock: Clock,
        *,
        every_seconds: float = 3600.0,
        within_seconds: float = 60.0,
    ) -> None:
        self.findings = unread_findings("it was not checked yet.", "Wait a minute.")
        self._check = check
        self._clock = clock
        self._every_seconds = every_seconds
        self._within_seconds = within_seconds
        self._told: set[str] = set()

    async def run(self) -> None:
        """Check now and then regularly, until the task is cancelled. What is new is logged, and what is mended."""
        while True:
            self.findings = await self._checked()
            self._tell()
            await self._clock.sleep(self._every_seconds)

    async def _checked(self) -> tuple[Finding, ...]:
        try:
            async with asyncio.timeout(self._within_seconds):
                return await self._check()
        except TimeoutError:
            return unread_findings(f"it took more than {self._within_seconds:g} s.", "It is tried again later.")
        except Exception as error:  # noqa: BLE001 - no caller would see it, and a gateway needs none of this
            return unread_findings(f"{error!r}.", "It is tried again later.")

    def _tell(self) -> None:
        lines = lines_for(self.findings)
        for line, severity in lines.items():
            if line not in self._told:
                LOG.log(logging.INFO if severity is Severity.ADVICE else logging.WARNING, "The bucket: %s", line)
        for line in sorted(self._told - lines.keys()):
            LOG.info("The bucket, no longer: %s", line)
        self._told = set(lines)
