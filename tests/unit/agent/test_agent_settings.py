"""Settings of an agent that cannot be."""

import pytest

from lakehead.agent.settings import AgentSettings
from lakehead.errors import Misconfigured
from lakehead.wire.errors import InvalidIdentity


def test_an_agent_needs_an_id_and_a_gateway() -> None:
    with pytest.raises(InvalidIdentity):
        AgentSettings(agent_id="", gateways=("http://gateway",))
    with pytest.raises(Misconfigured, match="at least one"):
        AgentSettings(agent_id="a", gateways=())


@pytest.mark.parametrize(
    "wrong", [{"in_flight": 1}, {"attempt_seconds": 0}, {"pause_seconds": -1}, {"offer_again_seconds": float("nan")}]
)
def test_what_cannot_work_is_refused_by_its_name(wrong: dict[str, float]) -> None:
    [name] = wrong
    with pytest.raises(Misconfigured, match=name):
        AgentSettings(agent_id="a", gateways=("http://gateway",), **wrong)  # type: ignore[arg-type]  # one of several
