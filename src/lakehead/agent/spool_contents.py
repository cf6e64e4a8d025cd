"""What is in an agent's spool, in memory: entries by number, their bytes, and who waits for a change. No I/O."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice

from lakehead.agent.changes import Changes
from lakehead.agent.spool_entry import Folder, SpoolEntry
from lakehead.agent.spool_errors import SpoolFull, SpoolUnusable
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.wire.record_schemas import FrameKind


class SpoolContents:
    """Entries and journals, and whether there is room for more."""

    def __init__(self, settings: SpoolSettings) -> None:
        self._settings = settings
        self._waiting: dict[FrameKind, dict[int, SpoolEntry]] = {kind: {} for kind in FrameKind}
        self._parked: dict[int, SpoolEntry] = {}
        self._journals: dict[int, int] = {}
        """The bytes of the batches that are no frames yet, by number."""

        self._bytes: Counter[Folder] = Counter()
        self._count: Counter[Folder] = Counter()
        self.changes = Changes()
        """Entries that were added, changed or removed."""

        self.work = Changes()
        """Entries that were added to `waiting`."""

        self.next_number = 0
        self.damaged = 0
        self.append_bytes = 0
        """The bytes of requests that wait for the disk."""

        self.unusable = ""
        """Why nothing is taken until the next start; empty if that is not so."""

        self.unflushed: set[int] = set()
        """Journals of an earlier start that may not be on disk. Whether a request is in the spool is not known then."""

    # --- numbers and room

    def take_number(self) -> int:
        """Return the number of a new entry: above all that are on the disk."""
        number = self.next_number
        self.next_number += 1
        return number

    def check_usable(self) -> None:
        """Raise `SpoolUnusable` if nothing is taken until the next start."""
        if self.unusable:
            raise SpoolUnusable(self.unusable)

    def check_flushed(self) -> None:
        """Raise `SpoolUnusable` as long as it is not known what earlier starts have left on the disk."""
        if self.unflushed:
            raise SpoolUnusable("What an earlier start has left could not be written yet. Check the disk.")

    def check_room(self, *, size: int = 0, entries: int = 0) -> None:
        """Raise `SpoolFull` if there is no room for so many bytes, and entries, more."""
        limits = self._settings
        if self.entry_bytes + size > limits.spool_bytes or self.entries + entries > limits.spool_entries:
            raise SpoolFull(
                f"The spool holds {self.entries:,} batches with {self.entry_bytes:,} bytes, and may hold "
                f"{limits.spool_entries:,} with {limits.spool_bytes:,}: they wait for a gateway."
            )

    def has_room_to_park(self, size: int) -> bool:
        """Return whether the folder of parked batches may hold so many bytes more."""
        return self._bytes["parked"] + size <= self._settings.parked_bytes

    # --- journals

    def set_journal(self, number: int, size: int) -> None:
        """A journal has so many bytes now."""
        self._bytes["entries"] += size - self._journals.get(number, 0)
        self._journals[number] = size

    def remove_journal(self, number: int) -> None:
        """A journal is none any more."""
        self._bytes["entries"] -= self._journals.pop(number, 0)

    # --- entries

    def add(self, entry: SpoolEntry) -> None:
        """An entry is on disk. It takes the place of one with its number, and so the bytes."""
        before = self.get(entry.number)
        if before is not None:
            self._count_off(before)
            if (before.parked is None) != (entry.parked is None):
                self._of(before).pop(before.number)
        self._put(entry)
        self._bytes[entry.folder] += entry.size
        self._count[entry.folder] += 1
        self.changes.tell()
        if entry.parked is None:
            self.work.tell()

    def remove(self, number: int) -> None:
        """An entry is not there any more."""
        if (entry := self.get(number)) is not None:
            self._of(entry).pop(number)
            self._count_off(entry)
            self.changes.tell()

    def get(self, number: int) -> SpoolEntry | None:
        """Return an entry as it is now; None if it is not there."""
        for each in (*self._waiting.values(), self._parked):
            if (found := each.get(number)) is not None:
                return found
        return None

    def waiting(
        self, kind: FrameKind | None = None, *, limit: int | None = None, besides: Collection[int] = ()
    ) -> Sequence[SpoolEntry]:
        """Return entries that are to be sent, in their order."""
        kinds: Iterable[FrameKind] = FrameKind if kind is None else [kind]
        found = merge(*(self._besides(each, besides) for each in kinds), key=lambda entry: entry.number)
        return tuple(islice(found, limit))

    def parked(self) -> Sequence[SpoolEntry]:
        """Return the parked entries, by number."""
        return tuple(self._parked.values())

    @property
    def entries(self) -> int:
        """Batches that count against the limit: those that wait, still collect, or have no place to be parked."""
        return self._count["entries"] + len(self._journals)

    @property
    def entry_bytes(self) -> int:
        """The bytes of their files."""
        return self._bytes["entries"]

    @property
    def parked_bytes(self) -> int:
        """The bytes in the folder of parked batches."""
        return self._bytes["parked"]

    def oldest_since(self) -> float | None:
        """Return the uptime since which the oldest entry has waited; None if there is none."""
        first = (next(iter(each.values()), None) for each in self._waiting.values())
        return min((each.since for each in first if each is not None), default=None)

    def _put(self, entry: SpoolEntry) -> None:
        entries = self._of(entry)
        is_last = entry.number in entries or entry.number > next(reversed(entries), -1)
        entries[entry.number] = entry
        if not is_last:  # it is rare that an older one comes after a newer one
            in_order = sorted(entries.items())
            entries.clear()
            entries.update(in_order)

    def _of(self, entry: SpoolEntry) -> dict[int, SpoolEntry]:
        return self._waiting[entry.kind] if entry.parked is None else self._parked

    def _count_off(self, entry: SpoolEntry) -> None:
        self._bytes[entry.folder] -= entry.size
        self._count[entry.folder] -= 1

    def _besides(self, kind: FrameKind, numbers: Collection[int]) -> Iterator[SpoolEntry]:
        return (each for number, each in self._waiting[kind].items() if number not in numbers)
