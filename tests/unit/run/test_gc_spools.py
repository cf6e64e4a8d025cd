"""What garbage collection makes of each answer of a gateway with a spool."""

import httpx
import msgspec
import pytest

from lakehead.accept.spooled_batch import IdentityInSpool
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.maintain.garbage_orphans import SpoolOutOfReach
from lakehead.run.gc_spools import HttpSpools
from lakehead.wire.authority_records import OpenSpool
from lakehead.wire.batch_identity import BatchIdentity
from tests.support.async_tests import async_test
from tests.unit.gateway.spool_gateway import SpoolGateway
from tests.unit.gateway.support import client
from tests.unit.wire.frames import IDENTITY

SPOOL = OpenSpool(spool_id="spool-1", collector_id="g", address="http://gateway", opened_at_unix_ns=1)
OTHER = BatchIdentity("agent-a", "boot-1", 1, 2)


ADMIN = "admin-token"


def spools(http: httpx.AsyncClient, token: str | None = ADMIN) -> HttpSpools:
    return HttpSpools(http=http, token=token, seconds=30)


@async_test
async def test_what_a_spool_has_is_told_and_cannot_become_void_and_the_rest_can() -> None:
    gateway = SpoolGateway()
    await gateway.post()
    async with client(gateway.private) as http:
        reached = spools(http)
        await reached.check(SPOOL)
        assert [await reached.holds(SPOOL, each) for each in (IDENTITY, OTHER)] == [True, False]
        with pytest.raises(IdentityInSpool):
            await reached.void(SPOOL, IDENTITY)
        await reached.void(SPOOL, OTHER)
        await reached.void(SPOOL, OTHER)
    await gateway.close()
    assert any("voids/" in each for each in gateway.spool_disk.created)


@async_test
async def test_another_spool_at_the_address_is_out_of_reach() -> None:
    gateway = SpoolGateway()
    another = msgspec.structs.replace(SPOOL, spool_id="spool-2")
    async with client(gateway.private) as http:
        for ask in (spools(http).check(another), spools(http).void(another, OTHER)):
            with pytest.raises(SpoolOutOfReach):
                await ask
        with pytest.raises(SpoolOutOfReach):
            await spools(http).holds(another, OTHER)
    await gateway.close()


@pytest.mark.parametrize("token", [None, "wrong", "view-token", "operate-token"])
@async_test
async def test_the_token_must_be_an_admins(token: str | None) -> None:
    gateway = SpoolGateway()
    async with client(gateway.private) as http:
        with pytest.raises(Misconfigured, match="role admin"):
            await spools(http, token).void(SPOOL, OTHER)
    await gateway.close()


@async_test
async def test_no_answer_and_strange_answers_are_no_voids() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        match request.url.host:
            case "silent":
                raise httpx.ReadTimeout("no answer", request=request)
            case "refused":
                raise httpx.ConnectError("refused", request=request)
            case "busy":
                return httpx.Response(503, json={"error": {"code": "store_unavailable"}})
            case "page":
                return httpx.Response(200, text="<html>We are back soon</html>")
            case "damaged":
                return httpx.Response(200, content=b'{"id": "\xff", "spool_id": "\xff"}')
            case "another":
                return httpx.Response(200, json={"id": "of-another-batch"})
            case _:
                return httpx.Response(404, text="a web server")

    def at(host: str) -> OpenSpool:
        return msgspec.structs.replace(SPOOL, address=f"http://{host}")

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        for host, error in (("silent", OutcomeUnknown), ("refused", Unavailable), ("busy", Unavailable)):
            with pytest.raises(error):
                await spools(http).void(at(host), OTHER)
        with pytest.raises(Unavailable, match="404"):
            await spools(http).void(at("web"), OTHER)
        for host in ("page", "damaged", "another"):
            with pytest.raises(SpoolOutOfReach, match="no gateway"):
                await spools(http).void(at(host), OTHER)
        for host in ("silent", "refused", "busy", "web", "page", "damaged", "another"):
            with pytest.raises(SpoolOutOfReach):
                await spools(http).check(at(host))
            with pytest.raises(SpoolOutOfReach):
                await spools(http).holds(at(host), OTHER)
