"""Which gateway a batch is sent to."""

from dataclasses import dataclass, field
from random import Random

import pytest

from lakehead.agent.gateway_answers import Answered, TryAgain
from lakehead.agent.gateway_choice import ChosenGateway, GatewayChoice
from lakehead.retry import PollInterval
from tests.unit.agent.support import AGENT, SleepingClock

BACKOFF = PollInterval(first_seconds=0.2, cap_seconds=30.0, growth=2.0)


@dataclass
class Named:
    name: str
    posted: list[bytes] = field(default_factory=list)

    async def post(self, body: bytes, token: str) -> Answered | TryAgain:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class Rig:
    def __init__(self, gateways: int = 2, agent_id: str = AGENT) -> None:
        self.clock = SleepingClock()
        self.choice = GatewayChoice(
            connections=[Named(f"gateway {number}") for number in range(gateways)],
            agent_id=agent_id,
            clock=self.clock,
            random=Random(1),
            backoff=BACKOFF,
            longest_seconds=600.0,
        )

    def chosen(self, rather_not: ChosenGateway | None = None) -> ChosenGateway:
        found = self.choice.choose(rather_not=rather_not)
        assert found is not None
        return found

    def fail(self, gateway: ChosenGateway, *, after_seconds: float = 0.0) -> None:
        self.choice.failed(gateway, "503", begun=self.clock.monotonic(), after_seconds=after_seconds)


def test_one_gateway_is_used_until_it_fails_and_then_the_next() -> None:
    rig = Rig()
    first = rig.chosen()
    rig.choice.answered(first)
    assert rig.chosen() is first

    rig.fail(first)

    second = rig.chosen()
    assert second is not first
    rig.clock.seconds += 1_000
    assert rig.chosen() is second, "the one that works is kept, also when the other one is avoided no more"


def test_agents_begin_with_different_gateways_and_each_always_with_the_same() -> None:
    names = [[Rig(agent_id=f"agent {agent}").chosen().connection.name for _ in range(2)] for agent in range(50)]

    assert all(first == again for first, again in names)
    assert {first for first, _ in names} == {"gateway 0", "gateway 1"}


def test_a_gateway_that_keeps_failing_is_avoided_for_growing_times_drawn_by_lot() -> None:
    rig = Rig(gateways=1)
    waits = []
    for _ in range(12):
        rig.fail(rig.chosen())
        assert rig.choice.choose() is None
        waits.append(rig.choice.seconds_left)
        rig.clock.seconds += waits[-1]

    for failures, wait in enumerate(waits):
        limit = min(30.0, 0.2 * 2**failures)
        assert limit / 2 <= wait <= limit
    assert len(set(waits)) == len(waits)


def test_an_answer_ends_the_back_off_and_the_next_failure_begins_small() -> None:
    rig = Rig(gateways=1)
    for _ in range(8):
        rig.fail(rig.chosen())
        rig.clock.seconds += rig.choice.seconds_left
    gateway = rig.chosen()
    rig.choice.answered(gateway)
    assert rig.choice.status()[0].last_error == ""

    rig.fail(gateway)

    assert rig.choice.seconds_left <= 0.2


def test_attempts_that_fail_together_count_once() -> None:
    rig = Rig(gateways=1)
    gateway, begun = rig.chosen(), rig.clock.monotonic()
    rig.clock.seconds += 5
    for _ in range(10):
        rig.choice.failed(gateway, "timeout", begun=begun)

    assert rig.choice.seconds_left <= 0.2


@pytest.mark.parametrize(("told", "least"), [(7.0, 7.0), (10**9, 600.0)])
def test_a_gateway_that_says_how_long_is_avoided_so_long_within_reason(told: float, least: float) -> None:
    rig = Rig(gateways=1)

    rig.fail(rig.chosen(), after_seconds=told)

    assert least <= rig.choice.seconds_left <= least + 0.2


def test_what_a_gateway_said_holds_although_it_then_answers_another_batch() -> None:
    rig = Rig(gateways=1)
    gateway = rig.chosen()
    rig.fail(gateway, after_seconds=7)

    rig.choice.answered(gateway)

    assert rig.choice.choose() is None
    assert rig.choice.seconds_left >= 7


def test_a_batch_that_failed_goes_to_another_gateway_if_there_is_one() -> None:
    rig = Rig()
    first = rig.chosen()

    second = rig.chosen(rather_not=first)

    assert second is not first
    assert rig.chosen() is first, "others stay where they are"
    rig.fail(second)
    assert rig.chosen(rather_not=first) is first


def test_the_gateway_that_answers_is_used_while_others_fail() -> None:
    rig = Rig()
    first = rig.chosen()
    rig.fail(first)
    second = rig.chosen()
    rig.fail(second)
    rig.clock.seconds += 1

    rig.choice.answered(second)

    rig.clock.seconds += 1
    assert rig.chosen() is second
    shown = {each.name: each for each in rig.choice.status()}
    assert shown[second.connection.name].is_used
    assert (shown[first.connection.name].is_used, shown[first.connection.name].last_error) == (False, "503")
