"""How much the receivers take on at once: requests, and bytes of their bodies."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from lakehead.agent.receive.receiver_settings import ReceiverSettings
from lakehead.agent.receive.refusals import ErrorCode, Refusal


@dataclass(slots=True)
class Admitted:
    """A request that is under way, and the bytes that are reserved for it."""

    _admission: "Admission"
    reserved: int = 0
    is_over: bool = False
    """Whether it was answered, although a thread may still be at work for it."""

    def hold(self, size: int) -> None:
        """Reserve so many bytes in all, more or less than before. Raises `Refusal`. It may be called by any thread."""
        self._admission.change(self, size)


@dataclass(slots=True)
class Admission:
    """Admits requests as long as the limits are not reached. A request that is alone is always admitted."""

    settings: ReceiverSettings
    requests: int = field(default=0, init=False)
    """Requests under way."""

    bytes_held: int = field(default=0, init=False)
    """Bytes reserved for them."""

    _lock: Lock = field(default_factory=Lock, init=False)

    @contextmanager
    def admit(self, body_bytes: int) -> Iterator[Admitted]:
        """Admit a request until the end of the `with`. Raises `Refusal` if there are too many, or too many bytes."""
        if self.requests >= self.settings.requests_in_flight:
            raise _overloaded()
        admitted = Admitted(self)
        self.requests += 1
        try:
            admitted.hold(body_bytes)
            yield admitted
        finally:
            self.requests -= 1
            admitted.hold(0)
            admitted.is_over = True

    def change(self, admitted: Admitted, size: int) -> None:
        """Reserve so many bytes for a request in all. Raises `Refusal`."""
        with self._lock:
            if admitted.is_over:
                raise _overloaded()  # to nobody
            more = size - admitted.reserved
            if more > 0 and self.requests > 1 and self.bytes_held + more > self.settings.bytes_in_flight:
                raise _overloaded()
            self.bytes_held += more
            admitted.reserved = size


def _overloaded() -> Refusal:
    return Refusal(ErrorCode.OVERLOADED, "The agent is busy with other requests. Send the same again later.")
