"""The tables of each released version, word for word: a change of them needs a step."""

from pathlib import Path

import pytest
from sqlalchemy import Dialect, Table, UniqueConstraint, make_url
from sqlalchemy.schema import CreateIndex, CreateTable

from lakehead.state.migrations import FIRST, STEPS
from lakehead.state.schema import metadata

GOLDEN = Path(__file__).parent / "golden"
NEWEST = STEPS[-1].version if STEPS else FIRST


def statements(dialect: Dialect) -> str:
    made = [CreateTable(table) for table in metadata.sorted_tables] + [
        CreateIndex(index)
        for table in metadata.sorted_tables
        for index in sorted(table.indexes, key=lambda index: str(index.name))
    ]
    texts = [str(each.compile(dialect=dialect)).strip() for each in made]
    return ";\n\n".join("\n".join(line.rstrip() for line in text.splitlines()) for text in texts) + ";\n"


DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


@pytest.mark.parametrize("name", DRIVERS)
def test_the_tables_are_those_of_the_newest_version(name: str) -> None:
    golden = (GOLDEN / f"v{NEWEST}.{name}.sql").read_text()

    assert statements(make_url(f"{DRIVERS[name]}://").get_dialect()()) == golden, (
        "a changed table is a new version: add a step and a new golden file"
    )


def test_steps_are_numbered_without_a_gap() -> None:
    assert [step.version for step in STEPS] == list(range(FIRST + 1, FIRST + 1 + len(STEPS)))


@pytest.mark.parametrize("table", metadata.tables.values(), ids=lambda table: str(table.name))
def test_a_table_is_one_that_singlestore_can_have(table: Table) -> None:
    assert list(table.primary_key)
    assert not table.foreign_keys
    assert not [each for each in table.constraints if isinstance(each, UniqueConstraint)]
    assert not [each for each in table.indexes if each.unique]
    assert not [each for each in table.columns if each.autoincrement is True or each.server_default is not None]
