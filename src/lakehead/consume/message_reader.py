"""What the messages of a pipeline announce, as units of work for its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.messages import announced
from lakehead.consume.objects import MessageFormat, NotUnderstood, ObjectRef
from lakehead.consume.queue import Message
from lakehead.consume.routes import Route, route_of
from lakehead.consume.uris import Identity, IdentityMissing, inline_id, unit_id


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReader:
    """Turns messages into units of work: one for each object, or the content of the message itself."""

    format: MessageFormat
    routes: Sequence[Route]
    identity: Identity = Identity.URI
    store_url: str | None = None
    """The URL of a manifest queue's store."""

    known: Mapping[str, ObjectRef] = field(default_factory=dict)
    """Objects that were looked up, by URI: they count instead of what the message tells of them."""

    def __call__(self, message: Message, counts: ConsumeCounts) -> Sequence[Work]:
        """Return the units of a message; none if there is nothing to land. Raises `NotUnderstood`."""
        if self.format is MessageFormat.INLINE:
            key = UnitKey(self.routes[0].table, inline_id(message.body))
            return [Work(key=key, content=message.body, message=message)]
        found = announced(message.body, self.format, store_url=self.store_url)
        if not found.objects and not found.ignored:
            raise NotUnderstood("The message announces nothing.")
        counts.ignored += len(found.ignored)
        works: dict[UnitKey, Work] = {}
        for announced_object in found.objects:
            each = self.known.get(announced_object.uri, announced_object)
            if (route := route_of(each.uri, self.routes)) is None:
                counts.filtered += 1
                continue
            key = UnitKey(route.table, self._unit(each))
            works[key] = Work(key=key, object=each, message=message)
        return list(works.values())

    def _unit(self, ref: ObjectRef) -> str:
        try:
            return unit_id(ref, by=self.identity)
        except IdentityMissing as error:
            raise NotUnderstood(str(error)) from None
