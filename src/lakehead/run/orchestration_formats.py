"""An orchestration plan in the formats of schedulers: an Airflow DAG, a cron file, systemd units."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from lakehead.errors import Misconfigured
from lakehead.run.config.cron_schedule import CronSchedule
from lakehead.run.observe.event_text import counted
from lakehead.run.orchestration import Command, Group, OrchestrationPlan, file_name

MOST_CRON_CHARACTERS = 998
"""Longer commands are refused or cut by cron."""

SYSTEMD_DAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
NO_SCHEDULE = (
    "No table has a schedule. Set runtime.orchestration.schedule, or schedule of a table, to a cron expression in UTC "
    'such as "30 2 * * *".'
)

AIRFLOW_CODE = '''
PLAN = json.loads(PLAN_JSON)


def make_dag(group):
    """One DAG for the tables of one schedule: a task for each table, none needs another."""
    retries = PLAN["retries"]
    timeout = retries["timeout_seconds"]
    with DAG(
        dag_id="lakehead_" + group["dag"],
        schedule=group["schedule"],
        start_date=datetime(2024, 1, 1, tzinfo=timezone.utc),
        catchup=False,
        max_active_runs=1,
        max_active_tasks=PLAN["parallel_tables"],
        tags=["lakehead", PLAN["pipeline"]],
        default_args={
            "retries": retries["count"],
            "retry_delay": timedelta(seconds=retries["delay_seconds"]),
            "execution_timeout": None if timeout is None else timedelta(seconds=timeout),
        },
    ) as dag:
        for table in group["tables"]:
            # The space at the end keeps Airflow from taking the command for a template's file name.
            BashOperator(
                task_id=table["task"],
                bash_command=table["command"] + " ",
                append_env=True,
            )
    return dag


for _group in PLAN["groups"]:
    globals()["lakehead_" + _group["dag"]] = make_dag(_group)
'''


def airflow_dag(plan: OrchestrationPlan) -> str:
    """Return the plan as a Python file for Airflow 2.4 or newer: a DAG for each schedule, a task for each table.

    Raises `Misconfigured` for a schedule that Airflow takes otherwise than cron.
    """
    _check_days(plan)
    commands = {table.name: table.command.shell for table in plan.tables}
    document = {
        "pipeline": plan.pipeline,
        "parallel_tables": plan.resources.parallel_tables,
        "retries": {
            "count": plan.retries.count,
            "delay_seconds": plan.retries.delay_seconds,
            "timeout_seconds": plan.retries.timeout_seconds,
        },
        "groups": [
            {
                "dag": file_name(f"{plan.pipeline}_{group.name}"),
                "schedule": group.schedule,
                "tables": [
                    {"task": file_name(name), "command": _without_templates(commands[name])} for name in group.tables
                ],
            }
            for group in plan.groups
        ],
    }
    lines = [
        f'"""Loads the tables of {_comment(plan.config)}. Times are UTC."""',
        "",
        *(f"# {line}" for line in _needs(plan)),
        "import json",
        "from datetime import datetime, timedelta, timezone",
        "",
        "from airflow import DAG",
        "",
        "try:",
        "    from airflow.providers.standard.operators.bash import BashOperator  # Airflow 3",
        "except ImportError:",
        "    from airflow.operators.bash import BashOperator",
        "",
        # As one string of ASCII: whatever names it has, it is no code.
        f"PLAN_JSON = {json.dumps(json.dumps(document))}",
    ]
    return "\n".join(lines) + "\n" + AIRFLOW_CODE


def cron_file(plan: OrchestrationPlan) -> str:
    """Return the plan as a crontab of one user: a line for each schedule.

    Raises `Misconfigured` if no table has a schedule, or if a command is too long for cron.
    """
    lines = [
        f"# Loads the tables of {_comment(plan.config)}.",
        *(f"# {line}" for line in _needs(plan)),
        "# Cron repeats nothing that failed: the next run continues where it has stopped.",
        "# Times are UTC. CRON_TZ is for cronie; Debian's cron ignores it and needs a machine whose zone is UTC.",
        "CRON_TZ=UTC",
        "",
    ]
    for group in plan.groups:
        lines.append(f"# {group.name}: {len(group.tables)} of {counted(len(plan.tables), 'table')}")
        if group.schedule is None:
            lines += ["# These have no schedule. By hand:", f"# {_comment(group.command.shell)}"]
            continue
        command = _cron_command(group.command)
        lines.append(f"{group.schedule} {command}")
    _scheduled(plan)
    return "\n".join(lines) + "\n"


def systemd_units(plan: OrchestrationPlan) -> Mapping[str, str]:
    """Return the plan as systemd units by file name: a service for each schedule, and its timer.

    Raises `Misconfigured` if no table has a schedule.
    """
    _scheduled(plan)
    units: dict[str, str] = {}
    for group in plan.groups:
        name = file_name(f"lakehead-{plan.pipeline}-{group.name}")
        units[f"{name}.service"] = _service(plan, group)
        if group.schedule is not None:
            units[f"{name}.timer"] = _timer(plan, group)
    return units


def calendar_lines(schedule: str) -> list[str]:
    """Return a cron expression as systemd's calendar expressions: two if a day may match by number or by weekday."""
    cron = CronSchedule.parse(schedule)
    names = ",".join(SYSTEMD_DAYS[each] for each in cron.weekdays)
    months, days = _numbers(cron.months, 12), _numbers(cron.days, 31)
    time = f"{_numbers(cron.hours, 24)}:{_numbers(cron.minutes, 60)}:00 UTC"
    if cron.either_day:
        return [f"*-{months}-{days} {time}", f"{names} *-{months}-* {time}"]
    on_days = "" if len(cron.weekdays) == 7 else f"{names} "
    return [f"{on_days}*-{months}-{days} {time}"]


