"""Writes a run's events to the state's history."""

import hashlib

from lakehead.errors import Misconfigured
from lakehead.state.buffered import BufferedState
from lakehead.state.keys import checked_key
from lakehead.state.model import EventRecord
from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import Heartbeat, TableStep

MAX_KEY_LENGTH = 64
HASH_DIGITS = 12


def event_key(name: str) -> str:
    """Return the key of a table or run in the history; use it to look up a table's events.

    This is the name itself if the state can store it. A name that is too long or has characters that a key cannot
    have is shortened and made unique by 12 hex digits of its SHA-256.
    """
    try:
        return checked_key("name", name, MAX_KEY_LENGTH)
    except Misconfigured:
        shown = "".join(letter if letter.isprintable() else "?" for letter in name).strip()
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:HASH_DIGITS]
        return f"{shown[: MAX_KEY_LENGTH - HASH_DIGITS - 1]}~{digest}"


class StateEventSubscriber:
    """Adds events to the state's buffered sink, which writes them in batches. `TableStep` and `Heartbeat` are skipped.

    Tables and runs are stored under their `event_key`; the full name is in the payload where it differs.
    """

    def __init__(self, state: BufferedState) -> None:
        self._sink = state.sink

    def __call__(self, envelope: EventEnvelope) -> None:
        """Buffer the event. An unreachable state raises nothing here: the sink retries."""
        if isinstance(envelope.event, TableStep | Heartbeat):
            return
        table = None if envelope.table is None else event_key(envelope.table)
        run = event_key(envelope.run)
        payload = envelope.payload()
        if table != envelope.table:
            payload["table"] = envelope.table
        if run != envelope.run:
            payload["run"] = envelope.run
        self._sink.add(
            EventRecord(id=envelope.id, at=envelope.at, kind=envelope.event.kind, table=table, run=run, payload=payload)
        )
