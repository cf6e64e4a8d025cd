"""A lease is renewed while the work under it makes progress, and no longer."""

import itertools
import threading
from datetime import timedelta

from lakehead.errors import Unavailable
from lakehead.lake.leased import renewed

QUICK = timedelta(milliseconds=3)
"""A lease that is renewed every millisecond."""

MANY = 50


class Lease:
    """Counts how often it is renewed and how often its work is asked how far it is."""

    def __init__(self) -> None:
        self.renewals = 0
        self.asked = 0
        self.changed = threading.Condition()

    def renew(self) -> None:
        with self.changed:
            self.renewals += 1
            self.changed.notify_all()

    def ask(self, answer: object) -> object:
        with self.changed:
            self.asked += 1
            self.changed.notify_all()
        return answer

    def await_renewals(self, number: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.renewals >= number, 60)

    def await_asked(self, number: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.asked >= number, 60)


def test_work_that_goes_on_keeps_its_lease_however_long_it_takes() -> None:
    lease, steps = Lease(), itertools.count()

    with renewed(lease.renew, QUICK, progress=lambda: next(steps), stalled=5 * QUICK):
        lease.await_renewals(MANY)


def test_work_that_stands_still_loses_its_lease() -> None:
    lease = Lease()

    with renewed(lease.renew, QUICK, progress=lambda: lease.ask("the same"), stalled=5 * QUICK):
        lease.await_asked(MANY)

    assert 1 <= lease.renewals <= 15


def test_work_that_stood_still_and_goes_on_is_renewed_again() -> None:
    lease, step = Lease(), ["first"]

    with renewed(lease.renew, QUICK, progress=lambda: lease.ask(step[0]), stalled=5 * QUICK):
        lease.await_asked(MANY)
        before = lease.renewals
        step[0] = "second"
        lease.await_renewals(before + 1)


def test_where_progress_cannot_be_told_it_counts_as_none() -> None:
    lease, answers = Lease(), itertools.cycle([None, "far"])

    with renewed(lease.renew, QUICK, progress=lambda: lease.ask(next(answers)), stalled=5 * QUICK):
        lease.await_asked(MANY)

    assert 1 <= lease.renewals <= 16


def test_a_state_that_is_away_for_a_while_ends_no_renewing() -> None:
    lease, steps = Lease(), itertools.count()

    def renew() -> None:
        lease.renew()
        raise Unavailable("away")

    with renewed(renew, QUICK, progress=lambda: next(steps)):
        lease.await_renewals(3)
