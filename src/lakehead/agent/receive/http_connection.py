"""HTTP/1.1 of one connection to an agent: uvicorn's protocol, with limits on what a sender may hold."""

import asyncio
import logging
import socket
from asyncio import TimerHandle

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from lakehead.agent.receive.receiver_settings import ListenerSettings

LOG = logging.getLogger(__name__)
LOG.addFilter(lambda record: record.levelno > logging.WARNING)  # what is sent badly is answered, not told


class BoundedConnection(HttpToolsProtocol):
    """One connection. It is refused if there are too many, and closed if its sender is slow or sends endless heads.

    uvicorn reads and throws away what is left of a body that was answered unread, so that the answer arrives.
    """

    def __init__(self, config: uvicorn.Config, server_state: ServerState, settings: ListenerSettings) -> None:
        super().__init__(config, server_state, app_state={})
        self.logger = LOG
        self._settings = settings
        self._timer: TimerHandle | None = None
        """Until when a head must be whole."""

        self._goes_on = False
        """Whether a head, a part of a body or the end of a request came in this packet."""

        self._bytes_in_vain = 0
        """Received since then: of a head that is not whole, of trailers or of chunk sizes."""

        self._ends = False
        """Whether everything that still comes is thrown away."""

        self._status = 400
        """What is answered when parsing ends."""

    @property
    def _unanswered(self) -> RequestResponseCycle | None:
        """The request whose head came last, if it is not answered yet."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first
        return None if cycle is None or cycle.response_complete else cycle

    @property
    def _is_ending(self) -> bool:
        """Whether nothing more is read from the connection."""
        return self._ends or self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin to wait for a request, unless there are too many connections."""
        super().connection_made(transport)
        if self.client is None and transport.get_extra_info("socket").family != socket.AF_UNIX:
            self._ends = True  # its sender has gone: without an address it would be taken for one at the Unix socket
            transport.abort()
        elif len(self.connections) > self._settings.max_connections:
            self._refuse(503, "Too many connections are open. Try again later.", b"retry-after: 1\r\n")
        else:
            self._timer = self.loop.call_later(self._settings.head_seconds, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in a packet."""
        if self._ends:
            return
        self._goes_on = False
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self._is_ending:
            return
        self._bytes_in_vain = 0 if self._goes_on else self._bytes_in_vain + len(data)
        if self._bytes_in_vain > self._settings.head_bytes:
            self._status = 431
            self.send_400_response("The request line and headers are too large.")

    def _parse(self, data: bytes) -> None:
        """Take in bytes, as uvicorn does but for an offer of HTTP/2: HTTP lets a server ignore it, and then the request
        is one as any other. The parser takes what follows its head for that protocol's: a new one reads it.
        """
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = self._head_without_offer() + data[offer.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it
            else:
                return

    def _head_without_offer(self) -> bytes:
        lines = [b"%s %s HTTP/1.1" % (self.parser.get_method(), self.url)]
        lines += [b"%s: %s" % each for each in self.headers if each[0] not in (b"connection", b"upgrade")]
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        """Note the first bytes of a request: the rest of its head must come in time."""
        super().on_message_begin()
        self._stop_timer()
        self._timer = self.loop.call_later(self._settings.head_seconds, self._head_is_late)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header, and leave out trailers, which come after the request was handed on."""
        if self._timer is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand on the request."""
        self._stop_timer()
        self._goes_on = True
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self._settings.head_bytes:
            self._status = 431
            raise ValueError("the head is too large")  # which ends parsing: `send_400_response` is called
        if self.parser.should_upgrade():
            if self._get_upgrade() != b"h2c":
                raise ValueError("another protocol is offered")
            return  # the same head is parsed again without the offer
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take in a part of the body."""
        self._goes_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note the end of a request."""
        self._goes_on = True
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request that has come, or wait for one."""
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()  # else a packet of requests would come in for each that is answered

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed, unless a request before it is still to be answered."""
        if (cycle := self._unanswered) is not None:
            # Whoever gets an answer must be able to take it for that of the request before.
            cycle.keep_alive = False
            self._ends = True
            if cycle.more_body:
                self.transport.close()
            return
        self._refuse(self._status, msg)

    def _refuse(self, status: int, message: str, more: bytes = b"") -> None:
        self._ends = True
        self._stop_timer()
        body = message.encode() + b"\n"
        head = b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + more + b"\r\n" + body)
        self.transport.close()

    def _head_is_late(self) -> None:
        if (cycle := self._unanswered) is not None:
            cycle.keep_alive = False  # the request before is answered first
            self._ends = True
        else:
            self.transport.abort()

    def _stop_timer(self) -> None:
        # uvicorn does this with any byte that comes, and then a sender holds the connection for as long as it likes.
        self._unset_keepalive_if_required()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
