"""Events that an identity manifest was created: what a reconciler asks of whoever delivers them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class AcceptedEvent:
    """A delivery that names objects of the authority's store."""

    keys: tuple[str, ...]
    """Their keys. Those that are no keys of identity manifests are of no interest, and none is normal."""

    receipt: Any = field(default=None, repr=False, compare=False)


class AcceptedEvents(Protocol):
    """Delivers events at least once. Every method may raise `Unavailable`."""

    async def receive(self) -> Sequence[AcceptedEvent]:
        """Return events, waiting a while for the first. None is normal."""
        ...

    async def acknowledge(self, events: Sequence[AcceptedEvent]) -> None:
        """Take events from the queue, after what they name was looked at."""
        ...
