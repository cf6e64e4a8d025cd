"""Whether a running gateway's authority is still the one that it was started for."""

from lakehead.accept.authority import AnotherAuthority, Authority, NoAuthority
from lakehead.accept.cached_copy import CachedCopy
from lakehead.clock import Clock
from lakehead.errors import Unavailable
from lakehead.wire.authority_records import AuthorityRecord


class AuthorityWatch:
    """A gateway's view of the authority record, read every 30 s and at most 5 minutes old.

    After that time no gateway accepts anything by a mode that was changed, or in a store that is no authority any more.
    """

    def __init__(self, authority: Authority, started_with: AuthorityRecord, clock: Clock) -> None:
        self._authority = authority
        self._started_with = started_with
        self._spool: tuple[str, str] | None = None
        self._problem = CachedCopy(load=self._load, clock=clock, name="the authority record")

    def expect_spool(self, spool_id: str, address: str) -> None:
        """Look from now on whether the record lists this gateway's spool with this address, as it does now: only then
        garbage collection asks it before an identity becomes void.
        """
        self._spool = (spool_id, address)

    def check(self) -> None:
        """Raise `Unavailable` if the authority is another one or has another mode by now, or if that is not known."""
        if problem := self._problem.value():
            raise Unavailable(problem)

    async def refresh(self) -> None:
        """Read the record now. Raises `Unavailable` and `Unreadable`, and keeps what is known then."""
        await self._problem.refresh()

    async def run(self) -> None:
        """Read the record now and every 30 s, until the task is cancelled. What fails is logged and tried again."""
        await self._problem.run()

    async def _load(self) -> str:
        """What has changed; empty if nothing has."""
        before, spool = self._started_with, self._spool
        try:
            now = await self._authority.check(before.mode)
        except (NoAuthority, AnotherAuthority) as error:
            return str(error)
        if (now.authority_id, now.epoch) == (before.authority_id, before.epoch):
            return _problem_of_spool(spool, now)
        return (
            f"The authority is {now.authority_id} in epoch {now.epoch}, and this gateway was started for "
            f"{before.authority_id} in epoch {before.epoch}. Start it again."
        )


def _problem_of_spool(spool: tuple[str, str] | None, now: AuthorityRecord) -> str:
    if spool is None or spool in ((each.spool_id, each.address) for each in now.open_spools):
        return ""
    spool_id, address = spool
    return (
        f"The authority no longer lists the spool {spool_id} at {address}: it was closed, or a copy of its disk was "
        "opened elsewhere. Find out which, and start this gateway again."
    )
