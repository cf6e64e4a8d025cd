"""The token of an agent, and the pause after it was refused."""

import pytest

from lakehead.agent.alerts import AlertKind, Alerts
from lakehead.agent.counts import AgentCounts
from lakehead.agent.token_pause import TokenPause
from lakehead.errors import Misconfigured
from tests.unit.agent.support import SleepingClock


class Rig:
    """A token in a file that a test writes."""

    def __init__(self, written: str = "one") -> None:
        self.file: str | Exception = written
        self.clock, self.counts = SleepingClock(), AgentCounts()
        self.alerts = Alerts(self.clock)
        self.pause = TokenPause(
            token=self._read, seconds=60.0, clock=self.clock, alerts=self.alerts, counts=self.counts
        )

    def _read(self) -> str:
        if isinstance(self.file, Exception):
            raise self.file
        return self.file


def test_a_refused_token_pauses_and_is_read_again_after_that() -> None:
    rig = Rig()
    rig.pause.refused(rig.pause.to_send_with(), "It is not known.")
    assert (rig.pause.seconds_left, rig.pause.reason, rig.counts.pauses) == (60.0, "It is not known.", 1)
    assert [alert.kind for alert in rig.alerts.shown()] == [AlertKind.PAUSED]
    rig.clock.seconds += 60
    assert (rig.pause.seconds_left, rig.pause.reason) == (0.0, "")
    rig.file = "two"

    assert rig.pause.to_send_with() == "two"
    rig.pause.worked()

    assert rig.alerts.shown() == ()


def test_a_token_that_was_replaced_already_is_used_without_a_pause() -> None:
    rig = Rig()
    used = rig.pause.to_send_with()
    rig.file = "two"

    rig.pause.refused(used, "It was revoked.")

    assert rig.pause.seconds_left == 0
    assert rig.pause.to_send_with() == "two"
    rig.pause.refused(used, "It was revoked.")
    assert rig.pause.seconds_left == 0, "an answer about the old one says nothing about the new one"


def test_refusals_of_one_moment_are_one_pause() -> None:
    rig = Rig()
    for _ in range(8):
        rig.pause.refused("one", "It is not known.")
        rig.clock.seconds += 1

    assert (rig.pause.seconds_left, rig.counts.pauses) == (52.0, 1)


@pytest.mark.parametrize("failure", [OSError("the disk is away"), Misconfigured("The file is empty.")], ids=repr)
def test_a_token_that_cannot_be_read_again_stays_and_is_told(failure: Exception) -> None:
    rig = Rig()
    rig.file = failure
    rig.pause.refused("one", "It is not known.")
    rig.clock.seconds += 60

    assert rig.pause.to_send_with() == "one"
    assert str(failure) in rig.alerts.shown()[0].text


def test_a_token_that_cannot_be_one_is_refused_when_the_agent_starts() -> None:
    with pytest.raises(Misconfigured, match="token"):
        Rig("two words")
