"""HTTP/1.1 of one connection: uvicorn's protocol, with limits on what a client may hold, and answers that arrive.

uvicorn bounds neither the time nor the size of a request's head, nor how many connections are open, how many requests
wait on one, or how long a client may leave its answers unread; and it closes a connection whose body is unread in a way
that may take the answer with it. Those are here; the rest is uvicorn's.
"""

import asyncio
import logging
from asyncio import TimerHandle

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from lakehead.gateway.connections import Connections
from lakehead.gateway.error_codes import ErrorCode, error_body

LOG = logging.getLogger(__name__)
LOG.addFilter(lambda record: record.levelno > logging.WARNING)  # what strangers send badly is counted, not told

RETRY_AFTER = b"1"
MOST_PIPELINED = 16
"""Requests that may wait on a connection until those before them are answered. What follows them is thrown away."""

HEAD_TOO_LARGE = ErrorCode.HEAD_TOO_LARGE, "The request line and headers are too large."


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection to a listener."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState, listener: Connections) -> None:
        super().__init__(config, server_state, app_state={})
        self.logger = LOG
        self._listener = listener
        self._settings = listener.settings
        self._timer: TimerHandle | None = None
        """Until when a head must be whole; after an unread body, until when the rest of it is thrown away."""

        self._write_timer: TimerHandle | None = None
        """Until when the client must have read some of its answers; None while nothing waits for that."""

        self._reads_head = True
        self._head_bytes = 0
        """Of a head that is not whole yet, in earlier packets."""

        self._head_came = False
        """Whether a head became whole in this packet."""

        self._message_began = False
        """Whether a request has begun that is not whole yet."""

        self._body_came = False
        self._bytes_without_body = 0
        """Of trailers and chunk sizes since the last bytes of the body."""

        self._discards = False
        """Whether everything that still comes is thrown away."""

        self._lingers = False
        """Whether the last answer was sent, and the connection is about to be closed."""

        self._discarded = 0
        self._refusal: tuple[ErrorCode, str] | None = None
        """What is answered when parsing ends; None: that it was no HTTP."""

    @property
    def _current(self) -> RequestResponseCycle | None:
        """The request whose head came last; None before the first."""
        return self.cycle

    @property
    def _is_ending(self) -> bool:
        """Whether nothing more is read from the connection."""
        return self._discards or self.transport.is_closing()

    # --- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin to wait for a request, unless there are too many connections."""
        super().connection_made(transport)
        if not self._listener.opened(self):
            self._answer(ErrorCode.TOO_MANY_CONNECTIONS, "Too many connections are open. Try again later.")
            self.transport.close()
            return
        self._start_timer(self._settings.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        self._stop_write_timer()
        self._listener.closed(self)
        super().connection_lost(exc)

    def eof_received(self) -> bool | None:  # type: ignore[override]  # uvicorn's never keeps a connection open
        """The client sends nothing more. Keep the connection open if a whole request is still to be answered."""
        if (cycle := self._unanswered()) is None or self.scheme == "https":  # where there is no half of a connection
            return None
        cycle.keep_alive = False
        return True

    def evict(self) -> None:
        """Close the connection at once: another one needs its place."""
        self.connections.discard(self)
        self.transport.abort()

    def pause_writing(self) -> None:
        """Send no more before the client has read what it was sent, for which it has some time."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self._settings.write_seconds, self._answers_are_unread)

    def resume_writing(self) -> None:
        """Send on."""
        self._stop_write_timer()
        super().resume_writing()

    # --- what comes

    def data_received(self, data: bytes) -> None:
        """Take in a packet."""
        if self._discards:
            self._discarded += len(data)
            if self._discarded > self._settings.linger_bytes:
                self.transport.abort()
            return
        read_head, self._head_came, self._body_came = self._reads_head, False, False
        super().data_received(data)
        if self._is_ending:
            return
        if not self._reads_head:
            self._check_trailers(len(data))
            return
        is_all_head = read_head and not self._head_came
        if is_all_head:
            self._head_bytes += len(data)
        if self._head_bytes > self._settings.head_bytes:
            self._refuse_head()
        elif self._timer is None and (is_all_head or self._message_began):
            self._start_timer(self._settings.head_seconds)

    def on_message_begin(self) -> None:
        """Note the first bytes of a request."""
        super().on_message_begin()
        self._message_began = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header, and leave out trailers, which come after the request was handed on."""
        if self._reads_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand on the request."""
        self._stop_timer()
        self._reads_head, self._head_came, self._head_bytes = False, True, 0
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self._settings.head_bytes:
            self._refusal = HEAD_TOO_LARGE
            raise ValueError("the head is too large")  # which ends parsing; `send_400_response` is called
        if self.parser.should_upgrade():  # the parser would take the body for another protocol's
            self._refusal = ErrorCode.BAD_REQUEST, "Only HTTP/1.1 is spoken here. Send the request without `Upgrade`."
            raise ValueError("another protocol is offered")
        if len(self.pipeline) >= MOST_PIPELINED:
            raise ValueError("too many requests wait")  # those that do are answered, and the connection is closed
        self._listener.works(self)
        super().on_headers_complete()
        if (cycle := self._current) is not None:
            cycle.transport = _AnswerTransport(self, cycle)

    def on_body(self, body: bytes) -> None:
        """Take in a part of the body."""
        self._body_came = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note the end of a request: what follows is the head of another."""
        super().on_message_complete()
        self._reads_head, self._message_began = True, False

    def _check_trailers(self, size: int) -> None:
        self._bytes_without_body = 0 if self._body_came else self._bytes_without_body + size
        if self._bytes_without_body > self._settings.head_bytes and not self._head_came:
            self.send_400_response("The trailers are too large.")

    # --- what is answered without a handler

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed, unless a whole request before it is still to be answered."""
        self._listener.malformed += 1
        if (cycle := self._unanswered()) is not None:
            # Whoever gets an answer must be able to take it for that of the request before.
            cycle.keep_alive = False
            self._discards = True
            return
        self._answer(*(self._refusal or (ErrorCode.BAD_REQUEST, msg)))
        self._linger()

    def _unanswered(self) -> RequestResponseCycle | None:
        """The request that has come in full and is still to be answered; None if there is none."""
        cycle = None if self._lingers else self._current
        return cycle if cycle is not None and not cycle.response_complete and not cycle.more_body else None

    def _refuse_head(self) -> None:
        self._refusal = HEAD_TOO_LARGE
        self.send_400_response("")

    def _answer(self, code: ErrorCode, message: str) -> None:
        body = error_body(code, message)
        lines = [b"content-type: application/json", b"content-length: %d" % len(body), b"connection: close"]
        if code.status == 503:
            lines.append(b"retry-after: " + RETRY_AFTER)
        self.transport.write(STATUS_LINE[code.status] + b"\r\n".join(lines) + b"\r\n\r\n" + body)

    # --- the end of an answer, and of the connection

    def on_response_complete(self) -> None:
        """Go on with the next request that has come, or wait for one, unless the connection is closing."""
        if self._discards and not self.pipeline:
            self.server_state.total_requests += 1
            return
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()  # else a packet of requests would come in for each that is answered
        if (cycle := self._current) is None or cycle.response_complete:
            self._listener.waits(self)

    def end_after(self, cycle: RequestResponseCycle) -> None:
        """Close the connection after an answer, at once if nothing of its request is unread."""
        if cycle.more_body or self._discards or self.cycle is not cycle:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Close the connection when the client has done so, or after a while: until then nothing is read any more."""
        if self.transport.is_closing():
            return
        self._discards = self._lingers = True
        self.pipeline.clear()
        self._unset_keepalive_if_required()
        self._listener.waits(self)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._stop_timer()
        self._timer = self.loop.call_later(self._settings.linger_seconds, self.transport.close)

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._head_is_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _answers_are_unread(self) -> None:
        self._write_timer = None
        self._listener.timed_out += 1
        self.transport.abort()

    def _head_is_late(self) -> None:
        self._timer = None
        self._listener.timed_out += 1
        if (cycle := self._current) is not None and not cycle.response_complete:
            cycle.keep_alive = False  # the request before is answered first
        else:
            self.transport.abort()


class _AnswerTransport(asyncio.Transport):
    """What uvicorn writes an answer to. Closing it closes the connection so that the answer arrives.

    The head of an answer is sent with what is written before the event loop's next turn, which is mostly the whole
    body: sending takes longer than most of what is done for an upload. The answer to a HEAD has none, and its head is
    sent at once: in that turn the connection may end.
    """

    def __init__(self, protocol: BoundedHttpProtocol, cycle: RequestResponseCycle) -> None:
        super().__init__()
        self._protocol = protocol
        self._cycle = cycle
        self._may_hold = cycle.scope["method"] != "HEAD"
        """Whether a head is held back: once, if a body follows."""

        self._held = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a part of the answer."""
        if self._held:
            data, self._held = self._held + data, b""
        elif self._cycle.response_started and self._may_hold:
            self._may_hold, self._held = False, bytes(data)
            self._protocol.loop.call_soon(self._send_held)
            return
        self._protocol.transport.write(data)

    def _send_held(self) -> None:
        held, self._held = self._held, b""
        if held and not self.is_closing():
            self._protocol.transport.write(held)

    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        """Close the connection after the answer."""
        self._send_held()
        self._protocol.end_after(self._cycle)
