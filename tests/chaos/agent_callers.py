"""Callers that push records to agents until they are told that these are on disk, and the weather before a store."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random

import httpx

from tests.chaos.agent_checker import Given
from tests.faults.proxy import Proxy, Request, Silence
from tests.support.agent_requests import FORMS, AgentRequest
from tests.support.agents import AgentProcess

MOST_RECORDS = 12


class Sky(Proxy):
    """Between processes and their store. It is calm while one of them starts: then nothing that it waits for fails."""

    starting = 0

    async def handle(self, request: Request) -> bytes | Silence:
        return await (self._forward(request) if self.starting else super().handle(request))


@dataclass
class Calls:
    """What callers push, and how many answers they got."""

    given: Given
    answers: int = 0
    _more: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def answered(self, request: AgentRequest) -> None:
        self.given.answered |= request.ids
        self.answers += 1
        async with self._more:
            self._more.notify_all()

    async def until_more(self, answers: int) -> None:
        """Wait for so many more answers."""
        enough = self.answers + answers
        async with self._more:
            await self._more.wait_for(lambda: self.answers >= enough)


@dataclass
class Caller:
    """Pushes requests in all forms to one agent, each until it is told that it is on disk."""

    agent: AgentProcess
    name: str
    random: Random
    numbers: Iterator[int] = field(default_factory=count)
    recent: list[AgentRequest] = field(default_factory=list)
    rest_seconds: float = 0.0
    """How long it rests after each request."""

    async def push(self, calls: Calls, stop: asyncio.Event) -> None:
        async with self.agent.client() as http:
            while not stop.is_set():
                request = self._request()
                calls.given.given |= request.ids
                await self._until_answered(http, request, calls)
                await asyncio.sleep(self.rest_seconds)
                if self.recent and self.random.random() < 0.1:  # an answer that did not arrive
                    await self._until_answered(http, self.random.choice(self.recent[-50:]), calls)

    def _request(self) -> AgentRequest:
        number = next(self.numbers)
        ids = [f"{self.name}.{number}.{each}" for each in range(self.random.randint(1, MOST_RECORDS))]
        request = self.random.choice(FORMS)(ids)
        if request.may_be_sent_again:
            self.recent.append(request)
        return request

    async def _until_answered(self, http: httpx.AsyncClient, request: AgentRequest, calls: Calls) -> None:
        while True:
            try:
                response = await self.agent.post(http, request, seconds=self.random.choice([0.3, 5, 60]))
            except httpx.TransportError:
                if not request.may_be_sent_again:
                    return
                await asyncio.sleep(0.02)
                continue
            if response.is_success:
                await calls.answered(request)
                return
            assert response.status_code == 503, response.text
            assert response.headers["retry-after"]
            await asyncio.sleep(0.02)
