"""What is done when a source has changed, and how many digits decimals may have: from the configuration of all tables
and of one."""

from collections.abc import Mapping

from lakehead.metadata.guardrail import PrecisionGuardrail
from lakehead.metadata.policy import Action, Drift, SchemaPolicy
from lakehead.run.config.base import ConfigModel
from lakehead.run.config.metadata_config import GuardrailsConfig, SchemaPolicyConfig


def schema_policy(*given: SchemaPolicyConfig | None) -> SchemaPolicy:
    """The policy of a table. What stands later counts."""
    told = _together(*given)
    flags = {
        name: bool(told.pop(name))
        for name in ("require_snapshot", "allow_missing_columns", "allow_new_columns")
        if name in told
    }
    return SchemaPolicy(actions={Drift(kind): Action(str(action)) for kind, action in told.items()}, **flags)


def guardrail(*given: GuardrailsConfig | None) -> PrecisionGuardrail:
    """The precision guardrail of a table. What stands later counts."""
    return PrecisionGuardrail(**{name: int(str(value)) for name, value in _together(*given).items()})


def _together(*given: ConfigModel | None) -> dict[str, object]:
    told: dict[str, object] = {}
    for each in given:
        if each is not None:
            told |= {name: value for name, value in _fields(each).items() if value is not None}
    return told


def _fields(model: ConfigModel) -> Mapping[str, object]:
    return dict(model)
