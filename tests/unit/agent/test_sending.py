"""How an agent sends its spool: over restarts, over several gateways, and past batches that nobody can answer."""

import asyncio
from pathlib import Path

import httpx
import pytest

from lakehead.agent.alerts import AlertKind
from lakehead.buffer.errors import InvalidCall
from lakehead.clock import SystemClock
from lakehead.wire.record_schemas import FrameKind
from tests.support.async_tests import async_test
from tests.unit.agent.agents import FLUSH_SECONDS, agent, identities, sample, until, values
from tests.unit.agent.support import Script, accepted, error

DOWN = httpx.ConnectError("refused")


class Silent(Script):
    """A gateway that takes requests and never answers."""

    def __init__(self) -> None:
        super().__init__(accepted)
        self.is_asked = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await super().handle_async_request(request)
        self.is_asked.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # never done


@async_test
async def test_what_was_not_accepted_is_sent_after_a_restart_in_the_same_bytes(tmp_path: Path) -> None:
    gateway = Script(error(503, "stopping"))
    async with agent(tmp_path, gateway) as one:
        for value in range(3):
            await one.add_samples([sample(value)])
            await one.spool.seal_now()
        await one.add_samples([sample(3)])
        first_boot = one.status().spool.boots[FrameKind.SAMPLES]
        await until(lambda: len(set(gateway.bodies)) >= one.settings.in_flight - 1)
        assert (await one.flush(0.0)).waiting == 4
    before = set(gateway.bodies)

    gateway = Script(accepted)
    async with agent(tmp_path, gateway) as two:
        await two.add_samples([sample(4)])
        assert (await two.flush(FLUSH_SECONDS)).is_accepted

    assert before <= set(gateway.bodies)
    sent = {identities([body])[0]: values(body) for body in gateway.bodies}
    assert [found for each, found in sorted(sent.items()) if each.boot_id == first_boot] == [[0], [1], [2], [3]]
    [new] = [each for each in sent if each.boot_id != first_boot]
    assert (new.seq_start, sent[new]) == (0, [4])


@async_test
async def test_an_agent_stops_although_its_gateways_never_answer_and_goes_on_at_the_next_start(tmp_path: Path) -> None:
    silent = Silent()
    async with agent(tmp_path, silent) as one:
        await one.add_samples([sample(1)])
        await silent.is_asked.wait()
        await one.add_samples([sample(2)])
        async with asyncio.timeout(FLUSH_SECONDS):
            await one.close()
        await one.close()
        with pytest.raises(InvalidCall):
            await one.add_samples([sample(3)])
        with pytest.raises(InvalidCall):
            one.status()

    gateway = Script(accepted)
    async with agent(tmp_path, gateway) as two:
        assert (await two.flush(FLUSH_SECONDS)).is_accepted
    assert silent.bodies[0] in gateway.bodies
    assert sorted(value for body in gateway.bodies for value in values(body)) == [1.0, 2.0]


@async_test
async def test_a_dead_gateway_costs_an_attempt_now_and_then_and_no_batch(tmp_path: Path) -> None:
    dead, alive = Script(DOWN), Script(accepted)
    for gateways in ((dead, alive), (alive, dead)):
        async with agent(tmp_path, *gateways) as one:
            for value in range(10):
                await one.add_samples([sample(value)])
                assert (await one.flush(FLUSH_SECONDS)).is_accepted
            shown = one.status().gateways
            assert [each.is_used for each in shown] == [each is alive for each in gateways]

    assert len(alive.bodies) == 20
    assert 1 <= len(dead.bodies) <= 2, "an agent stays with the gateway that works"


@async_test
async def test_entries_are_sent_in_their_order_and_not_more_at_once_than_allowed(tmp_path: Path) -> None:
    at_once, most = 0, 0
    are_three = asyncio.Event()

    class Counting(Script):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            if most == 3:
                are_three.set()
            await are_three.wait()
            await asyncio.sleep(0)
            at_once -= 1
            return await super().handle_async_request(request)

    async with agent(tmp_path, Script(DOWN)) as one:
        for value in range(12):
            await one.add_samples([sample(value)])
            await one.spool.seal_now()
    gateway = Counting(accepted)
    async with agent(tmp_path, gateway, in_flight=3) as one:
        assert (await one.flush(FLUSH_SECONDS)).is_accepted

    assert most == 3
    found = [value for body in gateway.bodies for value in values(body)]
    assert all(abs(place - value) < 3 for place, value in enumerate(found))


