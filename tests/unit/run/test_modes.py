"""A mode is one record and one strategy; the configuration accepts what is listed, and nothing else."""

import pytest

from lakehead.errors import Misconfigured
from lakehead.extract.modes import FULL, MODES, Mode, ReadersTable
from lakehead.extract.strategy import StrategyRegistry
from lakehead.run.config.table_config import TableConfig
from lakehead.run.ingestion import STRATEGY_REGISTRY


@pytest.mark.parametrize("mode", MODES.values(), ids=lambda mode: mode.name)
def test_every_mode_has_a_strategy(mode: Mode) -> None:
    assert STRATEGY_REGISTRY.of(mode) is not None


def test_the_configuration_takes_the_modes_that_are_listed() -> None:
    schema = TableConfig.model_json_schema()["properties"]["mode"]

    assert schema["enum"] == list(MODES)
    assert all(f"{mode.name}: {mode.description}." in schema["description"] for mode in MODES.values())


def test_a_mode_has_one_strategy_and_one_without_says_which_there_are() -> None:
    registry, strategy = StrategyRegistry(), STRATEGY_REGISTRY.of(FULL)
    registry.register(FULL, strategy)

    with pytest.raises(Misconfigured, match="already"):
        registry.register(FULL, strategy)
    with pytest.raises(Misconfigured, match=r"No strategy is registered for the mode 'scd2'\. There are full"):
        registry.of(Mode(name="scd2", description="", readers_table=ReadersTable.MIRROR))
