"""The option `--log-level`."""

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

if TYPE_CHECKING:
    from lakehead.run.config.pipeline_config import PipelineConfig

LogLevel: TypeAlias = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option(help="The lowest level that is printed and logged.", show_default="as configured"),
]


def with_log_level(config: "PipelineConfig", level: str | None) -> "PipelineConfig":
    """Return the configuration with another log level, if one is given."""
    if level is None:
        return config
    logging = config.runtime.logging.model_copy(update={"level": level})
    return config.model_copy(update={"runtime": config.runtime.model_copy(update={"logging": logging})})
