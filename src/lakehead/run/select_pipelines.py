"""Which pipelines of a configuration are meant."""

from typing import TYPE_CHECKING

from lakehead.errors import Misconfigured

if TYPE_CHECKING:
    from lakehead.run.config.pipeline_config import PipelineConfig


def select_pipelines(config: "PipelineConfig", only: list[str] | None) -> list[str]:
    """Return the names of the pipelines to run. Raises `Misconfigured` for an unknown name, or if there are none."""
    known = list(config.pipelines)
    if not known:
        raise Misconfigured("The configuration has no pipelines. Add them under pipelines: see docs/consume.md.")
    if unknown := sorted(set(only or ()) - set(known)):
        raise Misconfigured(f"The configuration has no pipeline {', '.join(unknown)}. It has: {', '.join(known)}.")
    return [name for name in known if not only or name in only]
