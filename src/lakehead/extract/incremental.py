"""Tables of which only what is new is read: merged into a mirror by key, or added."""

from dataclasses import dataclass, field, replace
from datetime import datetime

from lakehead.errors import Misconfigured, Unavailable
from lakehead.extract.facts import Increments, kind_of_column
from lakehead.extract.late_commits import LateCommitCheck
from lakehead.extract.merging import Newest
from lakehead.extract.planning.axis import Kind
from lakehead.extract.planning.planner import IncrementalTable, PlannerRequest
from lakehead.extract.planning.stored import from_state, to_state
from lakehead.extract.planning.windows import Slice
from lakehead.extract.read_by import check_read_by, read_by
from lakehead.extract.sink import Overtaken, Reading, Standing, TableSink, keys_of, known_by
from lakehead.extract.strategy import Done, ExecutionContext, Skipped
from lakehead.extract.table import Rule, TableSettings
from lakehead.lake.ports import AuditFailed
from lakehead.source.filters import parse_filter
from lakehead.source.port import Source, schema_of
from lakehead.state.model import JsonObject, Mark, SlicePlan, Watermark
from lakehead.state.values import to_text
from lakehead.telemetry.events import TablePlanned

TRIES = 5
"""How often a step is decided anew because another run was faster."""


@dataclass(frozen=True, slots=True)
class Scd1Strategy:
    """Slices to raw, one after the other, then their newest rows into the mirror, then the watermark."""

    def run(self, context: ExecutionContext) -> Done | Skipped:
        """Load what is new. What an earlier run has left undone is done first."""
        return _Load(context, merged=True).run()


@dataclass(frozen=True, slots=True)
class AppendStrategy:
    """Slices to raw, which is what readers see: for rows that are written once and never changed."""

    def run(self, context: ExecutionContext) -> Done | Skipped:
        """Load what is new."""
        return _Load(context, merged=False).run()


