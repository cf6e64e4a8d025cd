"""The structured log: one line of JSON per event."""

import json
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from lakehead.run.observe.levels import Level, level_of
from lakehead.run.observe.outputs import AppendOnlyFile, BestEffortOutput, LineFile, log_file, warn_on_stderr
from lakehead.telemetry.emitter import EventEnvelope


def json_line(envelope: EventEnvelope) -> str:
    """Return an event as one line of JSON, in ASCII, always with these fields in this order."""
    return json.dumps(
        {
            "at": envelope.at.isoformat(timespec="microseconds"),
            "run": envelope.run,
            "table": envelope.table,
            "job_group": envelope.job_group,
            "kind": envelope.event.kind,
            "level": level_of(envelope.event).label,
            "payload": envelope.payload(),
        },
        allow_nan=False,
    )


class StructuredLogSubscriber:
    """Writes events of at least a level as JSON lines to a file, to a stream, or to both.

    The file is one that is open, or is given as a sink: a local file that lines are appended to, or a folder that gets
    one file per run. A sink is opened here, which raises `Misconfigured` if that fails. Later failures raise nothing:
    they are counted in `dropped`, and `warn` is called for the first one of each output.
    """

    def __init__(
        self,
        *,
        run: str = "run",
        sink: str | None = None,
        file: LineFile | None = None,
        stream: TextIO | None = None,
        level: Level = Level.INFO,
        warn: Callable[[str], None] = warn_on_stderr,
    ) -> None:
        self._level = level
        self._file = file if sink is None else AppendOnlyFile(log_file(sink, run))
        self._warn = warn
        self._outputs: list[BestEffortOutput] = []
        if self._file is not None:
            self._outputs.append(BestEffortOutput.file(self._file, warn))
        if stream is not None:
            self._outputs.append(BestEffortOutput.stream(stream, warn))

    @property
    def dropped(self) -> int:
        """How many lines could not be written."""
        return sum(output.dropped for output in self._outputs)

    def __call__(self, envelope: EventEnvelope) -> None:
        """Write the event if its level is high enough."""
        if level_of(envelope.event) >= self._level:
            line = json_line(envelope) + "\n"
            for output in self._outputs:
                output.write(line)

    def close(self) -> None:
        """Close the file. The stream stays open."""
        if self._file is not None:
            try:
                self._file.close()
            except (OSError, ValueError) as error:
                self._warn(f"The log {self._file.name} is not complete ({error}).")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
