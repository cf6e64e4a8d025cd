"""The orchestration plan of a configuration: what an external scheduler starts, when, and with which command.

Made from the configuration alone: nothing is started or connected to, and no secret is looked up.
"""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec
from pydantic import BaseModel

from lakehead.run.config.base import SecretReference
from lakehead.run.config.connections import FileSinkConfig
from lakehead.run.config.pipeline_config import PipelineConfig
from lakehead.run.config.table_config import TableConfig

PLAN_VERSION = 1
BY_HAND = "by-hand"
MOST_NAME_CHARACTERS = 200
"""Of units and DAGs: file systems take 255, Airflow 250."""
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of the parts of a plan."""


class Command(_Record, frozen=True, kw_only=True):
    """A command, as words and as a line for a shell."""

    words: tuple[str, ...]
    working_directory: str
    """Where it is started: relative paths of the configuration count from there."""

    shell: str
    """The same as one line to copy and paste."""


class Resources(_Record, frozen=True, kw_only=True):
    """What a command needs. With a local master, the memory and cores are those of the machine that starts it."""

    spark_master: str
    driver_memory: str
    parallel_tables: int
    """How many tables one command loads at the same time."""


class Retries(_Record, frozen=True, kw_only=True):
    """When a command is repeated. A repeated run continues where the failed one has stopped."""

    count: int
    delay_seconds: int
    exit_codes: tuple[int, ...] = (1,)
    """Only these are worth a repetition. 2 means that the configuration is wrong."""

    timeout_seconds: int | None = None


class PlannedTable(_Record, frozen=True, kw_only=True):
    """One table, and the command that loads it alone."""

    name: str
    mode: str
    source: str
    sink: str
    sink_type: str
    schedule: str | None
    group: str
    position: int
    """The order in which its group starts it, from 1."""

    read_partitions: int | None
    """Parallel read tasks; null for the number of cores."""

    command: Command


class Group(_Record, frozen=True, kw_only=True):
    """The tables of one schedule. One command loads them, in order and several at a time; no table needs another."""

    name: str
    schedule: str | None
    """A cron expression in UTC; null if it is only started by hand."""

    tables: tuple[str, ...]
    command: Command


class OrchestrationPlan(_Record, frozen=True, kw_only=True):
    """The whole plan."""

    version: int
    pipeline: str
    config: str
    groups: tuple[Group, ...]
    """Groups may run at the same time."""

    tables: tuple[PlannedTable, ...]
    resources: Resources
    retries: Retries
    environment: tuple[str, ...]
    """The names of the environment variables that the configuration refers to."""

    secret_files: tuple[str, ...]
    """The files with secrets that the configuration refers to."""

    def to_json(self) -> str:
        """Return the plan as JSON. It never contains a secret."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @classmethod
    def from_json(cls, text: str) -> "OrchestrationPlan":
        """Read a plan back. Raises `msgspec.ValidationError` for anything else."""
        return msgspec.json.decode(text, type=cls)


def make_plan(
    config: PipelineConfig,
    tables: Sequence[TableConfig],
    *,
    file: Path,
    working_directory: Path,
    options: Sequence[str] = (),
) -> OrchestrationPlan:
    """Plan these tables of a configuration. `options` are added to every command."""
    runtime, spark = config.runtime, config.spark
    schedules = {table.full_name: table.schedule or runtime.orchestration.schedule for table in tables}
    by_schedule: dict[str | None, list[str]] = {}
    for name, schedule in schedules.items():
        by_schedule.setdefault(schedule, []).append(name)

    def command(names: Sequence[str]) -> Command:
        every = len(names) == len(config.tables)
        chosen = () if every else ("--only-tables", ",".join(names))
        words = (lakehead_program(), "run", str(file.absolute()), *chosen, *options)
        shell = f"cd {shlex.quote(str(working_directory))} && {shlex.join(words)}"
        return Command(words=words, working_directory=str(working_directory), shell=shell)

    groups = tuple(
        Group(name=group_name(schedule), schedule=schedule, tables=tuple(names), command=command(names))
        for schedule, names in by_schedule.items()
    )
    references = list(secret_references(config))
    return OrchestrationPlan(
        version=PLAN_VERSION,
        pipeline=runtime.pipeline,
        config=str(file.absolute()),
        groups=groups,
        tables=tuple(
            PlannedTable(
                name=table.full_name,
                mode=table.mode,
                source=table.source or next(iter(config.sources)),
                sink=table.sink or next(iter(config.sinks)),
                sink_type="files" if isinstance(config.sink_of(table), FileSinkConfig) else "iceberg",
                schedule=schedules[table.full_name],
                group=group_name(schedules[table.full_name]),
                position=by_schedule[schedules[table.full_name]].index(table.full_name) + 1,
                read_partitions=table.read_partitions,
                command=command([table.full_name]),
            )
            for table in tables
        ),
        resources=Resources(
            spark_master=spark.master,
            driver_memory=spark.driver_memory,
            parallel_tables=runtime.max_parallel_tables,
        ),
        retries=Retries(
            count=runtime.orchestration.retries,
            delay_seconds=runtime.orchestration.retry_delay_seconds,
            timeout_seconds=runtime.orchestration.timeout_seconds,
        ),
        environment=tuple(sorted({each.env for each in references if each.env})),
        secret_files=tuple(sorted({each.file for each in references if each.file})),
    )


def group_name(schedule: str | None) -> str:
    """Return a name for the tables of a schedule, for units and DAGs: the same for the same schedule."""
    if schedule is None:
        return BY_HAND
    for sign, word in (("*", "any"), ("/", "by"), (",", "and"), ("-", "to"), (" ", "_")):
        schedule = schedule.replace(sign, word)
    return schedule


def file_name(text: str) -> str:
    """Return the text with only letters, digits, and `_ . -`; with a hash if it was changed, so that names differ."""
    name = _NO_NAME.sub("_", text)[:MOST_NAME_CHARACTERS]
    return name if name == text else f"{name}-{sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"


def lakehead_program() -> str:
    """Return the path of the `lakehead` command that belongs to this Python, else the one on the PATH."""
    own = Path(sys.executable).with_name("lakehead")
    return str(own) if own.exists() else shutil.which("lakehead") or "lakehead"


def secret_references(value: object) -> Iterator[SecretReference]:
    """Yield every reference to a secret in a configuration."""
    match value:
        case SecretReference():
            yield value
        case BaseModel():
            for name in type(value).model_fields:
                yield from secret_references(getattr(value, name))
        case Mapping():
            for inner in value.values():
                yield from secret_references(inner)
        case tuple() | list():
            for inner in value:
                yield from secret_references(inner)
        case _:
            return
