"""Prints or writes the plan of `lakehead run CONFIG --dump-orchestration-plan`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from lakehead.errors import Misconfigured
from lakehead.run.config.pipeline_config import PipelineConfig
from lakehead.run.config.table_config import TableConfig
from lakehead.run.orchestration import make_plan
from lakehead.run.orchestration_formats import airflow_dag, cron_file, systemd_units
from lakehead.run.run_command import PlanFormat


def print_plan(
    config: PipelineConfig,
    tables: Sequence[TableConfig],
    file: Path,
    *,
    options: Sequence[str],
    form: PlanFormat,
    folder: Path | None,
) -> None:
    """Print the plan, or write systemd's units into the folder and print their paths."""
    if folder is not None and form is not PlanFormat.SYSTEMD:
        raise Misconfigured("--plan-folder is for --plan-format systemd. Other formats are printed.")
    plan = make_plan(config, tables, file=file, working_directory=Path.cwd(), options=options)
    match form:
        case PlanFormat.JSON:
            typer.echo(plan.to_json())
        case PlanFormat.AIRFLOW:
            typer.echo(airflow_dag(plan), nl=False)
        case PlanFormat.CRON:
            typer.echo(cron_file(plan), nl=False)
        case PlanFormat.SYSTEMD:
            if folder is None:
                raise Misconfigured("systemd's units are files. Name a folder for them: --plan-folder FOLDER.")
            _write(systemd_units(plan), folder)


def _write(units: Mapping[str, str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in units.items():
        (folder / name).write_text(text, encoding="utf-8")
        typer.echo(str(folder / name))
