"""Late commits: rows that are committed after their window was read, and how a source's open transactions reveal them.

A row would be lost if, when it is committed, its watermark is below one that was already read. For columns that follow
the clock, the window therefore ends before the oldest open transaction, less the lag. Numbers and text have no time, so
they are read once no transaction is open any more that may have taken a lower value.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from lakehead.errors import Misconfigured, Unavailable
from lakehead.extract.incremental_source import Answers, IncrementalSource
from lakehead.extract.planning.axis import Kind
from lakehead.extract.strategy import ExecutionContext
from lakehead.extract.table_settings import LateCommits, TableSettings
from lakehead.source.port import OpenTransactions
from lakehead.telemetry.events import LateCommitsUnknown, TableHeldBack

REPORT_AFTER_SECONDS = 1
"""Younger transactions are not reported: every busy database has some."""

LOOKS, PAUSE_SECONDS = 8, 0.25
"""How often, and with which pause, to check whether transactions that may commit lower numbers have ended."""


@dataclass(slots=True)
class LateCommitCheck:
    """Checks a source's open transactions for one table in one run, and emits events about them."""

    context: ExecutionContext
    held_back: "HeldBack | None" = None
    """The transaction that kept the table from being read up to the source's current time."""

    _reported: bool = False

    def check(self, increments: IncrementalSource, transactions: OpenTransactions) -> None:
        """Emit an event, once, if the source does not show all open transactions.

        Raises `Misconfigured` if the table must not be read because of that.
        """
        table = self.context.table
        unknown = transactions.unknown or increments.info.written_elsewhere
        lag = max(table.lag_seconds, self.context.lag_seconds) if increments.kind.follows_the_clock else 0
        if unknown is not None and not self._reported:
            self._reported = True
            accepted = table.late_commits is LateCommits.ACCEPT
            self.context.emit(LateCommitsUnknown(reason=unknown, lag_seconds=lag, accepted=accepted))
        check_known(
            table, increments.kind, unknown, lag_seconds=lag, one_writer=increments.source.capabilities.one_writer
        )

    def look(self, increments: IncrementalSource, answers: Answers) -> None:
        """Check the transactions that were open when a plan is made, and report the one that holds the table back.

        Columns that follow the clock can be read up to the oldest of them. Raises as `check` and `check_limit` do.
        """
        self.check(increments, answers.transactions)
        if increments.kind.follows_the_clock:
            self._hold_back(answers.asked_at, answers.transactions)

    def may_read(self, increments: IncrementalSource, asked_at: datetime) -> bool:
        """Whether numbers or text can be read up to the highest value that the source had at that time.

        They cannot while a transaction is open that may commit a lower value. Transactions that began later have
        higher values, so a later run asks for the same time again, and a busy source gets read too. Raises as `look`
        does.
        """
        if self.context.table.late_commits is LateCommits.ACCEPT:
            return True
        transactions, looks = increments.source.open_transactions(), LOOKS
        self.check(increments, transactions)
        while _began_before(asked_at, transactions) and looks:  # most end within moments
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
    """The open transaction that keeps a table from being read up to the source's current time."""

    by: str
    since: datetime
    seconds: float

    def __str__(self) -> str:
        return f"held back by {self.by} since {self.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def held_back(now: datetime, transactions: OpenTransactions) -> HeldBack | None:
    """The oldest open transaction, if it has been open for long enough to report it."""
    oldest = transactions.oldest
    if oldest is None or (seconds := (now - oldest).total_seconds()) < REPORT_AFTER_SECONDS:
        return None
    return HeldBack(by=transactions.whose or "an open transaction", since=oldest, seconds=seconds)


def check_limit(table: TableSettings, held: HeldBack) -> None:
    """Raise `Unavailable` if a table has been held back for longer than its settings allow."""
    limit = table.max_held_back_seconds
    if limit and held.seconds > limit:
        raise Unavailable(
            f"The table {table.name} is {held}, longer than its max_held_back_seconds ({limit:,}) allow. End that "
            "transaction and run it again, or increase max_held_back_seconds."
        )


def check_known(table: TableSettings, kind: Kind, unknown: str | None, *, lag_seconds: int, one_writer: bool) -> None:
    """Raise `Misconfigured` if rows of the table could be lost and the configuration does not accept that.

    `unknown` is why some open transactions that may commit rows of the table are unknown, or None if all are known.
    A source with a single writer passes: at most the one transaction in progress at that moment could be missed.
    """
    if unknown is None or table.late_commits is LateCommits.ACCEPT or one_writer:
        return
    why = f"The source of {table.name} does not show all open transactions: {unknown}."
    if not kind.follows_the_clock:
        raise Misconfigured(
            f"{why} Rows that are committed after a higher {table.incremental_column} was read would never be read, "
            f"and a column of kind {kind} cannot have a lag. Choose a timestamp or date column, load the table in "
            "full, or set its late_commits to accept."
        )
    if lag_seconds == 0:
        raise Misconfigured(
            f"{why} Rows that they commit after the read would never be read. Set lag_seconds to longer than the "
            "longest transaction lasts (or give --wm-lag-seconds), or set late_commits to accept."
        )