def _service(plan: OrchestrationPlan, group: Group) -> str:
    retries = plan.retries
    lines = [
        *(f"# {line}" for line in _needs(plan)),
        "[Unit]",
        f"Description=Lakehead: {_unit_value(plan.pipeline)}, {counted(len(group.tables), 'table')}",
        "Wants=network-online.target",
        "After=network-online.target",
        *_start_limit(plan, group),
        "",
        "[Service]",
        "Type=oneshot",
        f"WorkingDirectory={_unit_value(group.command.working_directory)}",
        f"ExecStart={' '.join(_unit_word(word) for word in group.command.words)}",
        f"TimeoutStartSec={retries.timeout_seconds or 'infinity'}",
    ]
    if retries.count and group.schedule is not None:
        lines += [
            "Restart=on-failure",
            f"RestartSec={retries.delay_seconds}",
            "# 2: the configuration is wrong; 130 and 143: stopped by somebody.",
            "RestartPreventExitStatus=2 130 143",
        ]
    return "\n".join(lines) + "\n"


def _timer(plan: OrchestrationPlan, group: Group) -> str:
    lines = [
        "[Unit]",
        f"Description=Lakehead: {_unit_value(plan.pipeline)}, when to load {counted(len(group.tables), 'table')}",
        "",
        "[Timer]",
        *(f"OnCalendar={line}" for line in calendar_lines(group.schedule or "")),
        "# A run that was missed while the machine was off is made up for once.",
        "Persistent=true",
        "",
        "[Install]",
        "WantedBy=timers.target",
    ]
    return "\n".join(lines) + "\n"


def _start_limit(plan: OrchestrationPlan, group: Group) -> Iterator[str]:
    """Yield the limit of repetitions. It counts the timer's own starts too, so it ends before the next of them."""
    if group.schedule is not None and plan.retries.count:
        yield f"StartLimitBurst={plan.retries.count + 1}"
        yield f"StartLimitIntervalSec={_shortest_gap(group.schedule) * 60 - 1}"


def _shortest_gap(schedule: str) -> int:
    """Return the fewest minutes between two starts."""
    cron = CronSchedule.parse(schedule)
    starts = [hour * 60 + minute for hour in cron.hours for minute in cron.minutes]
    return min(later - start for start, later in pairwise([*starts, starts[0] + 24 * 60]))


def _needs(plan: OrchestrationPlan) -> Iterator[str]:
    if plan.environment:
        yield f"Set these variables in the scheduler's environment: {', '.join(map(_comment, plan.environment))}"
    if plan.secret_files:
        yield f"The scheduler's user must be able to read: {', '.join(map(_comment, plan.secret_files))}"


def _scheduled(plan: OrchestrationPlan) -> None:
    if all(group.schedule is None for group in plan.groups):
        raise Misconfigured(NO_SCHEDULE)


def _cron_command(command: Command) -> str:
    if "\\" in command.shell:  # implementations of cron differ in what they make of it before % and itself
        raise Misconfigured("A path with a backslash cannot be written in a cron file. Rename it.")
    text = command.shell.replace("%", "\\%")  # cron takes % for a line break
    if "\n" in text or "\r" in text:
        raise Misconfigured("A path with a line break cannot be written in a cron file. Rename it.")
    if len(text.encode()) > MOST_CRON_CHARACTERS:
        raise Misconfigured(
            f"A command of {len(text.encode()):,} bytes is too long for cron, which takes {MOST_CRON_CHARACTERS}. Give "
            "all tables of the configuration one schedule, put them into several configurations, or use "
            "--plan-format systemd."
        )
    return text


def _comment(text: str) -> str:
    """Return text for a comment or a docstring: printable, and nothing that could end it."""
    shown = text if text.isprintable() else ascii(text)
    return shown.replace("\\", "/").replace('"""', "'''")


def _check_days(plan: OrchestrationPlan) -> None:
    """Refuse schedules of days that Airflow takes otherwise: it matches either field unless one is a bare star."""
    for group in plan.groups:
        if group.schedule is None:
            continue
        cron = CronSchedule.parse(group.schedule)
        if not cron.either_day and len(cron.days) < 31 and len(cron.weekdays) < 7:
            raise Misconfigured(
                f"The schedule {group.schedule!r} needs a day that matches by its number and by its weekday. Airflow "
                "would take either. Write one of the two fields as *, or use another --plan-format."
            )


def _unit_value(text: str) -> str:
    if "\n" in text or "\r" in text:
        raise Misconfigured("A path with a line break cannot be written in a systemd unit. Rename it.")
    if text.endswith("\\") or text != text.strip():
        raise Misconfigured(
            "A path or pipeline name that ends with a backslash, or with a blank at its begin or end, cannot be "
            "written in a systemd unit. Rename it."
        )
    return text.replace("%", "%%")  # systemd's specifiers


def _unit_word(word: str) -> str:
    escaped = _unit_value(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"'


def _without_templates(command: str) -> str:
    """Keep Airflow from taking braces of a name for a template of Jinja."""
    if not any(sign in command for sign in ("{{", "{%", "{#")):
        return command
    return command.replace("{", "{{ '{' }}")


def _numbers(values: Sequence[int], count: int) -> str:
    return "*" if len(values) == count else ",".join(f"{value:02}" for value in values)
