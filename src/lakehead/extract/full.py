"""A table that is read whole each day, and replaced."""

from dataclasses import dataclass

from lakehead.extract.sink import Reading, is_full_load
from lakehead.extract.strategy import Done, ExecutionContext, Skipped
from lakehead.source.port import Query, schema_of
from lakehead.state.model import DayState


@dataclass(frozen=True, slots=True)
class FullRefreshStrategy:
    """Raw first, then what readers see: each is done once for a load date, and what is done is not done again."""

    def run(self, context: ExecutionContext) -> Done | Skipped:
        """Load the table for the load date, unless it is loaded."""
        phases = ("raw",) if context.table.finalize is None else ("raw", "finalized")
        day = {} if context.table.reload else context.day()
        left = [phase for phase in phases if day.get(phase) is not DayState.DONE]
        if not left and "finalized" in phases and not context.sink.has_published():
            left = ["finalized"]  # it was done, and somebody has removed it since
        if "raw" not in left and (left or "finalized" not in phases) and not is_full_load(context.sink.standing().raw):
            left = list(
                phases
            )  # the day's rows were read in increments, as the table's mode was: none of them is whole
        if not left:
            return Skipped(f"loaded for {context.load_date}")
        if "raw" in left:
            self._read(context)
        if "finalized" in left:
            context.progress("finalizing")
            with context.phase("finalized") as phase:
                phase.written = written = context.sink.finalize_full()
                context.tally.publish(written.rows if written else None)
                phase.detail["strategy"] = context.table.finalize
        return Done(rows=context.tally.rows, published=context.tally.published)

    def _read(self, context: ExecutionContext) -> None:
        table, sink = context.table, context.sink
        context.progress("reaching the source")
        with context.source() as source:
            info, kept = context.described(source)
            sink.prepare(schema_of(info.columns))
            generation = sink.standing().generation + (1 if table.reload else 0)
            context.progress("reading")
            context.reopen("finalized")
            with context.phase("raw") as phase:
                phase.written = sink.write_raw(
                    context.load_date,
                    generation,
                    Reading(
                        source=source,
                        query=Query(table=info, filter=kept),
                        reader=table.reader,
                        parts=table.read_partitions,
                        fetch_rows=table.fetch_rows,
                    ),
                )
                context.tally.rows += (phase.written and phase.written.rows) or 0
