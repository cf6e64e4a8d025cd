"""The connections of one listener, and which of them may be closed when there are too many."""

from dataclasses import dataclass, field
from typing import Protocol

from lakehead.gateway.settings import ListenerSettings


class Connection(Protocol):
    """A connection as its listener sees it."""

    def evict(self) -> None:
        """Close the connection at once: another one needs its place."""
        ...


@dataclass(slots=True)
class Connections:
    """Counts connections, and knows which of them wait for a request."""

    settings: ListenerSettings
    refused: int = field(default=0, init=False)
    evicted: int = field(default=0, init=False)
    timed_out: int = field(default=0, init=False)
    malformed: int = field(default=0, init=False)
    _open: set[Connection] = field(default_factory=set, init=False)
    _without_request: dict[Connection, None] = field(default_factory=dict, init=False)
    """Those that send no whole request: the one that has not for the longest is the first."""

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._open)

    def opened(self, connection: Connection) -> bool:
        """Take in a new connection, in place of one without a request if necessary. False if there is none."""
        if len(self._open) >= self.settings.max_connections:
            oldest = next(iter(self._without_request), None)
            if oldest is None:
                self.refused += 1
                return False
            self.evicted += 1
            self.closed(oldest)
            oldest.evict()
        self._open.add(connection)
        self.waits(connection)
        return True

    def waits(self, connection: Connection) -> None:
        """The connection has no request under way from now on."""
        if connection in self._open:
            self._without_request.setdefault(connection)

    def works(self, connection: Connection) -> None:
        """The connection has sent the whole head of a request."""
        self._without_request.pop(connection, None)

    def closed(self, connection: Connection) -> None:
        """The connection is gone."""
        self._open.discard(connection)
        self._without_request.pop(connection, None)
