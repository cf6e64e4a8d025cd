"""What has changed between a table and its source is told, and decided by the policy, in pure functions."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.metadata.column_types import holds
from lakehead.metadata.drift import Change, SchemaFrozen, TableSetAside, changes, check_decisions, decided, planned
from lakehead.metadata.policy import Action, Drift, SchemaPolicy
from lakehead.metadata.snapshot import ColumnSnapshot, TableSnapshot

TYPES = [
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.decimal128(10, 2),
    pa.decimal128(12, 2),
    pa.decimal128(12, 4),
]
NAMES = ["a", "b", "c", "d", "e"]
SCHEMAS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TYPES), min_size=1).map(
    lambda columns: pa.schema(list(columns.items()))
)


def snapshot(
    schema: pa.Schema, *, key: tuple[str, ...] = (), identity: str | None = "7", **numbers: int
) -> TableSnapshot:
    """As the source would describe these columns, numbered in their order or as given."""
    columns = tuple(
        ColumnSnapshot(
            name=column.name,
            declared=f"sql {column.type}",
            nullable=column.nullable,
            number=numbers.get(column.name, place),
            stored=str(column.type),
        )
        for place, column in enumerate(schema, 1)
    )
    return TableSnapshot(schema=None, name="t", columns=columns, primary_key=key, identity=identity)


def found(
    table: pa.Schema, source: pa.Schema, now: TableSnapshot | None = None, before: TableSnapshot | None = None
) -> list[str]:
    return [f"{change.drift} {change.column}" for change in changes(table, source, now or snapshot(source), before)]


AB = pa.schema([("a", pa.int32()), ("b", pa.string())])


def test_a_table_that_does_not_exist_has_not_changed() -> None:
    assert changes(None, AB, snapshot(AB), None) == ()


def test_each_change_of_columns_is_told_by_the_table_alone() -> None:
    source = pa.schema([("a", pa.int64()), ("c", pa.date32())])

    assert found(AB, source) == ["new c", "dropped b", "widened a"]
    assert found(AB, pa.schema([("a", pa.string()), ("b", pa.string())])) == ["changed a"]
    assert found(AB, AB) == []


def test_layout_in_memory_is_no_type() -> None:
    assert found(pa.schema([("a", pa.int32()), ("b", pa.large_string())]), AB) == []


def test_a_renamed_column_is_told_by_its_number_in_the_same_table_alone() -> None:
    source = pa.schema([("a", pa.int32()), ("c", pa.string())])

    assert found(AB, source, before=snapshot(AB)) == ["renamed b"]
    assert found(AB, source, before=None) == ["new c", "dropped b"]
    assert found(AB, source, before=snapshot(AB, identity="6")) == ["new c", "dropped b"], "another table of that name"
    assert found(AB, source, before=snapshot(AB, identity=None)) == ["new c", "dropped b"]
    assert found(AB, source, now=snapshot(source, c=9), before=snapshot(AB)) == ["new c", "dropped b"]


def test_names_that_were_swapped_are_not_taken_for_new_ones() -> None:
    swapped = pa.schema([("b", pa.string()), ("a", pa.int32())])

    assert found(AB, swapped, before=snapshot(AB)) == ["reordered b"]


def test_a_narrower_type_is_told_once() -> None:
    wide = pa.schema([("a", pa.int64()), ("b", pa.string())])

    assert found(wide, AB, before=snapshot(wide)) == ["narrowed a"]
    assert found(wide, AB, before=snapshot(AB)) == []
    assert found(wide, AB, before=None) == [], "somebody may have widened the table"


def test_nullability_and_key_are_told_by_the_snapshot() -> None:
    required = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())])

    [change] = changes(AB, AB, snapshot(AB), snapshot(required))
    assert str(change) == "column 'a' was NOT NULL and is nullable now"
    [change] = changes(AB, AB, snapshot(AB, key=("a", "b")), snapshot(AB, key=("a",)))
    assert str(change) == "the primary key was (a) and is (a, b) now"


def test_columns_that_are_left_out_by_configuration_are_not_dropped() -> None:
    source = pa.schema([("a", pa.int32())])

    assert changes(AB, source, snapshot(AB), None, left_out=("b",)) == ()


def test_a_change_names_the_column_with_old_and_new_type() -> None:
    [change] = changes(AB, pa.schema([("a", pa.int64()), ("b", pa.string())]), snapshot(AB), None)
    now = pa.schema([("a", pa.int64()), ("b", pa.string())])
    [known] = changes(AB, now, snapshot(now), snapshot(AB))

    assert str(change) == "column 'a' was int32 and is sql int32 (int32) now"
    assert str(known) == "column 'a' was sql int32 (int32) and is sql int64 (int64) now"


def test_a_name_in_other_letter_case_cannot_be_added() -> None:
    source = pa.schema([("a", pa.int32()), ("B", pa.string())])
    decisions = decided(changes(AB, source, snapshot(source), None), SchemaPolicy(), merges=True, evolves=True)

    assert [(each.change.drift, each.action) for each in decisions] == [
        (Drift.NEW, Action.FREEZE),
        (Drift.DROPPED, Action.FREEZE),
    ]
    with pytest.raises(SchemaFrozen, match=r"'B' of type .*, which differs from the table's 'b' in letter case alone"):
        check_decisions("t", decisions)


SAFE = {Drift.NEW, Drift.WIDENED, Drift.NARROWED, Drift.REORDERED, Drift.NULLABILITY}


@pytest.mark.parametrize("drift", Drift)
def test_by_default_what_adds_or_loosens_is_followed_and_the_rest_stops(drift: Drift) -> None:
    [decision] = decided([Change(drift=drift, column="a")], SchemaPolicy(), merges=True, evolves=True)

    assert decision.action is (Action.EVOLVE if drift in SAFE else Action.FREEZE)


def test_a_key_that_nothing_is_merged_by_stops_nothing() -> None:
    [decision] = decided([Change(drift=Drift.KEY, column="a")], SchemaPolicy(), merges=False, evolves=True)

    assert decision.action is Action.EVOLVE


def test_missing_columns_that_are_allowed_are_filled_unless_their_own_policy_says_otherwise() -> None:
    dropped = Change(drift=Drift.DROPPED, column="a")
    allowed = SchemaPolicy(allow_missing_columns=True)
    aside = SchemaPolicy(allow_missing_columns=True, actions={Drift.DROPPED: Action.QUARANTINE})

    assert [each.action for each in decided([dropped], allowed, merges=True, evolves=True)] == [Action.EVOLVE]
    assert [each.action for each in decided([dropped], aside, merges=True, evolves=True)] == [Action.QUARANTINE]


def test_new_columns_that_are_not_allowed_stop_the_table_unless_their_own_policy_says_otherwise() -> None:
    new = Change(drift=Drift.NEW, column="a")
    ignored = SchemaPolicy(allow_new_columns=False, actions={Drift.NEW: Action.IGNORE})

    assert [
        each.action for each in decided([new], SchemaPolicy(allow_new_columns=False), merges=True, evolves=True)
    ] == [Action.FREEZE]
    assert [each.action for each in decided([new], ignored, merges=True, evolves=True)] == [Action.IGNORE]


def test_what_stops_a_table_says_why_and_what_to_do() -> None:
    dropped = Change(drift=Drift.DROPPED, column="b", old="text")
    with pytest.raises(SchemaFrozen) as frozen:
        check_decisions("shop.t", decided([dropped], SchemaPolicy(), merges=True, evolves=True))
    aside = SchemaPolicy(actions={Drift.DROPPED: Action.QUARANTINE})
    with pytest.raises(TableSetAside, match=r"^set aside: the source has no column 'b' of type text any more"):
        check_decisions("shop.t", decided([dropped], aside, merges=True, evolves=True))

    assert str(frozen.value) == (
        "The table shop.t does not match its source: the source has no column 'b' of type text any more. Nothing was "
        "changed. What to do: set schema_policy.allow_missing_columns to true to go on with NULL in it."
    )


def test_what_cannot_be_evolved_where_it_is_stored_stops_but_an_ignored_new_column_does_not() -> None:
    policy = SchemaPolicy(actions={Drift.NEW: Action.IGNORE})
    found = [Change(drift=Drift.NEW, column="c", new="int32"), Change(drift=Drift.WIDENED, column="a")]

    assert [each.action for each in decided(found, policy, merges=True, evolves=False)] == [
        Action.IGNORE,
        Action.FREEZE,
    ]


def test_ignored_columns_are_not_read_and_those_that_are_gone_stay() -> None:
    source = pa.schema([("a", pa.int32()), ("c", pa.date32())])
    policy = SchemaPolicy(allow_missing_columns=True, actions={Drift.NEW: Action.IGNORE})

    plan = planned(AB, source, decided(changes(AB, source, snapshot(source), None), policy, merges=True, evolves=True))

    assert plan.read == ("a",)
    assert plan.columns == AB


@given(SCHEMAS, SCHEMAS, st.one_of(st.none(), SCHEMAS), st.sampled_from(["7", "8"]))
def test_a_table_that_evolves_holds_what_it_had_and_what_comes(
    table: pa.Schema, source: pa.Schema, before: pa.Schema | None, identity: str
) -> None:
    now = snapshot(source, identity=identity)
    told = changes(table, source, now, snapshot(before) if before else None)
    policy = SchemaPolicy(actions={drift: Action.EVOLVE for drift in Drift if drift is not Drift.CHANGED})
    decisions = decided(told, policy, merges=True, evolves=True)
    changed = {each.change.column for each in decisions if each.change.drift is Drift.CHANGED}

    plan = planned(table, source, decisions)

    assert plan.read == tuple(source.names)
    assert plan.columns.names[: len(table.names)] == table.names, "columns are only added"
    for column in (*table, *source):
        assert column.name in plan.columns.names
        if column.name not in changed:
            assert holds(plan.columns.field(column.name).type, column.type)
    for name in changed:
        assert plan.columns.field(name).type == table.field(name).type


@given(SCHEMAS, SCHEMAS)
def test_what_has_evolved_has_not_changed_any_more(table: pa.Schema, source: pa.Schema) -> None:
    policy = SchemaPolicy(allow_missing_columns=True)
    decisions = decided(changes(table, source, snapshot(source), None), policy, merges=True, evolves=True)
    plan = planned(table, source, decisions)

    again = changes(plan.columns, source, snapshot(source), snapshot(source))

    assert {change.drift for change in again} <= {Drift.DROPPED, Drift.CHANGED}
