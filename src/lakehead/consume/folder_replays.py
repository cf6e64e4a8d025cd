"""Replays of dead letters of a watched folder, whose files no message announces."""

import asyncio
import re
from collections.abc import Collection
from dataclasses import dataclass

from lakehead.consume.queues.folder_queue import FolderQueue
from lakehead.consume.uris import is_inline, parse_uri, uri_of_unknown_etag
from lakehead.state.state import State

_PART = re.compile(r"#\d+-\d+$")


@dataclass(frozen=True, slots=True)
class FolderReplays:
    """Lets a folder that is being watched deliver the files again whose dead letters are replayed."""

    queue: FolderQueue
    state: State

    async def deliver(self, tables: Collection[str]) -> None:
        """Deliver the files of replayed letters of tables, named by their uuids. Doing it again is harmless."""
        units = await asyncio.to_thread(
            lambda: [letter.unit for table in tables for letter in self.state.history.replayed_letters(table)]
        )
        self.queue.deliver_again([_uri(unit) for unit in units if not is_inline(unit)])


def _uri(unit: str) -> str:
    """Return the URI of a unit's file, also of one that was gone when it was announced."""
    return uri_of_unknown_etag(unit) or parse_uri(_PART.sub("", unit)).uri
