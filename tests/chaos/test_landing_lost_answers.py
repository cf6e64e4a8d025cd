"""A catalog whose answer to a commit is lost, whether or not it was made: what the table says decides."""

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import pytest

from lakehead.lake.iceberg_table import IcebergTable
from tests.chaos.landing_child import Order, Place, assert_landed_once, carry_out, landings_of, make_table
from tests.faults.proxy import Proxy, Request, Silence, answer, served
from tests.lakehouse import Lakehouse
from tests.servers.seaweed import Seaweed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

REST = "rest"


class Loss(Enum):
    """What happens to the first commit."""

    NOT_MADE = "the connection is lost before the request arrives"
    MADE = "the connection is lost after the commit was made"
    REFUSED_NOT_MADE = "503, and it was not made"
    REFUSED_MADE = "503, though it was made"
    CONFLICT_MADE = "409, though it was made"
    MADE_AND_OTHERS_WENT_ON = "the connection is lost, and others land before we look"
    MADE_BEFORE_THE_SECOND = "the request arrives after we have looked, before our second one"
    MADE_AFTER_THE_SECOND = "the request arrives after our second one"


FORWARDED = dict.fromkeys(Loss, 1) | {Loss.MADE_BEFORE_THE_SECOND: 2, Loss.MADE_AFTER_THE_SECOND: 2}
"""How many of our commits reach the catalog."""


class Between:
    """A proxy before a REST catalog. It does something to the first commit that comes, and counts what it forwards."""

    def __init__(self, upstream: str) -> None:
        self._proxy = Proxy(upstream, None)
        self._loss: Loss | None = None
        self._held: Request | None = None
        self._late: Loss | None = None
        self._others: Callable[[], object] = lambda: None
        self.commits: Counter[int] = Counter()
        """The catalog's answers to commits, by status."""

    def lose(self, loss: Loss, others: Callable[[], object]) -> None:
        self._loss, self._others = loss, others
        self.commits.clear()

    async def handle(self, request: Request) -> bytes | Silence:
        if request.method != "POST" or "/tables/" not in request.target:
            return await self._proxy.handle(request)
        loss, self._loss = self._loss, None
        match loss:
            case None:
                return await self._with_held(request)
            case Loss.NOT_MADE:
                return Silence.HANG_UP
            case Loss.REFUSED_NOT_MADE:
                return answer(503)
            case Loss.MADE_BEFORE_THE_SECOND | Loss.MADE_AFTER_THE_SECOND:
                self._held, self._late = request, loss
                return Silence.HANG_UP
            case Loss.MADE:
                await self._forward(request)
                return Silence.HANG_UP
            case Loss.REFUSED_MADE:
                await self._forward(request)
                return answer(503)
            case Loss.CONFLICT_MADE:
                await self._forward(request)
                return answer(409)
            case Loss.MADE_AND_OTHERS_WENT_ON:
                await self._forward(request)
                await asyncio.to_thread(self._others)
                return Silence.HANG_UP

    async def _with_held(self, request: Request) -> bytes | Silence:
        held, self._held = self._held, None
        if held is None:
            return await self._forward(request)
        if self._late is Loss.MADE_BEFORE_THE_SECOND:
            await self._forward(held)
            return await self._forward(request)
        given = await self._forward(request)
        await self._forward(held)
        return given

    async def _forward(self, request: Request) -> bytes | Silence:
        given = await self._proxy.handle(request)
        assert isinstance(given, bytes)
        self.commits[int(given.split(b" ", 2)[1])] += 1
        return given


@pytest.mark.parametrize("loss", Loss, ids=lambda loss: str(loss.value))
def test_a_landing_whose_answer_is_lost_is_made_once(loss: Loss, seaweed: Seaweed, tmp_path: Path) -> None:
    between = Between(seaweed.rest_catalog_uri)
    with served(between.handle) as address:
        direct = Place(tmp_path, f"lost_{loss.name.lower()}", REST, {REST: seaweed.rest_catalog()})
        place = Place(tmp_path, direct.table, REST, {REST: {**seaweed.rest_catalog(), "uri": address}})
        lakehouse, others = place.open(), direct.open()
        table = make_table(lakehouse, place)
        carry_out(lakehouse, table, Order(("earlier",)))
        between.lose(loss, lambda: land_another(others, others.table(direct.table, catalog=REST)))

        landing = carry_out(lakehouse, table, Order(("a", "b")))

        if loss is Loss.MADE_AND_OTHERS_WENT_ON:
            assert_landed_once(lakehouse, table, ["earlier", "a", "b", "another"])
            assert landing is None  # others have settled it: nothing was left to do
        else:
            assert_landed_once(lakehouse, table, ["earlier", "a", "b"])
            assert landing == landings_of(table)[-1].landing
        assert between.commits[200] == 1
        assert between.commits.total() == FORWARDED[loss], between.commits
        lakehouse.close()
        others.close()


def land_another(lakehouse: Lakehouse, table: IcebergTable) -> None:
    carry_out(lakehouse, table, Order(("another",), owner="another"))