@pytest.mark.parametrize("poisoned", [1, 4, 9])
@pytest.mark.parametrize(
    "answer", [error(500, "internal_error"), httpx.ReadTimeout("slow"), httpx.Response(404)], ids=repr
)
@async_test
async def test_batches_that_nobody_can_answer_hold_up_no_others(
    answer: httpx.Response | Exception, poisoned: int, tmp_path: Path
) -> None:
    def some(request: httpx.Request) -> httpx.Response:
        if values(request.content)[0] >= poisoned:
            return accepted(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with agent(tmp_path, Script(DOWN)) as one:
        for value in range(12):
            await one.add_samples([sample(value)])
            await one.spool.seal_now()
    async with agent(tmp_path, Script(some), in_flight=2) as one:
        async with asyncio.timeout(FLUSH_SECONDS):
            while len(one.spool.waiting()) > poisoned:
                await one.spool.wait_for_change()

        assert (one.counts.accepted, one.status().parked) == (12 - poisoned, ())


class HastyClock(SystemClock):
    """Time passes with every look at it."""

    looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return super().monotonic() + self.looks / 2_000


@async_test
async def test_no_time_passes_unseen_between_finding_that_it_is_too_early_and_going_to_sleep(tmp_path: Path) -> None:
    def some(request: httpx.Request) -> httpx.Response:
        return accepted(request) if values(request.content)[0] or len(gateway.bodies) > 50 else error(500)

    gateway = Script(some)
    async with agent(tmp_path, gateway, clock=HastyClock()) as one:
        for value in range(2):
            await one.add_samples([sample(value)])
            await one.spool.seal_now()
        assert (await one.flush(FLUSH_SECONDS)).is_accepted
        gateway.answers = [*[error(503, "stopping")] * 50, accepted]
        await one.add_samples([sample(2)])
        assert (await one.flush(FLUSH_SECONDS)).is_accepted


@async_test
async def test_a_gateway_is_not_avoided_for_a_batch_that_is_to_blame(tmp_path: Path) -> None:
    def some(request: httpx.Request) -> httpx.Response:
        return error(500, "internal_error") if values(request.content) == [0.0] else accepted(request)

    async with agent(tmp_path, Script(some)) as one:
        await one.add_samples([sample(0)])
        for value in range(1, 30):
            await one.spool.seal_now()
            await one.add_samples([sample(value)])
        await until(lambda: one.counts.accepted == 29 and one.counts.failed_attempts > 20)

        assert one.status().gateways[0].last_error == ""


@async_test
async def test_the_first_receipt_pins_the_authority_also_over_a_restart(tmp_path: Path) -> None:
    foreign = Script(lambda request: accepted(request, authority="authority-2"))
    async with agent(tmp_path, Script(accepted)) as one:
        assert one.status().authority == ""
        await one.add_samples([sample(1)])
        await one.flush(FLUSH_SECONDS)
        assert one.status().authority == "authority-1"

    async with agent(tmp_path, foreign) as two:
        assert two.status().authority == "authority-1"
        await two.add_samples([sample(2)])
        await until(lambda: two.counts.foreign_receipts > 1)
        flushed = await two.flush(0.0)

        assert (flushed.waiting, flushed.parked, two.counts.accepted) == (1, (), 0)
        assert two.counts.foreign_receipts > 0
        kinds = {alert.kind for alert in two.status().alerts}
        assert kinds == {AlertKind.FOREIGN_AUTHORITY, AlertKind.NO_GATEWAY}
        assert "authority-2" in two.status().gateways[0].last_error

    async with agent(tmp_path, foreign, Script(accepted)) as three:
        assert (await three.flush(FLUSH_SECONDS)).is_accepted


@async_test
async def test_an_authority_that_is_set_wins(tmp_path: Path) -> None:
    for authority in ("authority-1", "authority-2"):
        gateway = Script(lambda request, authority=authority: accepted(request, authority=authority))  # type: ignore[misc]
        async with agent(tmp_path, gateway, authority=authority) as one:
            await one.add_samples([sample(1)])
            assert (await one.flush(FLUSH_SECONDS)).is_accepted
            assert one.status().authority == authority


@async_test
async def test_of_two_first_receipts_one_decides(tmp_path: Path) -> None:
    """What answers is a balancer over two deployments."""
    both = asyncio.Barrier(2)
    authorities = iter(["authority-1", "authority-2"])

    class Balancer(Script):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await super().handle_async_request(request)
            if (authority := next(authorities, None)) is None:
                raise DOWN
            await both.wait()
            return httpx.Response(200, stream=httpx.ByteStream(accepted(request, authority=authority).content))

    async with agent(tmp_path, Script(DOWN)) as one:
        for value in range(2):
            await one.add_samples([sample(value)])
            await one.spool.seal_now()
    async with agent(tmp_path, Balancer(accepted)) as one:
        async with asyncio.timeout(FLUSH_SECONDS):
            while len(one.spool.waiting()) == 2:
                await one.spool.wait_for_change()
        await until(lambda: one.counts.foreign_receipts > 0)

        assert one.status().authority in ("authority-1", "authority-2")
        assert (one.counts.accepted, one.counts.foreign_receipts, one.status().spool.entries) == (1, 1, 1)


@async_test
async def test_that_no_gateway_answers_is_told_until_one_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lakehead.agent")
    gateway = Script(DOWN, DOWN, accepted)
    async with agent(tmp_path, gateway) as one:
        await one.add_samples([sample(1)])
        await until(lambda: bool(one.status().alerts) or one.counts.accepted == 1)
        assert (await one.flush(FLUSH_SECONDS)).is_accepted
        assert one.status().alerts == ()

    told = [each.getMessage() for each in caplog.records]
    assert told[0].startswith("No gateway: No gateway takes batches")
    assert told[-1] == "No gateway: over."
