"""A run's events on their way to the state's history."""

import hashlib

from lakehead.errors import Misconfigured
from lakehead.state.buffered import BufferedState
from lakehead.state.keys import word
from lakehead.state.model import Event
from lakehead.telemetry.emitter import Told
from lakehead.telemetry.events import Heartbeat, TableProgress

LIMIT = 64
MARK = 12


def event_key(name: str) -> str:
    """What a table or a run is called in the history: its name, wherever the state can hold that.

    A longer name, or one with letters that no key may have, is cut, and told apart by 12 hex digits of its SHA-256.
    Whoever looks for events of a table asks for this.
    """
    try:
        return word("name", name, LIMIT)
    except Misconfigured:
        shown = "".join(letter if letter.isprintable() else "?" for letter in name).strip()
        mark = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:MARK]
        return f"{shown[: LIMIT - MARK - 1]}~{mark}"


class StateEventSubscriber:
    """Puts events into the state's sink, which writes them in batches. Progress within a table and beats are not kept.

    A table or run whose name the history cannot hold stands there by its `event_key`, and its name in the payload.
    """

    def __init__(self, state: BufferedState) -> None:
        self._sink = state.sink

    def __call__(self, told: Told) -> None:
        """Take the event. A state that is away stops nobody: see the sink."""
        if isinstance(told.event, TableProgress | Heartbeat):
            return
        table = None if told.table is None else event_key(told.table)
        run = event_key(told.run)
        payload = told.payload()
        if table != told.table:
            payload["table"] = told.table
        if run != told.run:
            payload["run"] = told.run
        self._sink.add(Event(id=told.id, at=told.at, kind=told.event.kind, table=table, run=run, payload=payload))
