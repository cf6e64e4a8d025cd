"""A table compared with its source: what was lost, doubled or changed is found, and nothing else."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lakehead.clock import SystemClock
from lakehead.extract.recon_report import Difference, Outcome
from lakehead.ids import RandomIds
from lakehead.state.opening import open_state
from tests.integration.increment_support import done
from tests.integration.pipeline_support import MARKS, PLUGINS, Scene
from tests.integration.recon_support import EVERY, KINDS, compare, loaded, mirror, scd1
from tests.support.commands import lakehead_command
from tests.support.effort import effort
from tests.support.source_values import MYSQL, POSTGRESQL, SQLITE

pytest_plugins = PLUGINS
pytestmark = MARKS


@pytest.fixture
def of_kind(kind: str, request: pytest.FixtureRequest) -> Scene:
    scene: Scene = request.getfixturevalue(f"on_{kind}")
    return scene


@EVERY
def test_rows_of_every_type_are_equal(of_kind: Scene, kind: str) -> None:
    scene, cases = of_kind, {"postgresql": POSTGRESQL, "mysql": MYSQL, "sqlite": SQLITE}[kind]
    known = [case for case in cases if case[0] not in ("mood", "price", "dear_price", "pair")]
    columns = ", ".join(f"c{number} {declared}" for number, (declared, _, _) in enumerate(known))
    name = scene.name()
    scene.sql(f"CREATE TABLE {name} (id bigint, at bigint, {columns})")
    most = max(len(values) for _, _, values in known)
    for row in range(most + 1):  # the last row is all NULL
        given = [list(values)[row] if row < len(values) else "NULL" for _, _, values in known]
        scene.sql(f"INSERT INTO {name} VALUES ({row}, {row}, {', '.join(given)})")
    table = scd1(name, ["id"])
    done(scene.run(table))

    report, _ = compare(scene, table)

    assert report.outcome is Outcome.EQUAL, report
    assert report.source_rows == report.target_rows == most + 1
    floats = {f"c{number}" for number, (_, arrow, _) in enumerate(known) if str(arrow) in ("float", "double")}
    assert set(report.skipped) == floats
    mirror(scene, name, "UPDATE {t} SET c0 = NULL WHERE id = 0")
    changed, _ = compare(scene, table)
    assert [(each.kind, each.key) for each in changed.keys] == [(Difference.CHANGED, "0")]


@EVERY
@pytest.mark.parametrize("key", effort(("number",), soak=("number", "text")))
def test_a_lost_a_doubled_and_a_changed_row_are_each_found_by_bucket_and_key(of_kind: Scene, key: str) -> None:
    scene = of_kind
    table = loaded(scene, "bigint" if key == "number" else "varchar(20)")
    name = table["table"]
    assert compare(scene, table)[0].is_equal

    def text(number: int) -> str:
        return str(number) if key == "number" else f"{len(str(number))}:{number}"

    expected = []
    for kind, number, statement in (
        (Difference.MISSING, 3, "DELETE FROM {t} WHERE id = '3'"),
        (Difference.DOUBLED, 4, "INSERT INTO {t} SELECT * FROM {t} WHERE id = '4'"),
        (Difference.CHANGED, 5, "UPDATE {t} SET v = 'other' WHERE id = '5'"),
    ):
        mirror(scene, name, statement)
        expected.append((kind, text(number)))
        report, event = compare(scene, table)
        assert report.outcome is Outcome.DIFFERENT
        assert sorted((each.kind, each.key) for each in report.keys) == sorted(expected)
        assert report.buckets == len(expected) == len({each.bucket for each in report.keys})
        assert event.differences == {kind.value: 1 for kind, _ in expected}


@pytest.mark.parametrize("kind", effort(("postgresql",), soak=KINDS))
def test_rows_written_after_the_watermark_are_no_differences(of_kind: Scene) -> None:
    scene = of_kind
    table = loaded(scene)
    scene.sql(
        f"UPDATE {table['table']} SET v = 'newer', at = 11 WHERE id = 2",
        f"INSERT INTO {table['table']} VALUES (11, 12, 'new', 1)",
    )

    report, _ = compare(scene, table)

    assert report.is_equal, report
    assert (report.pending, report.source_rows, report.target_rows) == (2, 9, 9)
    mirror(scene, table["table"], "DELETE FROM {t} WHERE id = 1")
    assert [each.key for each in compare(scene, table)[0].keys] == ["1"]


def test_a_row_that_the_source_has_deleted_is_extra_and_the_report_says_why(on_postgresql: Scene) -> None:
    table = loaded(on_postgresql)
    on_postgresql.sql(f"DELETE FROM {table['table']} WHERE id = 7")

    report, _ = compare(on_postgresql, table)

    assert [(each.kind, each.key) for each in report.keys] == [(Difference.EXTRA, "7")]
    assert any("does not see deletes" in note for note in report.notes)


@pytest.mark.parametrize("kind", effort(("sqlite",), soak=KINDS))
def test_sums_tolerance_and_samples_are_as_configured(of_kind: Scene) -> None:
    scene = of_kind
    table = loaded(scene)
    mirror(scene, table["table"], "UPDATE {t} SET n = 100 WHERE id = 5")

    summed, _ = compare(scene, {**table, "reconciliation": {"sums": ["n", "id"], "checksums": ["v"]}})
    tolerated, _ = compare(scene, {**table, "reconciliation": {"tolerated_rows": 1}})
    whole, _ = compare(scene, {**table, "reconciliation": {"sample_keys": 1_000}})
    sampled, _ = compare(scene, {**table, "reconciliation": {"sample_keys": 1}})

    assert [(each.what, each.column, each.target) for each in summed.numbers] == [
        ("sum", "n", "150.90"),
        ("max", "n", "100.00"),
    ]
    assert summed.outcome is Outcome.DIFFERENT
    assert summed.keys == (), "its hash leaves the column out"
    assert tolerated.is_equal
    assert any("410 of 4,096 buckets" in note for note in sampled.notes)
    assert [each.key for each in whole.keys] == ["5"], "every key is in the sample"


@pytest.mark.parametrize("kind", effort(("mysql",), soak=KINDS))
def test_composite_keys_and_null_in_a_key_are_compared_exactly(of_kind: Scene) -> None:
    scene, name = of_kind, of_kind.name()
    scene.sql(f"CREATE TABLE {name} (a varchar(9), b varchar(9), at bigint, v varchar(9))")
    keys = [("'x,1:y'", "'z'"), ("'x'", "'1:y,z'"), ("NULL", "'z'"), ("''", "'z'"), ("'-'", "NULL"), ("'X'", "'z'")]
    for number, (one, other) in enumerate(keys):
        scene.sql(f"INSERT INTO {name} VALUES ({one}, {other}, {number}, 'v')")
    table = scd1(name, ["a", "b"], null_keys="include")
    done(scene.run(table))

    assert compare(scene, table)[0].is_equal
    mirror(scene, name, "DELETE FROM {t} WHERE a IS NULL")
    lost, _ = compare(scene, table)
    without, _ = compare(scene, {**table, "null_keys": "exclude"})

    assert [(each.kind, each.key) for each in lost.keys] == [(Difference.MISSING, "-,1:z")]
    assert [(each.kind, each.key) for each in without.keys] == [(Difference.EXTRA, "1:-,-")]


def test_a_full_table_is_compared_with_the_source_as_it_is_now_and_the_report_says_so(on_postgresql: Scene) -> None:
    scene, name = on_postgresql, on_postgresql.name()
    scene.sql(f"CREATE TABLE {name} (id bigint PRIMARY KEY, v text)", f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
    table = {"table": name, "mode": "full"}
    assert compare(scene, table)[0].outcome is Outcome.NOT_COMPARED, "it was never loaded"
    done(scene.run(table))
    assert compare(scene, table)[0].is_equal
    scene.sql(f"UPDATE {name} SET v = 'c' WHERE id = 2")

    report, _ = compare(scene, table)

    assert [(each.kind, each.key) for each in report.keys] == [(Difference.CHANGED, "2")]
    assert "the load of 2026-01-01 at 20" in report.point
    assert any("since the load" in note for note in report.notes)


def test_the_command_prints_what_differs_exits_1_and_keeps_an_event(on_sqlite: Scene) -> None:
    scene = on_sqlite
    table = loaded(scene)
    mirror(scene, table["table"], "DELETE FROM {t} WHERE id = 3")
    log = scene.pipeline.folder / "log.jsonl"
    config = scene.pipeline.config([table], logging={"sink": str(log), "rotate_bytes": 1_000})
    log.write_text("x" * 999 + "\n")
    command = [str(Path(sys.executable).parent / "lakehead"), "recon", str(config)]

    ran = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=200)

    assert ran.returncode == 1, ran.stderr
    assert ran.stdout, ran.stderr
    [report] = json.loads(ran.stdout)["tables"]
    assert (report["outcome"], report["keys"]) == (
        "different",
        [{"kind": "missing", "bucket": 3, "key": "3"}],
    )
    with open_state(f"sqlite:///{scene.pipeline.folder}/state.sqlite", SystemClock(), RandomIds()) as state:
        kinds = [event.kind for event in state.history.events(limit=100)]
    assert "table_reconciled" in kinds
    [event] = map(json.loads, log.read_text().splitlines())
    assert (event["kind"], event["payload"]["load_date"]) == ("table_reconciled", f"{datetime.now(UTC):%Y-%m-%d}")
    assert log.with_name("log.jsonl.1").exists(), "it is rotated as the log of a run is"


def test_an_unknown_table_is_told_before_anything_is_started(on_sqlite: Scene) -> None:
    config = on_sqlite.pipeline.config([scd1("orders", ["id"])])

    done = lakehead_command("recon", config, "nothing", env={"PATH": "/nowhere", "JAVA_HOME": "/nowhere"})

    assert (done.returncode, done.stdout) == (2, "")
    assert "has no table nothing" in done.stderr


def test_help_has_an_example() -> None:
    done = lakehead_command("recon", "--help")

    assert "Example: lakehead recon conf/shop.json" in " ".join(done.stdout.replace("│", " ").split())
