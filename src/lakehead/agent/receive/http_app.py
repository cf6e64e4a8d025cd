"""The agent's receivers over HTTP. A request is answered when its records are on disk, and never before."""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lakehead.agent.metrics import AgentMetrics
from lakehead.agent.receive.admission import Admission, Admitted
from lakehead.agent.receive.callers import check_caller
from lakehead.agent.receive.content_encoding import decompressed, decompressed_at_once
from lakehead.agent.receive.control_routes import ControlledAgent, ControlRoute, ControlRoutes, query_of
from lakehead.agent.receive.data_routes import BodyForm, DataRoute, data_routes
from lakehead.agent.receive.decoded import BadBody, BodyTooLarge, Decoded
from lakehead.agent.receive.ports import Recorder
from lakehead.agent.receive.receiver_settings import ReceiverSettings
from lakehead.agent.receive.refusals import ErrorCode, Refusal, json_refusal
from lakehead.agent.receive.request_body import RequestBody, SenderGone, declared_length
from lakehead.agent.receive.request_ids import idempotency_key, request_id, sender_of
from lakehead.agent.spool_errors import KeyReused, RecordsTooLarge, SpoolFull, SpoolUnusable
from lakehead.clock import Clock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.telemetry.limited_log import LimitedLog
from lakehead.wire.request_id import RequestId

LOG = logging.getLogger(__name__)
_CLOSE = {"Connection": "close"}


