"""A decoder that ends its process, or never ends, when it comes to certain content. It is planted where tasks run."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from lakehead.consume.object_tasks import ObjectToRead, ReadingJob, TaskReport

DEADLY = b"ends the process that reads it"
ENDLESS = b"is read for ever, which this file tells: "

ReadObjects = Callable[[ReadingJob, str, Iterable[ObjectToRead]], TaskReport]


def with_deadly_decoder() -> ReadObjects:
    """What reads objects in a task, with a format entry of this test: as NDJSON is read, but for what is deadly.

    A function of its own, so that it is sent to Spark's workers as it is: they need not find this module.
    """
    deadly, endless = DEADLY, ENDLESS

    def read_objects(job: ReadingJob, name: str, objects: Iterable[ObjectToRead]) -> TaskReport:
        import os  # noqa: PLC0415 - in the worker
        import pathlib  # noqa: PLC0415 - as above

        from lakehead.consume import object_tasks  # noqa: PLC0415 - as above
        from lakehead.consume.decode.decode import DECODERS  # noqa: PLC0415 - as above

        usual = DECODERS[job.format.name]

        def read(source: Any, *how: Any) -> Iterator[Any]:
            content = source.read()
            if content == deadly:
                os._exit(1)
            if content.startswith(endless):
                pathlib.Path(content.removeprefix(endless).decode()).touch()
                while True:
                    time.sleep(0.1)
            source.seek(0)
            yield from usual.read(source, *how)

        DECODERS[job.format.name] = replace(usual, read=read)
        try:
            return object_tasks.read_objects(job, name, objects)
        finally:
            DECODERS[job.format.name] = usual

    return read_objects
