"""What a table makes of a source that does not tell of all open transactions, or of one that holds it back."""

from datetime import UTC, datetime, timedelta

import pytest

from lakehead.errors import Misconfigured, Unavailable
from lakehead.extract.late_commits import HeldBack, check_known, check_limit, held_back
from lakehead.extract.modes import SCD1
from lakehead.extract.planning.axis import Kind
from lakehead.extract.table_settings import LateCommits, TableSettings
from lakehead.source.port import OpenTransactions, TableName

NOW = datetime(2024, 3, 31, 12, tzinfo=UTC)
UNKNOWN = "it keeps them to itself"
OPEN = OpenTransactions(oldest=NOW - timedelta(hours=3), whose="app (psql, process 12)")


def table(**more: object) -> TableSettings:
    settings: dict[str, object] = {
        "name": "shop.orders",
        "source": TableName("orders", "shop"),
        "mode": SCD1,
        "incremental_column": "at",
        **more,
    }
    return TableSettings(**settings)  # type: ignore[arg-type] # the names are those of its fields


@pytest.mark.parametrize("kind", Kind)
def test_a_table_is_refused_where_open_transactions_are_not_known_and_nothing_protects_it(kind: Kind) -> None:
    way_out = "Set lag_seconds" if kind.follows_the_clock else "Choose a timestamp or date column"

    with pytest.raises(Misconfigured, match=rf"it keeps them to itself\. .*{way_out}.*late_commits to accept\.$"):
        check_known(table(), kind, UNKNOWN, lag_seconds=0, one_writer=False)


@pytest.mark.parametrize("kind", Kind)
def test_what_is_known_or_accepted_or_written_by_one_is_read_without_a_lag(kind: Kind) -> None:
    check_known(table(), kind, None, lag_seconds=0, one_writer=False)
    check_known(table(), kind, UNKNOWN, lag_seconds=0, one_writer=True)
    check_known(table(late_commits=LateCommits.ACCEPT), kind, UNKNOWN, lag_seconds=0, one_writer=False)


def test_a_lag_protects_columns_of_time_and_no_others() -> None:
    for kind in Kind:
        if kind.follows_the_clock:
            check_known(table(), kind, UNKNOWN, lag_seconds=1, one_writer=False)
        else:
            with pytest.raises(Misconfigured, match="cannot have a lag"):
                check_known(table(), kind, UNKNOWN, lag_seconds=1, one_writer=False)


def test_who_holds_a_table_back_is_told_from_a_second_on() -> None:
    assert held_back(NOW, OpenTransactions()) is None
    assert held_back(NOW, OpenTransactions(oldest=NOW - timedelta(milliseconds=999), whose="app")) is None

    held = held_back(NOW, OPEN)

    assert held == HeldBack(by="app (psql, process 12)", since=NOW - timedelta(hours=3), seconds=3 * 3600)
    assert str(held) == "held back by app (psql, process 12) since 2024-03-31 09:00:00 UTC"


def test_a_table_that_is_held_back_for_longer_than_it_may_be_fails_with_what_to_do() -> None:
    held = held_back(NOW, OPEN)
    assert held is not None
    check_limit(table(max_held_back_seconds=3 * 3600), held)
    check_limit(table(max_held_back_seconds=0), held)

    with pytest.raises(Unavailable, match=r"held back by app .*\(10,799\) allow\. End that transaction"):
        check_limit(table(max_held_back_seconds=3 * 3600 - 1), held)
