"""What OpenLineage calls the datasets of a table."""

from pathlib import Path

import pytest

from lakehead.run.config.config_file import read_config
from lakehead.run.observe.openlineage import Dataset
from lakehead.run.run_telemetry import table_lineage
from lakehead.run.wiring import Wiring
from tests.unit.run.config_files import changed, written

URLS = {"jdbc": "jdbc:h2:mem:shop;MODE=anything", "sqlite": "sqlite:////host/shop"}


@pytest.mark.parametrize(
    ("dialect", "schema", "expected"),
    [
        ("postgresql", "public", Dataset("postgres://host:5432", "shop.public.cities")),
        ("mysql", "other", Dataset("mysql://host:5432", "other.cities")),
        ("mysql", None, Dataset("mysql://host:5432", "shop.cities")),
        ("jdbc", "public", Dataset("jdbc", "public.cities")),
        ("sqlite", None, Dataset("file", "/host/shop#cities")),
    ],
)
def test_a_source_is_named_as_others_name_it(
    tmp_path: Path, dialect: str, schema: str | None, expected: Dataset
) -> None:
    config = read_config(
        written(
            tmp_path,
            changed(
                {
                    ("sources", "shop"): {
                        "dialect": dialect,
                        "url": URLS.get(dialect, f"{dialect}://user@host:5432/shop"),
                    },
                    ("tables", 0, "schema"): schema,
                }
            ),
        )
    )

    assert table_lineage(Wiring(config, {}), config.tables[0]).source == expected
