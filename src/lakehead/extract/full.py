"""The mode `full`: the whole table is read each day, and replaces the previous load."""

from dataclasses import dataclass

from lakehead.extract.sink import TableProgress, is_full_load
from lakehead.extract.strategy import TRIES, Done, ExecutionContext, Skipped, too_slow
from lakehead.lake.ports import Overtaken
from lakehead.source.port import Query
from lakehead.state.model import DayState

LOADS = 20
"""How often a table is read when loads of other days come first, as in a backfill of many days in parallel."""


@dataclass(frozen=True, slots=True)
class FullRefreshStrategy:
    """Loads raw, then the final table or view; each is done once for a load date."""

    def run(self, context: ExecutionContext) -> Done | Skipped:
        """Load the table for the load date, unless that is done."""
        progress = context.sink.progress()
        left = self._phases_left(context, progress)
        if not left:
            return Skipped(f"loaded for {context.load_date}")
        if "raw" in left:
            progress = self._read(context, progress)
        if "finalized" in left:
            self._finalize(context, progress)
        return Done(rows=context.tally.rows, published=context.tally.published)

    def _phases_left(self, context: ExecutionContext, progress: TableProgress) -> list[str]:
        phases = ["raw"] if context.table.finalize is None else ["raw", "finalized"]
        day = {} if context.table.reload else context.day()
        left = [phase for phase in phases if day.get(phase) is not DayState.DONE]
        if not left and "finalized" in phases and not context.sink.has_published():
            left = ["finalized"]  # it was done, and the table or view was removed since
        if "raw" not in left and (left or "finalized" not in phases) and not is_full_load(progress.raw):
            return phases  # the table's mode was incremental on that day, so raw holds no whole load of it
        return left

    def _read(self, context: ExecutionContext, progress: TableProgress) -> TableProgress:
        table, sink = context.table, context.sink
        context.progress("reaching the source")
        with context.source() as source:
            described = context.described(source)
            query = Query(table=described.info, columns=described.plan.read, filter=described.filter)
            reading = context.reading(source, query)
            progress = context.prepare(described, progress)
            context.progress("reading")
            context.reopen("finalized")
            for _ in range(LOADS):
                generation = progress.generation + (1 if table.reload else 0)
                try:
                    with context.phase("raw") as phase:
                        progress = sink.write_raw(context.load_date, generation, reading, progress)
                        phase.written = progress.written
                except Overtaken:  # another day was loaded or reloaded in the meantime; this one comes after it
                    progress = sink.progress()
                    continue
                context.tally.rows += (progress.written and progress.written.rows) or 0
                return progress
        raise too_slow(table, LOADS)

    def _finalize(self, context: ExecutionContext, progress: TableProgress) -> None:
        context.progress("finalizing")
        for _ in range(TRIES):
            try:
                with context.phase("finalized") as phase:
                    progress = context.sink.finalize_full(progress)
                    phase.written = progress.written
                    phase.detail["strategy"] = context.table.finalize
            except Overtaken:
                progress = context.sink.progress()
                continue
            context.tally.publish(progress.written.rows if progress.written else None)
            return
        raise too_slow(context.table)
