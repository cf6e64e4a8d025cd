"""What has changed between a table and its source, and what the policy makes of it. Pure functions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakehead.errors import Misconfigured
from lakehead.metadata.column_types import holds, plain
from lakehead.metadata.policy import Action, Drift, SchemaPolicy
from lakehead.metadata.snapshot import TableSnapshot


class SchemaFrozen(Misconfigured):
    """The source has changed in a way that the table's policy does not follow. Nothing was changed."""


class TableSetAside(Misconfigured):
    """The source has changed, and the table's policy is to set it aside. Nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a source's table."""

    drift: Drift
    column: str
    """The column's name in the table; of a new one, in the source. For a key, its columns now."""

    old: str | None = None
    """The former type, order or key; None for a new column."""

    new: str | None = None
    """The present one; None for a dropped column."""

    renamed_to: str | None = None
    clash: str | None = None
    """A column of the table whose name differs from the new one's in letter case alone: it cannot have both."""

    def __str__(self) -> str:
        """Describe it with column, old and new type."""
        match self.drift:
            case Drift.NEW:
                return f"the source has a new column {self.column!r} of type {self.new}{self._clash}"
            case Drift.DROPPED:
                return f"the source has no column {self.column!r} of type {self.old} any more"
            case Drift.RENAMED:
                other = f"{self.renamed_to!r} of type {self.new}"
                return f"column {self.column!r} of type {self.old} is {other} now{self._clash}"
            case Drift.REORDERED:
                return f"the order of the columns was {self.old} and is {self.new} now"
            case Drift.NULLABILITY:
                return f"column {self.column!r} was {self.old} and is {self.new} now"
            case Drift.KEY:
                return f"the primary key was {self.old} and is {self.new} now"
            case _:
                return f"column {self.column!r} was {self.old} and is {self.new} now"

    @property
    def _clash(self) -> str:
        return f", which differs from the table's {self.clash!r} in letter case alone" if self.clash else ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done about a change."""

    change: Change
    action: Action


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """How a table is loaded whose changes were decided."""

    read: tuple[str, ...]
    """The source's columns to read."""

    columns: pa.Schema
    """The columns that the table needs, those included that the source no longer has."""

    decisions: tuple[Decision, ...] = ()


ADVICE: Mapping[Drift, str] = {
    Drift.NEW: "set schema_policy.new to evolve to add it, or to ignore to leave it out",
    Drift.DROPPED: "set schema_policy.allow_missing_columns to true to go on with NULL in it",
    Drift.RENAMED: (
        "rename it in the lakehouse too, in raw and in what readers read (ALTER TABLE … RENAME COLUMN), or set "
        "schema_policy.renamed to evolve to add the new name beside the old one"
    ),
    Drift.WIDENED: "set schema_policy.widened to evolve to widen the column",
    Drift.NARROWED: "set schema_policy.narrowed to evolve to go on with the wider column",
    Drift.CHANGED: (
        "give the column another name, in the source or by a view, or load the table under another name; as_text reads "
        "a column as text from the beginning"
    ),
    Drift.REORDERED: "set schema_policy.reordered to evolve: values go by the names of columns",
    Drift.NULLABILITY: "set schema_policy.nullability to evolve: columns of the lakehouse may be NULL anyway",
    Drift.KEY: "correct primary_keys and set schema_policy.key to evolve; then load the table again with --reload",
}
"""What to do about a change that stops a table."""


def changes(
    table: pa.Schema | None,
    source: pa.Schema,
    now: TableSnapshot,
    before: TableSnapshot | None,
    *,
    left_out: Sequence[str] = (),
) -> tuple[Change, ...]:
    """What has changed, in the order of the columns.

    `table` has the columns of the table in the lakehouse, without ours; None if it does not exist. `source` has those
    of the source with the types that they would have there. `before` is the snapshot of the last load, if it is known.
    `left_out` are columns of the table that get no values: by configuration, or because their loss was accepted before.
    """
    if table is None:
        return ()
    return (*_by_table(table, source, now, before, left_out), *_by_snapshot(now, before))


def _by_table(
    table: pa.Schema, source: pa.Schema, now: TableSnapshot, before: TableSnapshot | None, left_out: Sequence[str]
) -> Iterator[Change]:
    gone = [name for name in table.names if name not in source.names and name not in left_out]
    new = [name for name in source.names if name not in table.names]
    renamed = _renamed(gone, new, now, before)
    folded = {name.lower(): name for name in table.names}
    for name in new:
        if name not in renamed.values():
            shown = _shown(now, name, source)
            yield Change(drift=Drift.NEW, column=name, new=shown, clash=folded.get(name.lower()))
    for name in gone:
        old = _shown(before, name, table)
        if (other := renamed.get(name)) is None:
            yield Change(drift=Drift.DROPPED, column=name, old=old)
        else:
            shown, clash = _shown(now, other, source), folded.get(other.lower())
            yield Change(drift=Drift.RENAMED, column=name, old=old, new=shown, renamed_to=other, clash=clash)
    for name in source.names:
        if name in table.names:
            yield from _by_type(name, table.field(name).type, source.field(name).type, now, before)


