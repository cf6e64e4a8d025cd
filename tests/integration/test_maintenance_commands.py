"""`lakehead maintain` and `lakehead state`, as they are typed: on a real table, with answers and exit codes."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.maintenance_support import opened, plant, snapshots_of
from tests.lakehouse import Lakehouse
from tests.servers.seaweed import ACCESS_KEY, REGION, SECRET_KEY, Seaweed
from tests.support.commands import lakehead_command
from tests.support.effort import SOAKING

LAKEHEAD = Path(sys.executable).with_name("lakehead")
pytestmark = pytest.mark.timeout(300)  # the very first start fetches jars


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, seaweed: Seaweed) -> Iterator[Lakehouse]:
    with opened(tmp_path_factory.mktemp("commands"), seaweed) as lakehouse:
        yield lakehouse


def lakehead(*arguments: object, **variables: str) -> tuple[int, str, str]:
    ran = lakehead_command(*arguments, env=variables)
    return ran.returncode, ran.stdout, ran.stderr


def test_commands_work_as_they_are_typed(house: Lakehouse, tmp_path: Path) -> None:
    table = house.create("typed")
    house.land(table, "a")
    lakehouse, _, ledger = places(house)
    sweep = ["maintain", "sweep", "t.typed", lakehouse]
    rebuild = ["state", "rebuild", "t.typed", lakehouse, f"--state=sqlite:///{tmp_path}/state.sqlite", ledger]

    for words, said in ((sweep, "t.typed: 0 files"), (rebuild, "t.typed is settled up to snapshot")):
        typed = subprocess.run([LAKEHEAD, *words], capture_output=True, text=True, check=False, timeout=200)
        assert (typed.returncode, typed.stderr) == (0, "")
        assert typed.stdout.startswith(said)


def places(house: Lakehouse) -> list[str]:
    """Where state, ledger and catalog are, as options."""
    return [
        f"--lakehouse={house.folder}/lakehouse",
        f"--state=sqlite:///{house.folder}/state.sqlite",
        f"--ledger=file://{house.folder}/records",
    ]


def test_a_table_is_compacted_expired_and_swept_by_commands(house: Lakehouse) -> None:
    table = house.create("orders")
    for unit in "abcde":
        house.land(table, unit)
    (stray,) = plant(table, "data/stray.parquet")
    lakehouse, state, _ = places(house)

    if SOAKING:  # a JVM more
        dry = lakehead("maintain", "compact", "t.orders", lakehouse, state, "--dry-run")
        assert dry[1].startswith("t.orders: 5 data files")
    code, told, _ = lakehead("maintain", "compact", "t.orders", lakehouse, state, "--option", "min-input-files=2")
    assert (code, told.split(";")[0].rpartition(" ")[2]) == (0, "1"), told

    code, told, _ = lakehead("maintain", "expire", "t.orders", *places(house), "--older-than", "0s")
    assert (code, told.splitlines()[-1].partition(" and")[0]) == (0, "t.orders: 4 snapshots"), told
    assert len(snapshots_of(table)) == 2, "the last landing, and the compaction after it"

    code, told, _ = lakehead("maintain", "sweep", "t.orders", lakehouse)
    assert (code, told) == (
        0,
        "t.orders: 0 files (0 bytes) and 0 branches removed; 1 orphan files are too young\n",
    )
    code, told, _ = lakehead("maintain", "sweep", "t.orders", lakehouse, "--older-than", "0s", "--dry-run")
    assert (code, told.splitlines()[0]) == (0, stray)
    code, told, _ = lakehead("maintain", "sweep", "t.orders", lakehouse, "--older-than", "0s")
    assert (code, told) == (
        0,
        "t.orders: 1 files (8 bytes) and 0 branches removed; 0 orphan files are too young\n",
    )
    assert not Path(stray).exists()
    assert house.units_in(table) == dict.fromkeys("abcde", 10)


def test_a_lost_state_is_rebuilt_by_a_command(house: Lakehouse, tmp_path: Path) -> None:
    table = house.create("lost")
    house.land(table, "a", "b")
    house.land(table, "c")
    lakehouse, _, ledger = places(house)
    state = f"--state=sqlite:///{tmp_path}/another.sqlite"
    head = snapshots_of(table)[-1]
    said = f"settled up to snapshot {head}: 2 landings of 3 units, the last one in snapshot {head}\n"

    dry = lakehead("state", "rebuild", "t.lost", lakehouse, state, ledger, "--dry-run")
    done = lakehead("state", "rebuild", "t.lost", lakehouse, state, ledger)

    assert dry == (0, f"t.lost would be {said}", "")
    assert done == (0, f"t.lost is {said}", "")


def test_a_mistyped_ledger_is_refused_by_the_command(house: Lakehouse, tmp_path: Path) -> None:
    table = house.create("mistyped")
    house.land(table, "a")
    house.land(table, "b")
    lakehouse, state, _ = places(house)

    code, told, error = lakehead(
        "state", "rebuild", "t.mistyped", lakehouse, state, f"--ledger=file://{tmp_path}/record"
    )

    assert (code, told) == (1, "")
    assert f"lacks landing {snapshots_of(table)[0]}" in error
    assert "Check that --ledger is the one that the landings use" in error


def test_any_catalog_is_named_by_its_properties_and_secrets_come_from_variables(
    house: Lakehouse, seaweed: Seaweed
) -> None:
    table = house.create("on_s3", catalog="sqlite_on_s3")
    house.land(table, "a")
    properties = house.catalogs["sqlite_on_s3"]
    secrets = {"s3.access-key-id", "s3.secret-access-key", "s3.endpoint", "client.region"}
    given = [f"--catalog-property={key}={value}" for key, value in properties.items() if key not in secrets]
    variables = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ENDPOINT_URL": seaweed.endpoint,
        "AWS_REGION": REGION,
    }
    sweep = ("maintain", "sweep", "t.on_s3", "--catalog=sqlite_on_s3", *given, "--dry-run")

    assert lakehead(*sweep, **variables)[:2] == (
        0,
        "t.on_s3: 0 files (0 bytes) and 0 branches would be removed; 0 orphan files are too young\n",
    )
    named = "--catalog-property=s3.session-token=env:NO_SUCH_VARIABLE"
    code, _, told = lakehead(*sweep, named, **variables)
    assert (code, told.count("\n"), "NO_SUCH_VARIABLE, which is not set" in told) == (2, 1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["maintain", "sweep", "orders"], "lacks its namespace"),
        (["maintain", "sweep", "t.orders", "--lakehouse=/no/such/folder"], "There is no embedded catalog"),
        (["maintain", "sweep", "t.orders", "--catalog-property=type=rest"], "needs --catalog"),
        (["maintain", "sweep", "t.orders", "--catalog=c", "--lakehouse=x"], "not both"),
        (["maintain", "sweep", "t.orders", "--catalog=c", "--catalog-property=type"], "KEY=VALUE"),
        (["maintain", "sweep", "t.orders", "--catalog=c", "--catalog-property=type=x"], "Set 'type' to"),
        (["maintain", "sweep", "t.orders", "--older-than=soon", "--catalog=c"], "s, m, h or d"),
    ],
)
def test_what_is_wrong_with_the_options_is_said_and_nothing_is_done(arguments: list[str], said: str) -> None:
    code, told, wrong = lakehead(*arguments)

    assert (code, told) == (2, "")
    assert said in wrong


def test_a_table_that_is_not_there_and_a_ledger_that_would_be_lost_are_refused(house: Lakehouse) -> None:
    lakehouse, state, ledger = places(house)

    missing = lakehead("state", "rebuild", "t.missing", lakehouse, state, ledger)
    nowhere = lakehead("state", "rebuild", "t.missing", lakehouse, state, "--ledger=memory://")

    assert missing == (2, "", "lakehead: There is no table t.missing in the catalog lake. Create it first.\n")
    assert (nowhere[0], "A ledger in memory would be lost" in nowhere[2]) == (2, True)
