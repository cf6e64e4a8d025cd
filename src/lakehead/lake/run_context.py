"""The run that a table is loaded in: what its landings need whatever sink the table has."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from pyspark.sql import SparkSession

from lakehead.clock import Clock
from lakehead.ids import Ids, Random
from lakehead.lake.table_leases import StateTableLeases
from lakehead.spark.jobs import group_progress
from lakehead.state.owners import is_on_this_machine, process_of
from lakehead.state.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The run that one table belongs to, with the clock, ids, state and Spark session to use for it."""

    pipeline: str
    run: str
    load_date: date
    session: SparkSession
    """This thread's own."""

    state: State
    owner: str
    """The owner of this run's leases in the state: see `owner_named`."""

    clock: Clock
    ids: Ids
    random: Random
    waiting: Callable[[str], None]
    """Called with the reason when the table has to wait: for another run, other writers, or an unresponsive server."""

    pause: Callable[[float], object]
    """Sleeps for that many seconds in this thread; raises if the run is to stop."""

    def table_leases(self) -> StateTableLeases:
        """Leases on tables, owned by this run."""
        return StateTableLeases(
            state=self.state,
            owner=self.owner,
            clock=self.clock,
            random=self.random,
            work=group_progress(self.session),
            waiting=lambda holder: self.waiting(
                f"another run{process_named(holder)} holds the lease on the table (waiting a few minutes at most)"
            ),
        )


def process_named(owner: str | None) -> str:
    """The process of an owner, in parentheses, if it is a known process of this machine; else an empty text."""
    process = process_of(owner) if owner else None
    return f" (process {process.pid} of this machine)" if process and is_on_this_machine(process) else ""