def _by_type(
    name: str, have: pa.DataType, comes: pa.DataType, now: TableSnapshot, before: TableSnapshot | None
) -> Iterator[Change]:
    known = before.column(name) if before else None
    if holds(have, comes):
        if known is not None and known.stored not in (None, str(plain(comes))):
            drift = Drift.NARROWED
        else:
            return
    else:
        drift = Drift.WIDENED if holds(comes, have) else Drift.CHANGED
    old, new = (
        _shown(before if known else None, name, pa.schema([(name, have)])),
        _shown(now, name, pa.schema([(name, comes)])),
    )
    yield Change(drift=drift, column=name, old=old, new=new)


def _by_snapshot(now: TableSnapshot, before: TableSnapshot | None) -> Iterator[Change]:
    if before is None:
        return
    both = [column.name for column in now.columns if before.column(column.name)]
    former = [column.name for column in before.columns if column.name in both]
    if both != former:
        yield Change(drift=Drift.REORDERED, column=both[0], old=", ".join(former), new=", ".join(both))
    for column in now.columns:
        known = before.column(column.name)
        if known is not None and known.nullable != column.nullable:
            words = {True: "nullable", False: "NOT NULL"}
            yield Change(
                drift=Drift.NULLABILITY, column=column.name, old=words[known.nullable], new=words[column.nullable]
            )
    if now.primary_key != before.primary_key:
        old, new = (f"({', '.join(key)})" if key else "none" for key in (before.primary_key, now.primary_key))
        yield Change(drift=Drift.KEY, column=", ".join(now.primary_key), old=old, new=new)


def _renamed(
    gone: Sequence[str], new: Sequence[str], now: TableSnapshot, before: TableSnapshot | None
) -> dict[str, str]:
    """The new name of each renamed column: one with the same number in the same table, whose old name is gone."""
    if before is None or before.identity is None or before.identity != now.identity:
        return {}
    numbers = {column.number: column.name for column in now.columns if column.number is not None}
    found = {}
    for name in gone:
        known = before.column(name)
        other = numbers.get(known.number) if known and known.number is not None else None
        if other is not None and other in new and before.column(other) is None:
            found[name] = other
    return found


def _shown(snapshot: TableSnapshot | None, name: str, schema: pa.Schema) -> str:
    """A column's type for people: as it is stored, and as the source declares it where that is known."""
    stored = str(plain(schema.field(name).type))
    column = snapshot.column(name) if snapshot else None
    if column is None:
        return stored
    if stored == str(pa.null()):  # it cannot be read
        return column.declared
    return column.declared if column.declared == stored else f"{column.declared} ({column.stored or stored})"


def decided(found: Sequence[Change], policy: SchemaPolicy, *, merges: bool, evolves: bool) -> tuple[Decision, ...]:
    """What is done about each change.

    `merges`: whether rows are merged by key. `evolves`: whether the table's columns can be changed where it is stored.
    """
    return tuple(Decision(change, _action(change, policy, merges=merges, evolves=evolves)) for change in found)


_ALTERS = (Drift.NEW, Drift.DROPPED, Drift.RENAMED, Drift.WIDENED, Drift.NARROWED)
"""The kinds after which the rows of a table have other columns than before."""


def _action(change: Change, policy: SchemaPolicy, *, merges: bool, evolves: bool) -> Action:
    action = policy.action(change.drift, merges=merges)
    if action is Action.EVOLVE and change.clash:
        return Action.FREEZE
    is_same = change.drift is Drift.NEW and action is Action.IGNORE
    if not evolves and change.drift in _ALTERS and action in (Action.EVOLVE, Action.IGNORE) and not is_same:
        return Action.FREEZE
    return action


def check_decisions(name: str, decisions: Sequence[Decision], *, renewal: str = "") -> None:
    """Raise `SchemaFrozen` or `TableSetAside` if one of them stops the table.

    `renewal` is what to do about a table whose columns cannot be changed where it is stored.
    """
    frozen = [each.change for each in decisions if each.action is Action.FREEZE]
    if frozen:
        said = "; ".join(map(str, frozen))
        advice = "; ".join(dict.fromkeys(ADVICE[change.drift] for change in frozen))
        if renewal:
            advice = f"columns of a file sink cannot be changed: {renewal}"
        raise SchemaFrozen(
            f"The table {name} does not match its source: {said}. Nothing was changed. What to do: {advice}."
        )
    aside = [each.change for each in decisions if each.action is Action.QUARANTINE]
    if aside:
        said = "; ".join(map(str, aside))
        advice = "; ".join(dict.fromkeys(ADVICE[change.drift] for change in aside))
        raise TableSetAside(f"set aside: {said}. Nothing was changed. What to do: {advice}")


def planned(table: pa.Schema | None, source: pa.Schema, decisions: Sequence[Decision]) -> SchemaPlan:
    """The columns to read and those that the table needs. The decisions do not stop the table."""
    if table is None:
        return SchemaPlan(tuple(source.names), source)
    ignored = {
        each.change.column for each in decisions if each.change.drift is Drift.NEW and each.action is Action.IGNORE
    }
    wider = {
        each.change.column for each in decisions if each.change.drift is Drift.WIDENED and each.action is Action.EVOLVE
    }
    read = tuple(name for name in source.names if name not in ignored)
    kept = [
        pa.field(
            each.name,
            source.field(each.name).type if each.name in wider else plain(each.type),
            nullable=each.nullable or each.name not in read,  # it is filled with NULL
        )
        for each in table
    ]
    added = [source.field(name) for name in read if name not in table.names]
    return SchemaPlan(read, pa.schema([*kept, *added]), tuple(decisions))
