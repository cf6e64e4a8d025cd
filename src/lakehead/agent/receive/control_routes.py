"""The routes by which people and commands look at a running agent, and operate it."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Protocol, TypeAlias
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response

from lakehead.agent.framed_batch import FramedBatch
from lakehead.agent.parked import ParkedBatch
from lakehead.agent.receive.refusals import ErrorCode, Refusal
from lakehead.agent.spool_entry import SpoolEntry
from lakehead.agent.status import AgentStatus, Flushed
from lakehead.wire.record_schemas import FrameKind

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PARKED = "/v1/parked/"
_FLUSH_SECONDS = 60.0
Query: TypeAlias = Mapping[str, str]
Methods: TypeAlias = Mapping[str, Callable[[Query], Awaitable[Response]]]


class ParkedList(Protocol):
    """The batches of an agent that were refused or are conflicts."""

    def list(self) -> Sequence[ParkedBatch]:
        """Return all of them, by number."""
        ...

    async def drop(self, numbers: Collection[int]) -> Sequence[ParkedBatch]:
        """Remove batches for good, and return those that were there."""
        ...

    def offer_now(self) -> None:
        """Offer all of them again without waiting for the time."""
        ...


class ParkedFrames(Protocol):
    """Where their frames are."""

    def parked(self) -> Sequence[SpoolEntry]:
        """Return the entries that are parked, by number."""
        ...

    async def read(self, entry: SpoolEntry) -> FramedBatch | None:
        """Return the batch of an entry; None if it is not there any more, or damaged."""
        ...


class ControlledAgent(Protocol):
    """An agent as its operator sees it."""

    def status(self) -> AgentStatus:
        """Return how the agent is."""
        ...

    async def flush(self, timeout_seconds: float | None = None) -> Flushed:
        """Wait until all that was given before is accepted or parked, at most so long."""
        ...

    @property
    def parked(self) -> ParkedList:
        """The batches that were refused or are conflicts."""
        ...

    @property
    def spool(self) -> ParkedFrames:
        """What is kept on disk."""
        ...


@dataclass(frozen=True, slots=True)
class ControlRoute:
    """A route that carries no records."""

    name: str
    """Its path, for metrics."""

    methods: Methods
    """What each method does."""


@dataclass(frozen=True, slots=True)
class ControlRoutes:
    """Answers requests that carry no records."""

    agent: ControlledAgent
    metrics_text: Callable[[], bytes]
    flush_seconds: float
    """The longest that a flush may take."""

    def find(self, path: str) -> ControlRoute | None:
        """Return the route of a path; None if there is none."""
        number = path.removeprefix(_PARKED)
        if number != path and number.isascii() and number.isdigit() and len(number) <= 20:
            return ControlRoute(f"{_PARKED}{{number}}", self._of_parked(number))
        methods: Methods | None = {
            "/healthz": {"GET": self._healthz},
            "/metrics": {"GET": self._metrics},
            "/v1/status": {"GET": self._status},
            "/v1/parked": {"GET": self._list_parked},
            "/v1/parked/retry": {"POST": self._retry_parked},
            "/v1/flush": {"POST": self._flush},
        }.get(path)
        return None if methods is None else ControlRoute(path, methods)

    def _of_parked(self, number: str) -> Methods:

        async def show(query: Query) -> Response:
            del query
            entry, batch = await self._parked(int(number))
            return _json({**_shown(ParkedBatch.of(entry)), "frame_sha256": batch.sha256})

        async def drop(query: Query) -> Response:
            meant = query.get("sha256", "")
            entry, batch = await self._parked(int(number))
            if batch.sha256 != meant.lower():
                raise Refusal(
                    ErrorCode.HASH_MISMATCH,
                    f"The frame of the parked batch {entry.number} has the hash {batch.sha256}. Give it as `sha256`, "
                    "so that no other batch is dropped.",
                )
            await self.agent.parked.drop([entry.number])
            return _json({**_shown(ParkedBatch.of(entry)), "frame_sha256": batch.sha256})

        return {"GET": show, "DELETE": drop}

    async def _parked(self, number: int) -> tuple[SpoolEntry, FramedBatch]:
        spool = self.agent.spool
        entry = next((each for each in spool.parked() if each.number == number), None)
        batch = None if entry is None else await spool.read(entry)
        if entry is None or batch is None:
            raise Refusal(ErrorCode.NOT_FOUND, f"There is no parked batch {number}. `GET /v1/parked` lists them.")
        return entry, batch

    async def _healthz(self, query: Query) -> Response:
        del query
        return Response("ok\n", media_type="text/plain")

    async def _metrics(self, query: Query) -> Response:
        del query
        return Response(self.metrics_text(), headers={"Content-Type": _METRICS_TYPE})

    async def _status(self, query: Query) -> Response:
        del query
        status = self.agent.status()
        told = {each.name: plain(getattr(status, each.name)) for each in fields(status)}
        return _json(told | {"parked": [_shown(each) for each in status.parked]})

    async def _list_parked(self, query: Query) -> Response:
        del query
        return _json({"parked": [_shown(each) for each in self.agent.parked.list()]})

    async def _retry_parked(self, query: Query) -> Response:
        del query
        self.agent.parked.offer_now()
        return _json({"parked": [_shown(each) for each in self.agent.parked.list()]})

    async def _flush(self, query: Query) -> Response:
        flushed = await self.agent.flush(self._seconds(query.get("timeout_seconds")))
        told = {
            "accepted": flushed.is_accepted,
            "waiting": flushed.waiting,
            "parked": [_shown(each) for each in flushed.parked],
            "damaged": flushed.damaged,
        }
        # What waits is sent again by asking again; what is parked or damaged needs an operator.
        return _json(told, status=200 if flushed.is_accepted else 503 if flushed.waiting else 409)

    def _seconds(self, given: str | None) -> float:
        try:
            seconds = _FLUSH_SECONDS if given is None else float(given)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= self.flush_seconds:
            raise Refusal(ErrorCode.BAD_REQUEST, f"timeout_seconds must be from 0 to {self.flush_seconds:g}.")
        return seconds


def query_of(query_string: bytes) -> Query:
    """Return the parameters of a request. Of one that is there twice, the last counts."""
    return dict(parse_qsl(query_string.decode("latin-1")))


def plain(value: object) -> object:
    """Return records as JSON has them. A kind of records is told by its name."""
    match value:
        case FrameKind():
            return value.name.lower()
        case Enum():
            return value.value
        case Mapping():
            return {plain(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _ if is_dataclass(value):
            return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
        case _:
            return value


def _shown(batch: ParkedBatch) -> dict[str, object]:
    identity = batch.identity
    return {
        "number": batch.number,
        "kind": plain(batch.kind),
        "agent_id": identity.agent_id,
        "boot_id": identity.boot_id,
        "seq_start": identity.seq_start,
        "seq_end": identity.seq_end,
        "bytes": batch.size,
        "code": batch.code,
        "reason": batch.reason,
    }


def _json(told: object, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(told), status, media_type="application/json")
