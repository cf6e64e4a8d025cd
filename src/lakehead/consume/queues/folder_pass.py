"""One pass through the files of a folder, which finds those that nobody is writing."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta

from lakehead.clock import Clock
from lakehead.consume.queues.listed_files import pages_after
from lakehead.errors import Misconfigured
from lakehead.storage.port import ListedObject, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSettings:
    """Settings of a watched folder. Raises `Misconfigured` with all errors at once."""

    url: str
    """The folder, as the URL that its store was opened with: `file:///folder` or `s3://bucket/prefix`."""

    files_stay: bool = True
    """Whether files stay where they are when they have landed, and are not deleted or moved then."""

    rest: timedelta = timedelta(seconds=2)
    """A file is delivered when it was last modified this long ago, and looked the same this long ago."""

    poll_interval: timedelta = timedelta(seconds=2)
    """How long after the beginning of a listing the next one begins."""

    rescan: timedelta = timedelta(hours=1)
    """How often files are delivered again that were acknowledged and forgotten since; see `FolderQueue`."""

    remembered: int = 100_000
    """How many acknowledged files are remembered, at some 150 bytes each."""

    window: int = 20_000
    """How many files are looked at together; about as many are held in memory."""

    def __post_init__(self) -> None:
        """Check all settings."""
        times = {"rest": self.rest, "poll_interval": self.poll_interval, "rescan": self.rescan}
        problems = [
            f"{name} is {time}, and must not be negative" for name, time in times.items() if time < timedelta(0)
        ]
        numbers = {"remembered": self.remembered, "window": self.window}
        problems += [f"{name} is {number}, and must be at least 1" for name, number in numbers.items() if number < 1]
        if problems:
            raise Misconfigured(f"Invalid settings of the folder {self.url}: {'; '.join(problems)}.")


class FolderPass:
    """Lists a folder once, a window of files at a time. Each window is looked at twice, with a rest between."""

    def __init__(
        self, store: Store, settings: FolderSettings, clock: Clock, is_wanted: Callable[[ListedObject], bool]
    ) -> None:
        """`is_wanted` is asked for every file that is listed."""
        self.began_ns = clock.now_ns()
        self.began_at = clock.monotonic()
        self.is_complete = False
        """Whether every file was looked at."""
        self.due_at = self.began_at
        """When `step` can go on, by the monotonic clock."""
        self._store = store
        self._settings = settings
        self._clock = clock
        self._is_wanted = is_wanted
        self._start = ""
        self._end: str | None = None
        """The first and the last key of the window; the first is not part of it. None: before its first look."""
        self._is_last = False
        self._seen: dict[str, ListedObject] = {}
        """The wanted files of the window, as they were at the first look."""

    async def step(self) -> list[ListedObject]:
        """Look at a window for the first or the second time; return the files that rest. Call it when it is due.

        If it raises, it can be called again.
        """
        if self._end is None:
            await self._look()
            if self._seen:
                self.due_at = self._clock.monotonic() + self._settings.rest.total_seconds()
                return []
        resting = await self._look_again() if self._seen else []
        assert self._end is not None  # noqa: S101 - for the type checker
        self._start, self._end, self._seen = self._end, None, {}
        self.is_complete = self._is_last
        return resting

    async def _look(self) -> None:
        """Take the wanted files of the next window."""
        seen: dict[str, ListedObject] = {}
        last = self._start
        count = 0
        async with aclosing(pages_after(self._store, self._start)) as pages:
            async for page in pages:
                count += len(page)
                seen.update((file.key, file) for file in page if self._is_wanted(file))
                last = page[-1].key if page else last
                if count >= self._settings.window:
                    break
        self._seen, self._end, self._is_last = seen, last, count < self._settings.window

    async def _look_again(self) -> list[ListedObject]:
        """Return the files of the window that are as they were, and old enough."""
        assert self._end is not None  # noqa: S101 - for the type checker
        end = self._end.encode()
        oldest = self._clock.now_ns() - self._settings.rest // timedelta(microseconds=1) * 1_000
        resting: dict[str, ListedObject] = {}  # a file may be listed twice while others are renamed
        async with aclosing(pages_after(self._store, self._start)) as pages:
            async for page in pages:
                resting |= {
                    file.key: file for file in page if self._seen.get(file.key) == file and file.modified_ns <= oldest
                }
                if page and page[-1].key.encode() >= end:
                    break
        return list(resting.values())
