"""Protected columns and policies of metadata in a configuration: what is unsafe is refused, with its place."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lakehead.errors import Misconfigured
from lakehead.extract.protection_rules import Hashed, LeftOut, Masked
from lakehead.metadata.policy import Action, Drift
from lakehead.run.config.config_file import read_config
from lakehead.run.config.problems import InvalidConfig
from lakehead.run.wiring import Wiring
from tests.unit.run.config_files import SMALL, written

HASH = {"hash": "sha256", "secret": {"env": "PEPPER"}}
SCD1 = {
    "schema": "public",
    "table": "people",
    "mode": "scd1",
    "incremental_column": "at",
    "primary_keys": ["id"],
    "tiebreak_columns": ["version"],
}


def file(tmp_path: Path, columns: Mapping[str, Any], **more: Any) -> Path:
    table = {**SCD1, "columns": columns, **more.pop("table", {})}
    runtime = {**SMALL["runtime"], "intermediate": "mirror"}
    return written(tmp_path, {**SMALL, "runtime": runtime, "tables": [table], **more})


def problems(path: Path) -> dict[str, str]:
    with pytest.raises(InvalidConfig) as refused:
        read_config(path)
    return {each.path: each.message for each in refused.value.problems}


def test_each_way_of_protecting_is_resolved_with_its_secret(tmp_path: Path) -> None:
    path = file(tmp_path, {"email": HASH, "name": {"mask": "***"}, "note": {"leave_out": True}, "id": HASH})
    config = read_config(path)

    found = Wiring(config, {"PEPPER": "salt"}).protections(config.tables[0])

    assert found == {"email": Hashed("salt"), "name": Masked("***"), "note": LeftOut(), "id": Hashed("salt")}
    sqlite = {"shop": {"dialect": "sqlite", "url": "sqlite:////a.db"}}
    config = read_config(file(tmp_path, {"email": HASH}, sources=sqlite))
    for environment in ({}, {"PEPPER": ""}):
        with pytest.raises(Misconfigured, match=r"PEPPER|'email' is empty"):
            Wiring(config, environment).check()


@pytest.mark.parametrize(
    ("name", "rule", "more", "said"),
    [
        ("AT", HASH, {}, "incremental_column needs its values"),
        ("at", {"leave_out": True}, {}, "incremental_column needs its values"),
        ("version", {"mask": "x"}, {}, "tiebreak_columns needs its values"),
        ("ID", {"mask": "x"}, {}, "can only be hashed"),
        ("id", {"leave_out": True}, {}, "can only be hashed"),
        ("n", HASH, {"reconciliation": {"sums": ["n"]}}, "reconciliation.sums needs its values"),
        ("n", {"mask": "x"}, {"reconciliation": {"checksums": ["N"]}}, "reconciliation.checksums needs its values"),
        ("n", {}, {}, "exactly one of"),
        ("n", {"leave_out": False}, {}, "exactly one of"),
        ("n", {"mask": "x", **HASH}, {}, "exactly one of"),
        ("n", {"hash": "sha256"}, {}, "hash and secret together"),
        ("n", {"mask": "x", "secret": {"env": "PEPPER"}}, {}, "hash and secret together"),
    ],
)
def test_what_is_unsafe_is_refused_with_its_place(
    tmp_path: Path, name: str, rule: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    found = problems(file(tmp_path, {name: rule}, table=more))

    assert said in found[f"tables[0].columns.{name}"]


def test_a_column_is_protected_once(tmp_path: Path) -> None:
    found = problems(file(tmp_path, {"email": HASH, "Email": {"mask": "x"}}))

    assert "in other letter case" in found["tables[0].columns.Email"]


def test_a_table_has_the_policy_of_all_but_for_its_own(tmp_path: Path) -> None:
    metadata = {
        "enabled": True,
        "schema_policy": {
            "new": "freeze",
            "widened": "ignore",
            "allow_missing_columns": True,
            "allow_new_columns": False,
        },
        "guardrails": {"max_precision": 20, "max_scale": 4},
    }
    own = {"schema_policy": {"new": "quarantine", "key": "evolve"}, "guardrails": {"max_precision": 30}}
    config = read_config(file(tmp_path, {}, metadata=metadata, table=own))

    policy, guardrail = Wiring(config, {}).schema_rules(config.tables[0])

    assert policy.actions == {
        Drift.NEW: Action.QUARANTINE,
        Drift.WIDENED: Action.IGNORE,
        Drift.KEY: Action.EVOLVE,
    }
    assert policy.action(Drift.DROPPED) is Action.EVOLVE
    assert (policy.allow_new_columns, policy.require_snapshot) == (False, False)
    assert (guardrail.max_precision, guardrail.max_scale) == (30, 4)


@pytest.mark.parametrize("kind", ["renamed", "narrowed", "reordered", "nullability", "key"])
def test_a_policy_about_what_only_snapshots_tell_needs_them(tmp_path: Path, kind: str) -> None:
    policy = {"schema_policy": {kind: "freeze"}}

    assert "needs metadata.enabled" in problems(file(tmp_path, {}, table=policy))[f"tables[0].schema_policy.{kind}"]
    assert "needs metadata.enabled" in problems(file(tmp_path, {}, metadata=policy))[f"metadata.schema_policy.{kind}"]
    read_config(file(tmp_path, {}, metadata={"enabled": True}, table=policy))


def test_a_snapshot_can_only_be_required_where_they_are_taken(tmp_path: Path) -> None:
    required = {"schema_policy": {"require_snapshot": True}}

    assert (
        "needs metadata.enabled"
        in problems(file(tmp_path, {}, metadata=required))["metadata.schema_policy.require_snapshot"]
    )
    read_config(file(tmp_path, {}, metadata={"schema_policy": {"require_snapshot": False}}))


@pytest.mark.parametrize(("kind", "action"), [("changed", "evolve"), ("changed", "ignore"), ("renamed", "ignore")])
def test_an_action_that_would_lose_values_is_refused(tmp_path: Path, kind: str, action: str) -> None:
    found = problems(file(tmp_path, {}, metadata={"enabled": True}, table={"schema_policy": {kind: action}}))

    assert list(found) == [f"tables[0].schema_policy.{kind}"]


def test_a_driver_is_for_sources_of_jdbc(tmp_path: Path) -> None:
    source = {"dialect": "sqlite", "url": "sqlite:////a.db", "driver": "org.sqlite.JDBC"}
    assert (
        "is not supported by the dialect sqlite"
        in problems(file(tmp_path, {}, sources={"s": source}))["sources.s.driver"]
    )
    jdbc = {"dialect": "jdbc", "url": "jdbc:sqlite:/a.db", "driver": "org.sqlite.JDBC"}
    config = read_config(file(tmp_path, {}, sources={"s": jdbc}))

    assert Wiring(config, {}).source_settings(config.sources["s"]).driver == "org.sqlite.JDBC"
