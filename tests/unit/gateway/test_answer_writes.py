"""The head of an answer is sent with its body, and never held back without one."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from lakehead.gateway.http_protocol import _AnswerTransport


class Sent:
    """Stands for a connection: keeps what is written to it."""

    def __init__(self, method: str = "GET") -> None:
        self.writes: list[bytes] = []
        self.ended = 0
        self.cycle = SimpleNamespace(response_started=False, scope={"method": method})
        protocol = SimpleNamespace(transport=self, loop=asyncio.get_running_loop(), end_after=self._end)
        self.answer = _AnswerTransport(cast("Any", protocol), cast("Any", self.cycle))

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return False

    def _end(self, _: object) -> None:
        self.ended = len(self.writes)


async def _next_turn() -> None:
    turned = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turned.set_result, None)
    await turned


def test_head_and_body_are_one_write_and_what_follows_another() -> None:
    async def answer() -> None:
        sent = Sent()
        sent.answer.write(b"100 ")
        assert sent.writes == [b"100 "], "what precedes an answer does not wait"
        sent.cycle.response_started = True

        sent.answer.write(b"head ")
        sent.answer.write(b"body")
        sent.answer.write(b"more")
        await _next_turn()

        assert sent.writes == [b"100 ", b"head body", b"more"]

    asyncio.run(answer())


def test_a_head_without_a_body_is_sent_in_the_next_turn_of_the_loop() -> None:
    async def answer() -> None:
        sent = Sent()
        sent.cycle.response_started = True

        sent.answer.write(b"head")
        await _next_turn()

        assert sent.writes == [b"head"]

    asyncio.run(answer())


def test_the_head_that_answers_a_head_is_sent_at_once() -> None:
    async def answer() -> None:
        sent = Sent("HEAD")
        sent.cycle.response_started = True

        sent.answer.write(b"head")

        assert sent.writes == [b"head"]

    asyncio.run(answer())


def test_a_head_is_sent_before_its_connection_is_closed() -> None:
    async def answer() -> None:
        sent = Sent()
        sent.cycle.response_started = True

        sent.answer.write(b"head")
        sent.answer.close()

        assert (sent.writes, sent.ended) == ([b"head"], 1)

    asyncio.run(answer())
