"""The structured log: every event is one line of JSON."""

import json
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from lakehead.run.observe.levels import Level, level_of
from lakehead.run.observe.outputs import AppendedFile, Tolerant, log_file, on_standard_error
from lakehead.telemetry.emitter import Told


def line_of(told: Told) -> str:
    """An event as a line of JSON: always these fields, in this order, in ASCII and without a line break."""
    return json.dumps(
        {
            "at": told.at.isoformat(timespec="microseconds"),
            "run": told.run,
            "table": told.table,
            "job_group": told.job_group,
            "kind": told.event.kind,
            "level": level_of(told.event).word,
            "payload": told.payload(),
        },
        allow_nan=False,
    )


class StructuredLogSubscriber:
    """Writes events from a level on as JSON lines, to a sink on this machine, to a stream, or to both.

    The sink is a file, or a folder in which the run has one; lines are appended, each at once. It is opened when this
    is made, and `Misconfigured` is raised if it cannot be. Afterwards nothing is raised any more: lines that a full
    disk or a closed stream does not take are counted in `dropped`, and `tell` is told once of each output that failed.
    """

    def __init__(
        self,
        *,
        run: str = "run",
        sink: str | None = None,
        stream: TextIO | None = None,
        level: Level = Level.INFO,
        tell: Callable[[str], None] = on_standard_error,
    ) -> None:
        self._level = level
        self._file = None if sink is None else AppendedFile(log_file(sink, run))
        self._outputs: list[Tolerant] = []
        if self._file is not None:
            self._outputs.append(Tolerant.file(self._file, tell))
        if stream is not None:
            self._outputs.append(Tolerant.stream(stream, tell))

    @property
    def dropped(self) -> int:
        """The lines that an output did not take."""
        return sum(output.dropped for output in self._outputs)

    def __call__(self, told: Told) -> None:
        """Write the event, if it matters enough."""
        if level_of(told.event) >= self._level:
            line = line_of(told) + "\n"
            for output in self._outputs:
                output.write(line)

    def close(self) -> None:
        """Close the file. The stream stays as it is."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
