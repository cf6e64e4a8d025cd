"""Opens the log that a configuration names: a local file, or an outbox on an object store or HDFS."""

import asyncio
from collections.abc import Mapping
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from lakehead.clock import Clock
from lakehead.errors import Misconfigured
from lakehead.run.config.runtime_config import LoggingConfig
from lakehead.run.environment import store_settings
from lakehead.run.observe.json_lines import StructuredLogSubscriber
from lakehead.run.observe.levels import Level
from lakehead.run.observe.outbox import CalledParts, ObjectOutbox
from lakehead.run.observe.outputs import LineFile, RotatedFile, is_remote, log_file
from lakehead.storage.open_store import open_store


def open_log(
    settings: LoggingConfig, run: str, clock: Clock, environment: Mapping[str, str]
) -> StructuredLogSubscriber:
    """Open the log of a run. Raises `Misconfigured` if it cannot be opened."""
    level = Level.named(settings.level)
    if settings.sink is None or not (is_remote(settings.sink) or settings.rotate_bytes):
        return StructuredLogSubscriber(run=run, sink=settings.sink, level=level)
    return StructuredLogSubscriber(file=_line_file(settings, settings.sink, run, clock, environment), level=level)


def _line_file(settings: LoggingConfig, sink: str, run: str, clock: Clock, environment: Mapping[str, str]) -> LineFile:
    if not is_remote(sink):
        return RotatedFile(log_file(sink, run), settings.rotate_bytes or 0, settings.keep_files)
    parts = _hdfs_parts(sink) if sink.startswith("hdfs://") else _store_parts(sink, environment)
    return ObjectOutbox(sink, parts, clock, prefix=run)


def _store_parts(url: str, environment: Mapping[str, str]) -> CalledParts:
    store = open_store(url, store_settings(url, environment))

    def put(name: str, body: bytes) -> None:
        asyncio.run(_put(name, body))

    async def _put(name: str, body: bytes) -> None:
        await store.put(name, body)

    return CalledParts(put)


def _hdfs_parts(url: str) -> CalledParts:
    """Open a folder of HDFS. Raises `Misconfigured` if this machine has no Hadoop client, or HDFS does not answer."""
    from pyarrow import fs  # noqa: PLC0415 - only for HDFS

    parts = urlsplit(url)
    try:
        files = fs.HadoopFileSystem(parts.hostname or "default", parts.port or 0, user=parts.username)
        folder = PurePosixPath(parts.path or "/")
        files.create_dir(str(folder), recursive=True)
    except OSError as error:
        raise Misconfigured(
            f"The log cannot be written to {url} ({_first_line(error)}). Install a Hadoop client (libhdfs and its "
            "class path: HADOOP_HOME, CLASSPATH) and check the address, or set runtime.logging.sink to another place."
        ) from error

    def put(name: str, body: bytes) -> None:
        with files.open_output_stream(str(folder / name)) as file:
            file.write(body)

    return CalledParts(put)


def _first_line(error: OSError) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
