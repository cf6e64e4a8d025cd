"""The incremental modes: only new rows are read, and merged into a mirror by key (`scd1`) or appended (`append`)."""

from dataclasses import dataclass, field, replace
from datetime import datetime

from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.extract.dedup import dedup_rule
from lakehead.extract.incremental_source import IncrementalSource, kind_of_column
from lakehead.extract.late_commits import LateCommitCheck
from lakehead.extract.planning.axis import Kind
from lakehead.extract.planning.planner import IncrementalTable, PlannerRequest
from lakehead.extract.planning.stored import from_state, to_state
from lakehead.extract.planning.windows import Slice
from lakehead.extract.read_by import check_read_by, read_by
from lakehead.extract.schema_checks import DescribedTable
from lakehead.extract.sink import TableProgress, TableSink
from lakehead.extract.strategy import TRIES, Done, ExecutionContext, Skipped, too_slow
from lakehead.extract.table_settings import Rule
from lakehead.lake.ports import AuditFailed, Overtaken
from lakehead.source.port import Source
from lakehead.state.model import JsonObject, Mark, SlicePlan, Watermark
from lakehead.state.values import to_text
from lakehead.telemetry.events import TablePlanned


@dataclass(frozen=True, slots=True)
class Scd1Strategy:
    """Lands slices in raw, one after the other, merges their newest rows into the mirror, then moves the watermark."""

    def run(self, context: ExecutionContext) -> Done | Skipped:
        """Load what is new. What an earlier run has left unfinished is finished first."""
        return IncrementalLoad(context).run()


@dataclass(frozen=True, slots=True)
class AppendStrategy:
    """Lands slices in raw, which readers read directly: for rows that are written once and never change."""

    def run(self, context: ExecutionContext) -> Done | Skipped:
        """Load what is new."""
        return IncrementalLoad(context).run()


