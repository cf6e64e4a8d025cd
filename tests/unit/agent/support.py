"""A client over answers that a test scripts, with a clock that sleeps in no time."""

from collections.abc import Callable
from random import Random

import httpx
import msgspec

from lakehead.agent.gateway_client import Gateway, SendDeps, SendSettings
from lakehead.clock import SystemClock
from lakehead.wire.frame import decode_frame, frame_sha256

Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]
AGENT, TOKEN = "agent-a", "token-of-agent-a"


class SleepingClock(SystemClock):
    """Remembers how long it was told to sleep, and is that much later at once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slept: list[float] = []

    def now_ns(self) -> int:
        return 1_763_454_600_000_000_000 + int(self.seconds * 10**9)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds


class Script(httpx.AsyncBaseTransport):
    """Answers each request with the next of its answers, and then with the last for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []
        self.tokens: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(await request.aread())
        self.tokens.append(request.headers["Authorization"].removeprefix("Bearer "))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        told = answer if isinstance(answer, httpx.Response) else answer(request)
        return httpx.Response(told.status_code, headers=told.headers, stream=httpx.ByteStream(told.content))


def accepted(request: httpx.Request, **changed: object) -> httpx.Response:
    """What a gateway answers to a frame that it accepts."""
    identity = decode_frame(request.content).identity
    told = {
        "duplicate": False,
        "authority": "authority-1",
        "agent_id": identity.agent_id,
        "boot_id": identity.boot_id,
        "seq_start": identity.seq_start,
        "seq_end": identity.seq_end,
        "frame_sha256": frame_sha256(request.content),
        "accepted_at_unix_ns": 1,
    }
    return httpx.Response(200, content=msgspec.json.encode(told | changed))


def error(status: int, code: str = "", *, retry_after: str = "", **more: str) -> httpx.Response:
    body = {"error": {"code": code, "message": f"Because of {code}."}, **more}
    if status in (409, 410, 423):
        body.setdefault("authority", "authority-1")
    return httpx.Response(status, json=body, headers={"Retry-After": retry_after} if retry_after else {})


def scripted(*answers: Answer) -> tuple[Gateway, Script, SleepingClock]:
    script, clock = Script(*answers), SleepingClock()
    deps = SendDeps(clock=clock, random=Random(1), transport=script)
    gateway = Gateway(
        "http://gateway", token=TOKEN, agent_id=AGENT, boot_id="boot-1", settings=SendSettings(), deps=deps
    )
    return gateway, script, clock