@dataclass(slots=True, kw_only=True)
class ReceiverApp:
    """The ASGI application of an agent. `close` ends its threads."""

    recorder: Recorder
    agent: ControlledAgent
    metrics: AgentMetrics
    clock: Clock
    settings: ReceiverSettings = field(default_factory=ReceiverSettings)
    _routes: dict[str, DataRoute] = field(init=False)
    _control: ControlRoutes = field(init=False)
    _admission: Admission = field(init=False)
    _threads: ThreadPoolExecutor = field(init=False)
    _log: LimitedLog = field(init=False)

    def __post_init__(self) -> None:
        """Start with nothing under way."""
        settings = self.settings
        self._routes = dict(data_routes(settings.records))
        self._control = ControlRoutes(self.agent, self.metrics.text, settings.flush_seconds)
        self._admission = Admission(settings)
        self._threads = ThreadPoolExecutor(settings.decode_threads, thread_name_prefix="lakehead-decode")
        self._log = LimitedLog(log=LOG, clock=self.clock)
        self.metrics.watch_receivers(self._admission)

    def close(self) -> None:
        """End the threads that decode bodies when they have done what they were given."""
        self._threads.shutdown(wait=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens."""
        if scope["type"] != "http":
            return
        began = self.clock.monotonic()
        headers = Headers(scope=scope)
        route = self._routes.get(scope["path"])
        control = self._control.find(scope["path"]) if route is None else None
        try:
            check_caller(scope, headers, hosts=self.settings.hosts, origins=self.settings.origins)
            if route is not None:
                response = await self._take(scope, headers, receive, route)
            else:
                response = await self._answer_control(scope, control)
        except SenderGone:
            self.metrics.disconnected.labels(scope["path"]).inc()
            return
        except Refusal as refusal:
            response = self._refused(scope, headers, route, refusal)
        except asyncio.CancelledError:  # the time for stopping is over, and the sender should know
            stopping = Refusal(ErrorCode.STOPPING, "The agent stops. Send the same again.")
            response = self._refused(scope, headers, route, stopping)
        except Exception:
            LOG.exception("A request failed for a reason that is not expected. It is answered 503.")
            failed = Refusal(ErrorCode.INTERNAL_ERROR, "The agent failed. Its log says why. Send the same again later.")
            response = self._refused(scope, headers, route, failed)
        known = scope["path"] if route is not None else control.name if control is not None else "other"
        self.metrics.requests.labels(known, str(response.status_code)).inc()
        if route is not None:
            self.metrics.request_seconds.labels(known).observe(self.clock.monotonic() - began)
        await response(scope, receive, send)

    def _refused(self, scope: Scope, headers: Headers, route: DataRoute | None, refusal: Refusal) -> Response:
        if refusal.status == 503:
            refusal.headers["Retry-After"] = str(self.settings.retry_after_seconds)
            self._log.warning("A request was answered 503: %s %s", scope["path"], refusal.message)
        if "expect" in headers:  # the body may never come, and what follows could be taken for it
            refusal.headers.update(_CLOSE)
        return json_refusal(refusal) if route is None else route.refuse(headers, refusal)

    async def _answer_control(self, scope: Scope, control: ControlRoute | None) -> Response:
        if control is None:
            raise Refusal(ErrorCode.NOT_FOUND, f"There is nothing at {scope['path'][:200]}.")
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if (answer := control.methods.get(method)) is None:
            raise _not_allowed(*control.methods)
        try:
            # Whoever only looks is answered however many requests are under way.
            with nullcontext() if method == "GET" else self._admission.admit(0):
                return await answer(query_of(scope["query_string"]))
        except (Unavailable, OutcomeUnknown) as error:
            raise Refusal(ErrorCode.SPOOL_UNUSABLE, str(error)) from error

    async def _take(self, scope: Scope, headers: Headers, receive: Receive, route: DataRoute) -> Response:
        """Take in the records of a request. Nothing of its body is read before all that its head says was checked."""
        path = scope["path"]
        if scope["method"] != "POST":
            raise _not_allowed("POST")
        form = route.form(headers)
        key, sender = idempotency_key(headers), sender_of(scope, headers)
        with _spool_errors():
            self.recorder.check()
        body = RequestBody(receive, declared_length(headers), self.settings.body_bytes)
        with self._admission.admit(body.declared or 0) as admitted:
            body.hold = admitted.hold
            content = await body.read(within=self.settings.read_seconds)
            self.metrics.body_bytes.labels(path).inc(len(content))
            admitted.hold(len(content))
            work = _Work(form, self.settings, self.clock.now_ns(), path, sender, key, admitted)
            decoded, known_by = await self._done(work, content)
            is_duplicate = False
            if decoded.records.num_rows:
                with _spool_errors():
                    is_duplicate = (await self.recorder.append(route.kind, decoded.records, known_by)).duplicate
        self.metrics.received_records.labels(path).inc(decoded.records.num_rows)
        self.metrics.rejected_records.labels(path).inc(decoded.rejected)
        return route.answer(headers, decoded, is_duplicate=is_duplicate)

    async def _done(self, work: "_Work", content: bytes) -> "tuple[Decoded, RequestId | None]":
        """Decode a body: a small one at once, a large one on a thread, so that others are answered meanwhile."""
        most = min(self.settings.inline_bytes, self.settings.body_bytes)
        try:
            if (plain := decompressed_at_once(work.form.encoding, content, most)) is not None:
                return work.decode(plain)
            return await asyncio.get_running_loop().run_in_executor(self._threads, work.decompress, content)
        except BodyTooLarge as error:
            raise Refusal(ErrorCode.TOO_LARGE, error.reason) from error
        except BadBody as error:
            raise Refusal(ErrorCode.BAD_REQUEST, error.reason) from error


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be done with the body of a request."""

    form: BodyForm
    settings: ReceiverSettings
    now_ns: int
    path: str
    sender: bytes
    key: bytes | None
    admitted: Admitted

    def decompress(self, content: bytes) -> tuple[Decoded, RequestId | None]:
        """Decode a body as it was sent. Raises `BadBody`, and `Refusal` if it becomes too large."""
        return self.decode(
            decompressed(
                self.form.encoding,
                content,
                self.settings.body_bytes,
                lambda size: self.admitted.hold(len(content) + size),
            )
        )

    def decode(self, content: bytes) -> tuple[Decoded, RequestId | None]:
        """Decode a body that is decompressed. Raises `BadBody`."""
        decoded = self.form.decode(content, self.now_ns)
        known_by = request_id(self.path, self.sender, content, key=self.key, have_own_times=decoded.have_own_times)
        return decoded, known_by


@contextmanager
def _spool_errors() -> Iterator[None]:
    """Turn what a spool raises into answers."""
    try:
        yield
    except SpoolFull as error:
        raise Refusal(ErrorCode.SPOOL_FULL, f"{error} Send the same again later.") from error
    except (SpoolUnusable, Unavailable, OutcomeUnknown) as error:
        raise Refusal(ErrorCode.SPOOL_UNUSABLE, f"{error} Send the same again later.") from error
    except KeyReused as error:
        raise Refusal(ErrorCode.KEY_REUSED, str(error)) from error
    except RecordsTooLarge as error:
        raise Refusal(ErrorCode.TOO_LARGE, str(error)) from error


def _not_allowed(*methods: str) -> Refusal:
    return Refusal(
        ErrorCode.METHOD_NOT_ALLOWED, f"Use {' or '.join(methods)} here.", headers={"Allow": ", ".join(methods)}
    )