@dataclass(slots=True)
class IncrementalLoad:
    """One run of one table, step by step. Each step takes the table's progress and returns the new progress."""

    context: ExecutionContext
    landed: int = 0
    """Slices that this run has landed in raw."""
    merged: int = 0
    """How often this run has merged rows into the mirror: its own, or those that an earlier run left in raw."""
    late_commits: LateCommitCheck = field(init=False)

    def __post_init__(self) -> None:
        self.late_commits = LateCommitCheck(self.context)

    @property
    def merges(self) -> bool:
        """Whether raw's rows are merged into a mirror; otherwise readers read raw."""
        return self.context.table.mode.merges

    def run(self) -> Done | Skipped:
        """Finish an earlier run's work, plan, land the slices, merge them, and mark the table as done."""
        context = self.context
        progress = context.sink.progress()
        if self.merges and not context.table.reload:
            progress = self._finish(progress)
        context.progress("reaching the source")
        with context.source() as source:
            described = context.described(source)
            increments = self._increments(source, described)
            increments.check_possible()
            self.late_commits.check(increments, source.open_transactions())
            progress = context.prepare(described, progress)
            generation = progress.generation
            plan, progress = self._read(increments, progress)
        if plan is None and context.table.reload and progress.raw is not None and progress.generation == generation:
            raise self._nothing_to_reload()
        if self.merges:
            progress = self._merge(progress)  # also if nothing is new: an earlier run may have left slices in raw
        self._mark_done(plan, progress)
        return self._outcome(plan, progress)

    def _finish(self, progress: TableProgress) -> TableProgress:
        """Merge slices that an earlier run left in raw, which needs no source."""
        sink, state = self.context.sink, self.context.state
        if sink.id is None:
            return progress
        plan = state.plan(sink.id)
        if plan is not None and not _is_landed(plan, progress):
            return progress
        # Without its plan it is unknown whether raw holds all of a new generation; the next plan completes it.
        if not progress.complete and (plan is not None or progress.same_generation):
            progress = self._merge(progress)
        if plan is not None:
            self._mark_done(plan, progress)
        return progress

    def _increments(self, source: Source, described: DescribedTable) -> IncrementalSource:
        table, info = self.context.table, described.info
        column = info.column(table.incremental_column or "")
        kind = kind_of_column(column, table.incremental_kind, info)
        if table.lag_seconds and not kind.follows_the_clock:
            raise Misconfigured(
                f"Table {table.name}: lag_seconds is {table.lag_seconds}, but column {column.name!r} of type "
                f"{column.declared} has no seconds. Remove lag_seconds, or choose a timestamp or date column."
            )
        if (
            kind is Kind.TEXT
            and table.as_text
            and source.describe_table(table.source).column(column.name).arrow is None
        ):
            raise Misconfigured(
                f"Column {column.name!r} of {info} is read as text, which is not ordered like its values of type "
                f"{column.declared}. Choose another incremental_column, or load the table in full."
            )
        return IncrementalSource(
            source, info, column, kind, described.filter, table.null_watermarks, described.plan.read
        )

    def _read(self, increments: IncrementalSource, progress: TableProgress) -> tuple[SlicePlan | None, TableProgress]:
        """Plan, and land every slice of the plan in raw. The plan is None if there is nothing new."""
        context, anew = self.context, self.context.table.reload
        for _ in range(TRIES):
            plan = self._plan(increments, progress, anew=anew)
            if plan is None:
                return None, progress
            try:
                return plan, self._land(plan, increments, progress)
            except Overtaken:
                context.state.discard_plan(plan.table, plan.id)
                progress = context.sink.progress()
                # An ordinary run that was faster does not replace a reload; one that began the generation does.
                anew = anew and progress.generation < plan.generation
        raise too_slow(context.table)

    def _plan(self, increments: IncrementalSource, progress: TableProgress, *, anew: bool) -> SlicePlan | None:
        """The plan to run: the one that is stored, or a new one, which is stored before it runs."""
        context, table_id = self.context, _id(self.context.sink)
        stored = context.state.state.slices.load(table_id)  # not from memory: another run may have planned since
        reads = _reads(increments)
        if not anew and (stored is None or stored.detail.get("reads") != reads):
            check_read_by(context.table.name, progress.raw, increments, context.table.source_filter)
        if stored is not None and (anew or stored.detail.get("reads") != reads or _is_landed(stored, progress)):
            context.state.discard_plan(stored.table, stored.id)
            stored = None
        resumed = stored is not None
        if stored is None:
            made = self._new_plan(increments, progress, reads, anew=anew)
            if made is None:
                return None
            stored = context.state.save_plan(made)
            while anew and stored.generation < made.generation:  # another run has planned an increment since
                context.state.discard_plan(stored.table, stored.id)
                stored = context.state.save_plan(made)
        asked_at = stored.detail.get("asked_at")  # only in plans of numbers and text
        if isinstance(asked_at, str) and not self.late_commits.may_read(increments, datetime.fromisoformat(asked_at)):
            if anew:  # the reload then ends with an error
                context.state.discard_plan(stored.table, stored.id)
            return None  # the plan stays: a later run reads up to its end, whatever transactions are open by then
        done = sum(_has_landed(from_state(each), stored.generation, progress) for each in stored.slices)
        context.emit(TablePlanned(slices=len(stored.slices), done=done, resumed=resumed, planner=stored.detail))
        return stored

    def _new_plan(
        self, increments: IncrementalSource, progress: TableProgress, reads: JsonObject, *, anew: bool
    ) -> SlicePlan | None:
        context, table = self.context, self.context.table
        generation = progress.generation + (1 if anew else 0)
        raw = progress.raw if progress.raw and progress.raw.generation == generation else None
        # A reload of an appended table replaces its rows in one commit, or readers would see only a part of them.
        replaces = anew and not self.merges
        request = PlannerRequest(
            table=IncrementalTable(
                name=table.name,
                column=increments.column.name,
                kind=increments.kind,
                initial_watermark=table.initial_watermark,
                lag_seconds=table.lag_seconds,
                rereads=self.merges,
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

    def _land(self, plan: SlicePlan, increments: IncrementalSource, progress: TableProgress) -> TableProgress:
        """Land the slices of a plan that are not in raw yet, one after the other."""
        context, table, slices = self.context, self.context.table, len(plan.slices)
        counted = self._without_watermark(increments)
        for number, each in enumerate(plan.slices, 1):
            part = from_state(each)
            if _has_landed(part, plan.generation, progress):
                continue
            context.progress("reading", slice=number, slices=slices)
            query = increments.query(part.window, last=number == slices)
            reading = context.reading(increments.source, query, read_by=read_by(increments, table.source_filter))
            with context.phase("raw") as phase:
                progress = context.sink.stage_incremental_slice(
                    part, plan.generation, reading, progress, replace=plan.detail.get("replaces") is True
                )
                phase.written = written = progress.written
                phase.detail |= {"slice": number, "slices": slices, "unit": part.unit, **counted}
            if written is not None:
                context.tally.rows += written.rows or 0
                self.landed += 1
            context.state.state.slices.mark_done(plan.table, plan.id, number - 1, written.snapshot if written else None)
            context.progress("read", slice=number, slices=slices)
        return progress

    def _merge(self, progress: TableProgress) -> TableProgress:
        """Merge into the mirror until it has all of raw, also if other runs do the same."""
        context = self.context
        for _ in range(TRIES):
            if progress.complete or self._is_being_reloaded(progress):
                return progress
            context.progress("merging into the mirror")
            try:
                rule = dedup_rule(context.table, context.sink.columns, progress.raw)
                with context.phase("intermediate") as phase:
                    progress = context.sink.commit_incremental(rule, progress)
                    phase.written = progress.written
            except Overtaken:
                progress = context.sink.progress()
                continue
            if progress.written is not None:
                context.tally.publish(progress.written.rows)
                self.merged += 1
        if not progress.complete:
            raise too_slow(context.table)
        return progress

    def _is_being_reloaded(self, progress: TableProgress) -> bool:
        """Whether another run has landed only a part of a reload so far. Until it has all, readers keep what they see.

        If that run dies, the next one goes on with its plan.
        """
        raw, published = progress.raw, progress.published
        if raw is None or published is None or published.generation >= raw.generation:
            return False
        plan = self.context.state.state.slices.load(raw.table)
        if plan is None or plan.generation != raw.generation or _is_landed(plan, progress):
            return False
        return from_state(plan.slices[0]).after is None  # otherwise it is an increment of a whole generation

    def _mark_done(self, plan: SlicePlan | None, progress: TableProgress) -> None:
        """The last step: the table is done up to raw's watermark, and its plan with it."""
        context, raw = self.context, progress.raw
        if raw is None:
            return
        reached = replace(raw, mark=Mark.DONE)
        is_merged = progress.complete or not self.merges  # not if another run is reloading the table
        if is_merged and context.state.watermark(raw.table, Mark.DONE) != reached:
            with context.phase("watermark") as phase:
                context.state.advance(reached)
                phase.detail["watermark"] = _text(raw)
        if plan is not None:
            context.state.discard_plan(plan.table, plan.id)

    def _outcome(self, plan: SlicePlan | None, progress: TableProgress) -> Done | Skipped:
        raw, held = progress.raw, self.late_commits.held_back
        if plan is None and not self.landed and not self.merged:
            if held is not None:
                return Skipped(f"{f'nothing new since {_text(raw)}' if raw else 'nothing read yet'}; {held}")
            return Skipped(f"nothing new since {_text(raw)}" if raw else "the source has no rows yet")
        tally = self.context.tally
        return Done(
            rows=tally.rows,
            published=tally.published,
            slices=self.landed,
            watermark=_text(raw) if raw else None,
        )

    def _nothing_to_reload(self) -> LakeheadError:
        """The error of a reload of a table that had rows, if there is nothing to read."""
        name, held = self.context.table.name, self.late_commits.held_back
        if held is not None:
            return Unavailable(
                f"The table {name} cannot be reloaded: it is {held}. The table was not changed. Run it again when that "
                "transaction has ended."
            )
        return AuditFailed(
            f"The source of {name} has no rows, but had some before, so it was not reloaded. The table was not "
            "changed. If it should become empty, drop it."
        )

    def _without_watermark(self, increments: IncrementalSource) -> dict[str, object]:
        """Count the rows without a watermark. Not needed if they are forbidden, because then reading fails."""
        if self.context.table.null_watermarks is Rule.FAIL:
            return {}
        lacking = increments.count_without_watermark()
        return {"null_watermarks": lacking} if lacking else {}


def _is_landed(plan: SlicePlan, progress: TableProgress) -> bool:
    return not plan.slices or _has_landed(from_state(plan.slices[-1]), plan.generation, progress)


def _has_landed(part: Slice, generation: int, progress: TableProgress) -> bool:
    raw, mark = progress.raw, part.watermark
    if raw is None or raw.generation != generation:
        return raw is not None and raw.generation > generation
    if isinstance(mark, str):  # only the source knows the order of text, so such a plan has one slice
        return raw.value == mark
    return bool(raw.value >= mark)  # type: ignore[operator] # same type: the plan was made for the column


def _reads(increments: IncrementalSource) -> JsonObject:
    """The column and filter a plan was made for: with others, its windows would select other rows."""
    return {"column": increments.column.name, "filter": increments.filter.sql if increments.filter else None}


def _id(sink: TableSink) -> str:
    if sink.id is None:
        raise Misconfigured("The table is planned before it was prepared.")
    return sink.id


def _text(mark: Watermark) -> str:
    return to_text(mark.value)[1]
