"""What the messages of a pipeline announce, as units of work for its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.messages import announced
from lakehead.consume.objects import MessageFormat, NotUnderstood, ObjectRef
from lakehead.consume.queue import Message
from lakehead.consume.routes import Route, route_of
from lakehead.consume.uris import Identity, IdentityMissing, inline_id, inline_message_id, unit_id, unknown_etag_id
from lakehead.errors import Unavailable

NO_ETAG = "-"
"""An ETag that no object has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReader:
    """Turns messages into units of work: one for each object, or the content of the message itself."""

    format: MessageFormat
    routes: Sequence[Route]
    identity: Identity = Identity.URI
    by_message: bool = False
    """Whether each message with content of its own is a unit of its own, also if two have the same content."""

    store_url: str | None = None
    """The URL of a manifest queue's store."""

    known: Mapping[ObjectRef, ObjectRef | Unavailable | None] = field(default_factory=dict)
    """Objects that were looked up: what was found counts instead of what the message tells. None: it does not exist."""

    def __call__(self, message: Message, counts: ConsumeCounts) -> Sequence[Work]:
        """Return the units of a message; none if there is nothing to land.

        Raises `NotUnderstood`, and `Unavailable` if one of its objects could not be looked up.
        """
        if self.format is MessageFormat.INLINE:
            unit = inline_message_id(message.id) if self.by_message else inline_id(message.body)
            return [Work(key=UnitKey(self.routes[0].table, unit), content=message.body, message=message)]
        found = announced(message.body, self.format, store_url=self.store_url)
        if not found.objects and not found.ignored:
            raise NotUnderstood("The message announces nothing.")
        counts.ignored += len(found.ignored)
        works: dict[UnitKey, Work] = {}
        for announced_object in found.objects:
            if (route := route_of(announced_object.uri, self.routes)) is None:
                counts.filtered += 1
                continue
            each = self.known.get(announced_object, announced_object)
            if isinstance(each, Unavailable):
                raise Unavailable(str(each))
            # One that is gone is read all the same, so that it fails like others; what has come since has another id.
            unit = unknown_etag_id(announced_object.uri) if each is None else self._unit(each)
            each = replace(announced_object, etag=NO_ETAG) if each is None else each
            key = UnitKey(route.table, unit)
            works[key] = Work(key=key, object=each, message=message)
        return list(works.values())

    def _unit(self, ref: ObjectRef) -> str:
        try:
            return unit_id(ref, by=self.identity)
        except IdentityMissing as error:
            raise NotUnderstood(str(error)) from None
