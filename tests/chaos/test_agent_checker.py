"""The checker of agents sees what is wrong: in made-up records, and of agents in which a fault was planted."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from lakehead.wire.batch_identity import BatchIdentity
from tests.chaos.agent_checker import Given, Stored, StoredFrame, faults, read_stored
from tests.faults import agent_faults
from tests.faults.gateway_failpoints import kill_gateway_at
from tests.servers.ports import free_ports
from tests.support.agent_requests import AgentRequest, json_samples
from tests.support.agents import AgentProcess, agent_config
from tests.support.async_tests import run_bounded
from tests.support.costs import Mechanism, add
from tests.support.gateways import GatewayAuthority, GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def frame(start: int, *ids: str, sha256: str = "", boot: str = "b") -> StoredFrame:
    return StoredFrame(
        BatchIdentity("a", boot, start, start + len(ids) - 1), sha256 or f"hash of {boot} {start} {ids}", ids
    )


def stored(*frames: StoredFrame, unaccepted: Sequence[StoredFrame] = (), voids: Sequence[BatchIdentity] = ()) -> Stored:
    accepted = {each.identity: each.sha256 for each in frames}
    return Stored({each.sha256: each for each in (*frames, *unaccepted)}, accepted, frozenset(voids))


GIVEN = Given(set("wxyz"), set("xyz"))
X_Y, Z = frame(0, "x", "y"), frame(2, "z")


def test_what_was_answered_and_accepted_once_is_no_fault_and_what_was_not_answered_may_be_either() -> None:
    assert faults(GIVEN, stored(X_Y, Z)) == []
    assert faults(GIVEN, stored(X_Y, frame(2, "z", "w"))) == []
    assert faults(GIVEN, stored(X_Y, frame(3, "z"), voids=[BatchIdentity("a", "b", 2, 2)])) == []
    assert faults(GIVEN, stored(X_Y, frame(0, "z", boot="c"), unaccepted=[Z])) == []


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (stored(X_Y), "z was answered, and is lost"),
        (stored(X_Y, unaccepted=[Z]), "z was answered, and is lost"),
        (stored(X_Y, Z, frame(0, "y", boot="c")), "y was accepted 2 times"),
        (stored(X_Y, frame(2, "z", "z")), "z was accepted 2 times"),
        (stored(X_Y, frame(2, "z", "q")), "q was accepted, and nobody gave it"),
        (
            stored(X_Y, Z, unaccepted=[frame(2, "z", sha256="other")]),
            "seq_start=2, seq_end=2) was sent with 2 contents",
        ),
        (stored(X_Y, frame(3, "z")), "a, boot b: nothing has the numbers 2 to 2"),
        (stored(frame(1, "x", "y"), frame(3, "z")), "a, boot b: nothing has the numbers 0 to 0"),
        (stored(X_Y, frame(1, "z")), "a, boot b: 1 to 1 overlaps what came before"),
        (
            Stored({X_Y.sha256: X_Y}, {X_Y.identity: X_Y.sha256, Z.identity: "?"}),
            "is accepted, and its frame is missing",
        ),
        (Stored({X_Y.sha256: X_Y}, {X_Y.identity: X_Y.sha256, Z.identity: X_Y.sha256}), "is accepted with a frame of"),
    ],
)
def test_the_checker_tells_what_is_lost_doubled_invented_changed_or_numbered_wrongly(found: Stored, told: str) -> None:
    assert any(told in each for each in faults(GIVEN, found)), faults(GIVEN, found)


@dataclass
class Deployment:
    """A gateway, and agents with faults."""

    authority: GatewayAuthority
    gateway: GatewayProcess

    def restart_gateway(self, killed_at: str = "") -> None:
        self.gateway.kill()
        self.gateway.before = partial(kill_gateway_at, killed_at) if killed_at else None
        self.gateway.start()

    def found(self, name: str, given: Given) -> list[str]:
        """What the checker says of the records whose ids begin with a name."""
        told: list[str] = []

        async def check() -> None:
            stored = await read_stored(self.authority.store())
            boots = {each.identity.boot_id for each in stored.frames.values() if each.ids[0].startswith(name)}
            told.extend(faults(given, stored.of(lambda one: one.boot_id in boots)))

        run_bounded(check())
        return told


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    [port] = free_ports(1)
    authority = GatewayAuthority(
        tmp_path_factory.mktemp("gateway"), None, ingest={"requests_per_second": None}, ingest_listener={"port": port}
    )
    made = Deployment(authority, authority.gateway("gateway").start())
    yield made
    made.gateway.kill()


PLANTED: Mapping[Callable[[], None], tuple[str, str]] = {
    agent_faults.answers_early: ("", "was answered, and is lost"),
    agent_faults.forgets_requests: ("", "was accepted 2 times"),
    agent_faults.deletes_before_the_answer: ("before blob", "was answered, and is lost"),
    agent_faults.changes_resends: ("before answer", "was sent with 2 contents"),
    agent_faults.uses_its_boot_again: ("", "was sent with 2 contents"),
    agent_faults.drops_conflicts: ("", "was answered, and is lost"),
}
"""Of each fault the moment at which a gateway is killed so that it does harm, and what is told of it."""


def push(agent: AgentProcess, request: AgentRequest, given: Given) -> None:
    given.given |= request.ids
    assert agent.send(request).is_success
    given.answered |= request.ids


def two_starts(deployment: Deployment, folder: Path, planted: Callable[[], None] | None, moment: str) -> list[str]:
    """What is found after a request, a kill, the same request again, and another one."""
    name = planted.__name__ if planted else f"sound {moment}"
    first, second = (json_samples([f"{name}.{number}.{each}" for each in range(30)]) for number in range(2))
    config = agent_config(
        folder / "agent", "agent", deployment.authority.token, [deployment.gateway.ingest], batch_seconds=0.1
    )
    agent, given = AgentProcess(config, {}, folder / "agent.log", before=planted), Given()
    if moment:
        deployment.restart_gateway(moment)
    try:
        push(agent.start(), first, given)
        if moment:
            assert deployment.gateway.wait() == -signal.SIGKILL
            deployment.restart_gateway()
        if planted is not agent_faults.answers_early:
            agent.flush()
        agent.kill()
        add(Mechanism.KILLS)
        agent.start()
        push(agent, first, given)
        push(agent, second, given)
        agent.flush()
    finally:
        agent.kill()
    return deployment.found(name, given)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda each: each.__name__)
def test_a_fault_that_is_planted_in_an_agent_is_seen(
    deployment: Deployment, tmp_path: Path, planted: Callable[[], None]
) -> None:
    moment, told = PLANTED[planted]

    found = two_starts(deployment, tmp_path, planted, moment)

    assert any(told in each for each in found), found


@pytest.mark.parametrize("moment", ["", "before answer"])
def test_without_a_fault_nothing_is_seen(deployment: Deployment, tmp_path: Path, moment: str) -> None:
    assert two_starts(deployment, tmp_path, None, moment) == []