@dataclass(slots=True)
class _Load:
    """One run of one table."""

    context: ExecutionContext
    merged: bool
    landed: int = 0
    merges: int = 0
    """How often this run has brought rows into the mirror: its own, or those that an earlier run has left in raw."""
    late_commits: LateCommitCheck = field(init=False)

    def __post_init__(self) -> None:
        self.late_commits = LateCommitCheck(self.context)

    def run(self) -> Done | Skipped:
        context = self.context
        if self.merged and not context.table.reload:
            self._finish()
        context.progress("reaching the source")
        with context.source() as source:
            increments = self._increments(source)
            increments.check_possible()
            self.late_commits.check(increments, source.open_transactions())
            context.sink.prepare(schema_of(increments.info.columns))
            plan = self._read(increments)
        held = self.late_commits.held_back
        if plan is None and context.table.reload and context.sink.standing().raw is not None:
            if held is not None:
                raise Unavailable(
                    f"The table {context.table.name} cannot be loaded anew: it is {held}. It stays as it was. Run it "
                    "again when that has ended."
                )
            raise AuditFailed(
                f"The source of {context.table.name} has no rows to load anew, and had some before. The table stays as "
                "it was. If it is to become empty, drop it."
            )
        if self.merged:
            self._merge()  # also where nothing is new: without its plan, nobody knew that raw was whole
        raw = self._mark(plan)
        if plan is None and not self.landed and not self.merges:
            if held is not None:
                return Skipped(f"{f'nothing new since {_text(raw)}' if raw else 'nothing read yet'}; {held}")
            return Skipped(f"nothing new since {_text(raw)}" if raw else "the source has no rows yet")
        return Done(
            rows=context.tally.rows,
            published=context.tally.published,
            slices=self.landed,
            watermark=_text(raw) if raw else None,
        )

    def _finish(self) -> None:
        """Do without the source what an earlier run has left: slices that are in raw and not yet in the mirror."""
        sink, state = self.context.sink, self.context.state
        if sink.id is None:
            return
        standing, plan = sink.standing(), state.plan(sink.id)
        if plan is not None and not _is_landed(plan, standing):
            return
        # Without its plan nobody can tell whether raw holds all of a new generation: the next plan will see to it.
        if not standing.complete and (plan is not None or standing.same_generation):
            self._merge()
        if plan is not None:
            self._mark(plan)

    def _increments(self, source: Source) -> Increments:
        table = self.context.table
        info, kept = self.context.described(source)
        column = info.column(table.incremental_column or "")
        kind = kind_of_column(column, table.incremental_kind, info)
        if table.lag_seconds and not kind.follows_the_clock:
            raise Misconfigured(
                f"Table {table.name}: lag_seconds is {table.lag_seconds}, and column {column.name!r} of type "
                f"{column.declared} has no seconds. Take lag_seconds out, or choose a column of moments or dates."
            )
        if kind is Kind.TEXT and table.as_text and source.catalogue(table.source).column(column.name).arrow is None:
            raise Misconfigured(
                f"Column {column.name!r} of {info} is carried as text, which is not ordered as its values of type "
                f"{column.declared} are. Choose another incremental_column, or load the table in full."
            )
        return Increments(source, info, column, kind, kept, table.null_watermarks)

    def _read(self, increments: Increments) -> SlicePlan | None:
        """Bring every slice of the plan to raw; the plan, or None if there is nothing new."""
        anew = self.context.table.reload
        for _ in range(TRIES):
            plan = self._plan(increments, anew=anew)
            if plan is None:
                return None
            anew = False
            try:
                self._land(plan, increments)
            except Overtaken:
                self.context.state.discard_plan(plan.table, plan.id)
                continue
            return plan
        raise _too_slow(self.context.table)

    def _plan(self, increments: Increments, *, anew: bool) -> SlicePlan | None:
        """The plan to run: the one that is stored, or a new one, which is stored before it runs."""
        context, table_id = self.context, _id(self.context.sink)
        standing = context.sink.standing()
        stored = context.state.state.slices.load(table_id)  # not from memory: others may have planned meanwhile
        reads = _reads(increments)
        if not anew and (stored is None or stored.detail.get("reads") != reads):
            check_read_by(context.table.name, standing.raw, increments, context.table.source_filter)
        if stored is not None and (anew or stored.detail.get("reads") != reads or _is_landed(stored, standing)):
            context.state.discard_plan(stored.table, stored.id)
            stored = None
        resumed = stored is not None
        if stored is None:
            made = self._new_plan(increments, standing, reads, anew=anew)
            if made is None:
                return None
            stored = context.state.save_plan(made)
            while anew and stored.generation < made.generation:  # another run has planned an increment meanwhile
                context.state.discard_plan(stored.table, stored.id)
                stored = context.state.save_plan(made)
        asked_at = stored.detail.get("asked_at")  # only in plans of numbers and text
        if isinstance(asked_at, str) and not self.late_commits.may_read(increments, datetime.fromisoformat(asked_at)):
            if anew:  # whoever asked for it is told that it has failed
                context.state.discard_plan(stored.table, stored.id)
            return None  # the plan stays: a later run reads up to where it ends, whatever others have begun by then
        done = sum(_has_landed(from_state(each), stored.generation, standing) for each in stored.slices)
        context.emit(TablePlanned(slices=len(stored.slices), done=done, resumed=resumed, planner=stored.detail))
        return stored

    def _new_plan(
        self, increments: Increments, standing: Standing, reads: JsonObject, *, anew: bool
    ) -> SlicePlan | None:
        context, table = self.context, self.context.table
        generation = standing.generation + (1 if anew else 0)
        raw = standing.raw if standing.raw and standing.raw.generation == generation else None
        # What an appended table had is replaced at once, or its readers would see a part of it.
        replaces = anew and not self.merged
        request = PlannerRequest(
            table=IncrementalTable(
                name=table.name,
                column=increments.column.name,
                kind=increments.kind,
                initial_watermark=table.initial_watermark,
                lag_seconds=table.lag_seconds,
                rereads=self.merged,
            ),
            slicing=replace(context.slicing, enabled=False) if replaces else context.slicing,
            load_date=context.load_date,
            stored=raw.value if raw else None,
            lag_seconds=context.lag_seconds if increments.kind.follows_the_clock else 0,
        )
        context.progress("planning")
        answers = increments.answers()
        self.late_commits.look(increments, answers)
        plan = context.planner.plan(request, answers.facts)
        if not plan.slices:
            return None
        made = to_state(plan, plan_id=context.ids.uuid(), table=_id(context.sink), generation=generation)
        asked = {} if increments.kind.follows_the_clock else {"asked_at": answers.asked_at.isoformat()}
        return replace(made, detail={**made.detail, "reads": reads, "replaces": replaces, **asked})

    def _land(self, plan: SlicePlan, increments: Increments) -> None:
        context, table, slices = self.context, self.context.table, len(plan.slices)
        standing, counted = context.sink.standing(), self._without_watermark(increments)
        for number, each in enumerate(plan.slices, 1):
            part = from_state(each)
            if _has_landed(part, plan.generation, standing):
                continue
            context.progress("reading", slice=number, slices=slices)
            reading = Reading(
                source=increments.source,
                query=increments.query(part.window, last=number == slices),
                reader=table.reader,
                parts=table.read_partitions,
                fetch_rows=table.fetch_rows,
                read_by=read_by(increments, table.source_filter),
            )
            with context.phase("raw") as phase:
                phase.written = written = context.sink.stage_incremental_slice(
                    part, plan.generation, reading, replace=plan.detail.get("replaces") is True
                )
                phase.detail |= {"slice": number, "slices": slices, "unit": part.unit, **counted}
            if written is not None:
                context.tally.rows += written.rows or 0
                self.landed += 1
            context.state.state.slices.mark_done(plan.table, plan.id, number - 1, written.snapshot if written else None)
            context.progress("read", slice=number, slices=slices)

    def _merge(self) -> None:
        """Bring the mirror to where raw is, however many runs are at it."""
        context = self.context
        for _ in range(TRIES):
            if context.sink.standing().complete:
                return
            context.progress("merging into the mirror")
            try:
                with context.phase("intermediate") as phase:
                    phase.written = written = context.sink.commit_incremental(self._newest())
            except Overtaken:
                continue
            if written is not None:
                context.tally.publish(written.rows)
                self.merges += 1
        if not context.sink.standing().complete:
            raise _too_slow(context.table)

    def _newest(self) -> Newest:
        """Which rows count, in the names of raw's own columns: it may be asked when the source is out of reach.

        They are ordered by the column that they were read by, whatever the configuration says by now.
        """
        table, sink = self.context.table, self.context.sink
        reached, raw = sink.standing().raw, known_by(sink.columns, "t")
        by = reached.read_by.column if reached and reached.read_by else table.incremental_column or ""
        return Newest(
            keys=keys_of(table, sink.columns),
            watermark=raw.column(by).name,
            tiebreaks=tuple(raw.column(name).name for name in table.tiebreak_columns),
            null_keys=table.null_keys is Rule.INCLUDE,
            filters=tuple(parse_filter(each, raw, "spark", qualifier="t").sql for each in table.merge_filters),
        )

    def _mark(self, plan: SlicePlan | None) -> Watermark | None:
        """The last step: the table is done up to where raw is, and its plan with it."""
        context = self.context
        raw = context.sink.standing().raw
        if raw is None:
            return None
        reached = replace(raw, mark=Mark.DONE)
        if context.state.watermark(raw.table, Mark.DONE) != reached:
            with context.phase("watermark") as phase:
                context.state.advance(reached)
                phase.detail["watermark"] = _text(raw)
        if plan is not None:
            context.state.discard_plan(plan.table, plan.id)
        return raw

    def _without_watermark(self, increments: Increments) -> dict[str, object]:
        """Rows that have no watermark are counted, whatever becomes of them; where they must not be, reading fails."""
        if self.context.table.null_watermarks is Rule.FAIL:
            return {}
        lacking = increments.count_without_watermark()
        return {"null_watermarks": lacking} if lacking else {}


def _is_landed(plan: SlicePlan, standing: Standing) -> bool:
    return not plan.slices or _has_landed(from_state(plan.slices[-1]), plan.generation, standing)


def _has_landed(part: Slice, generation: int, standing: Standing) -> bool:
    raw, mark = standing.raw, part.watermark
    if raw is None or raw.generation != generation:
        return raw is not None and raw.generation > generation
    if isinstance(mark, str):  # only the source knows how text is ordered, and such a plan has one slice
        return raw.value == mark
    return bool(raw.value >= mark)  # type: ignore[operator] # of one kind: the plan was made for the column


def _reads(increments: Increments) -> JsonObject:
    """What a plan is good for: read otherwise, its windows would mean other rows."""
    return {"column": increments.column.name, "filter": increments.filter.sql if increments.filter else None}


def _id(sink: TableSink) -> str:
    if sink.id is None:
        raise Misconfigured("The table is planned before it was prepared.")
    return sink.id


def _text(mark: Watermark) -> str:
    return to_text(mark.value)[1]


def _too_slow(table: TableSettings) -> Overtaken:
    return Overtaken(f"Other runs of {table.name} were faster {TRIES} times. Run it again.")
