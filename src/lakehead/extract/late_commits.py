"""Rows that are committed after their window was read: what a source tells of them, and which tables that is not enough
for.

A row is lost if its watermark lies below one that was read already when it is committed. By the clock, the window ends
before the oldest open transaction and the lag before that. Numbers and text know no time: they are read when no
transaction is open any more that may have taken a lower value.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from lakehead.errors import Misconfigured, Unavailable
from lakehead.extract.facts import Answers, Increments
from lakehead.extract.planning.axis import Kind
from lakehead.extract.strategy import ExecutionContext
from lakehead.extract.table import LateCommits, TableSettings
from lakehead.source.port import OpenTransactions
from lakehead.telemetry.events import LateCommitsUnknown, TableHeldBack

TOLD_FROM_SECONDS = 1
"""Transactions that are younger come and go in every busy database."""

LOOKS, PAUSE_SECONDS = 8, 0.25
"""How often, and how far apart, is looked whether transactions have ended that may bring lower numbers."""


@dataclass(slots=True)
class LateCommitCheck:
    """Looks at a source's open transactions for one table in one run, and says what it finds."""

    context: ExecutionContext
    held_back: "HeldBack | None" = None
    """What kept the table from being read up to the source's time."""

    _said: bool = False

    def check(self, increments: Increments, transactions: OpenTransactions) -> None:
        """Say, once, that the source does not tell of all open transactions; raise `Misconfigured` where a table must
        not be read because of it."""
        table = self.context.table
        unknown = transactions.unknown or increments.info.written_elsewhere
        lag = max(table.lag_seconds, self.context.lag_seconds) if increments.kind.follows_the_clock else 0
        if unknown is not None and not self._said:
            self._said = True
            accepted = table.late_commits is LateCommits.ACCEPT
            self.context.emit(LateCommitsUnknown(reason=unknown, lag_seconds=lag, accepted=accepted))
        check_known(table, increments.kind, unknown, lag_seconds=lag, one_writer=increments.source.can.one_writer)

    def look(self, increments: Increments, answers: Answers) -> None:
        """Look at the transactions that were open when a plan is made, and say who holds the table back.

        By the clock, all can be read that is older than they are. Raises what `check` and `check_limit` raise.
        """
        self.check(increments, answers.transactions)
        if increments.kind.follows_the_clock:
            self._hold_back(answers.asked_at, answers.transactions)

    def may_read(self, increments: Increments, asked_at: datetime) -> bool:
        """Whether numbers or text can be read up to the highest that the source had at that moment.

        They cannot as long as a transaction is open that may bring a lower one. Later ones bring higher ones: so the
        same moment is asked for again by a later run, and a busy source is read too. Raises what `look` raises.
        """
        if self.context.table.late_commits is LateCommits.ACCEPT:
            return True
        transactions, looks = increments.source.open_transactions(), LOOKS
        self.check(increments, transactions)
        while _began_before(asked_at, transactions) and looks:  # most are over in a moment
            self.context.progress("waiting for open transactions")
            self.context.pause(PAUSE_SECONDS)
            transactions, looks = increments.source.open_transactions(), looks - 1
            self.check(increments, transactions)
        if not _began_before(asked_at, transactions):
            return True
        self._hold_back(increments.source.now().utc, transactions)
        return False

    def _hold_back(self, now: datetime, transactions: OpenTransactions) -> None:
        self.held_back = held = held_back(now, transactions)
        if held is not None:
            self.context.emit(TableHeldBack(by=held.by, since=held.since, seconds=held.seconds))
            check_limit(self.context.table, held)


def _began_before(moment: datetime, transactions: OpenTransactions) -> bool:
    return transactions.oldest is not None and transactions.oldest < moment


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """What keeps a table from being read up to the source's time."""

    by: str
    since: datetime
    seconds: float

    def __str__(self) -> str:
        return f"held back by {self.by} since {self.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def held_back(now: datetime, transactions: OpenTransactions) -> HeldBack | None:
    """Who has a transaction open that began before this moment, if that is worth saying."""
    oldest = transactions.oldest
    if oldest is None or (seconds := (now - oldest).total_seconds()) < TOLD_FROM_SECONDS:
        return None
    return HeldBack(by=transactions.whose or "an open transaction", since=oldest, seconds=seconds)


def check_limit(table: TableSettings, held: HeldBack) -> None:
    """Raise `Unavailable` if a table has been held back for longer than it may be."""
    limit = table.max_held_back_seconds
    if limit and held.seconds > limit:
        raise Unavailable(
            f"The table {table.name} is {held}, longer than its max_held_back_seconds ({limit:,}) allow. End that "
            "transaction and run it again, or set max_held_back_seconds higher."
        )


def check_known(table: TableSettings, kind: Kind, unknown: str | None, *, lag_seconds: int, one_writer: bool) -> None:
    """Raise `Misconfigured` if rows of the table could be lost without anybody having accepted that.

    `unknown` is why not all open transactions are known that may bring rows of the table, or None if they are.
    A source with one writer is let pass: what is missed there is one transaction, of one process, at that very moment.
    """
    if unknown is None or table.late_commits is LateCommits.ACCEPT or one_writer:
        return
    why = f"The source of {table.name} does not tell of all open transactions: {unknown}."
    if not kind.follows_the_clock:
        raise Misconfigured(
            f"{why} Rows that are committed after a higher {table.incremental_column} was read would never be read, "
            f"and a column of the kind {kind} knows no lag. Choose a column of time, load the table in full, or set "
            "its late_commits to accept."
        )
    if lag_seconds == 0:
        raise Misconfigured(
            f"{why} Rows that they commit after the read would never be read. Set lag_seconds to longer than the "
            "longest transaction lasts (or give --wm-lag-seconds), or set late_commits to accept."
        )
