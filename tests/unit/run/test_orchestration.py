"""The plan for schedulers: made without Spark, read by their own programs, and its commands run."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakehead.run.orchestration import OrchestrationPlan
from tests.servers.schedulers import crontab_says, systemd_says
from tests.unit.run.config_files import changed, written
from tests.unit.run.queue_support import Done

LAKEHEAD = Path(sys.executable).with_name("lakehead")
Lakehead = Callable[..., Done]
CANARY = "canary-4711-secret"

NIGHTLY: dict[tuple[str | int, ...], Any] = {
    ("runtime", "orchestration"): {"schedule": "30 2 * * *", "retries": 3, "retry_delay_seconds": 60},
    ("runtime", "max_parallel_tables"): 2,
    ("spark",): {"driver_memory": "3g"},
    ("tables", 1, "schedule"): "*/15 * * * *",
    ("sources", "shop", "password"): {"env": "SHOP_PASSWORD"},
}


def dump(lakehead: Lakehead, config: Path, *options: str | Path) -> Done:
    return lakehead("run", config, "--dump-orchestration-plan", *options)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In a folder whose name needs quoting by every scheduler."""
    monkeypatch.setenv("SHOP_PASSWORD", CANARY)
    folder = tmp_path / "it's 100% $HOME {{ here }}"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return written(folder, changed(NIGHTLY))


def test_the_plan_names_tables_order_commands_schedules_resources_and_retries(lakehead: Lakehead, config: Path) -> None:
    done = dump(lakehead, config)

    plan = OrchestrationPlan.from_json(done.out)
    assert (done.code, done.err) == (0, "")
    assert plan == OrchestrationPlan.from_json(plan.to_json())
    assert json.loads(plan.to_json()) == done.json
    assert [(group.schedule, group.tables) for group in plan.groups] == [
        ("30 2 * * *", ("public.cities",)),
        ("*/15 * * * *", ("public.orders",)),
    ]
    assert [(table.name, table.mode, table.position) for table in plan.tables] == [
        ("public.cities", "full", 1),
        ("public.orders", "scd1", 1),
    ]
    assert (plan.resources.driver_memory, plan.resources.parallel_tables) == ("3g", 2)
    assert (plan.retries.count, plan.retries.delay_seconds, plan.retries.exit_codes) == (3, 60, (1,))
    assert plan.environment == ("SHOP_PASSWORD",)
    words = list(plan.tables[1].command.words)
    assert words == [str(LAKEHEAD), "run", str(config), "--only-tables", "public.orders"]
    assert shlex.split(plan.tables[1].command.shell) == ["cd", str(config.parent), "&&", *words]


def test_options_of_a_run_are_part_of_its_commands(lakehead: Lakehead, config: Path) -> None:
    done = dump(lakehead, config, "--wm-lag-seconds", "60", "--only-tables", "public.orders", "--log-level", "debug")

    [table] = OrchestrationPlan.from_json(done.out).tables
    assert table.command.words[-4:] == ("--only-tables", "public.orders", "--wm-lag-seconds=60", "--log-level=debug")


@pytest.mark.parametrize("form", ["json", "airflow", "cron", "systemd"])
def test_no_secret_is_in_a_plan(lakehead: Lakehead, config: Path, form: str, tmp_path: Path) -> None:
    folder = ("--plan-folder", tmp_path / "units") if form == "systemd" else ()

    done = dump(lakehead, config, "--plan-format", form, *folder)

    files = "".join(path.read_text() for path in (tmp_path / "units").glob("*"))
    assert done.code == 0
    assert CANARY not in done.out + done.err + files
    assert "SHOP_PASSWORD" in done.out + files


def test_cron_reads_the_cron_file(lakehead: Lakehead, config: Path, tmp_path: Path) -> None:
    done = dump(lakehead, config, "--plan-format", "cron")

    (tmp_path / "crontab").write_text(done.out)
    assert crontab_says(tmp_path / "crontab")[0] == 0
    [first, second] = [line for line in done.out.splitlines() if " run " in line and not line.startswith("#")]
    assert first.startswith("30 2 * * * cd ")
    assert second.startswith("*/15 * * * * cd ")
    assert not re.search(r"(?<!\\)%", first)  # a bare one would end the command
    # Cron hands the shell what is left when each \% is a %.
    line = first.removeprefix("30 2 * * * ").replace("\\%", "%").replace(str(LAKEHEAD), "echo")
    ran = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == f"run {config} --only-tables public.cities\n"


def test_systemd_reads_the_units(lakehead: Lakehead, config: Path, tmp_path: Path) -> None:
    done = dump(lakehead, config, "--plan-format", "systemd", "--plan-folder", tmp_path / "units")

    units = [Path(line) for line in done.out.splitlines()]
    assert {unit.suffix for unit in units} == {".service", ".timer"}
    assert len(units) == 4
    assert systemd_says(*units) == (0, "")
    (broken := tmp_path / "broken.timer").write_text("[Timer]\nOnCalendar=never\n")
    assert systemd_says(broken)[1] != ""  # it does look


def test_a_frequent_timer_is_not_stopped_by_the_limit_of_repetitions(
    lakehead: Lakehead, config: Path, tmp_path: Path
) -> None:
    dump(lakehead, config, "--plan-format", "systemd", "--plan-folder", tmp_path / "units")

    [service] = (tmp_path / "units").glob("*anyby15*.service")
    lines = service.read_text().splitlines()
    assert "StartLimitBurst=4" in lines
    assert "StartLimitIntervalSec=899" in lines
    assert "RestartSec=60" in lines


def fake_airflow(folder: Path) -> None:
    """Modules of Airflow's names that print what they are given."""
    (folder / "airflow/operators").mkdir(parents=True)
    (folder / "airflow/__init__.py").write_text(
        "class DAG:\n"
        "    def __init__(self, **given):\n"
        "        print('dag', given['dag_id'], given['schedule'], given['max_active_tasks'])\n"
        "    def __enter__(self):\n        return self\n"
        "    def __exit__(self, *_):\n        pass\n"
    )
    (folder / "airflow/operators/__init__.py").touch()
    (folder / "airflow/operators/bash.py").write_text(
        "def BashOperator(**given):\n    print('task', given['task_id'], given['bash_command'])\n"
    )


def test_the_airflow_file_is_python_and_makes_a_dag_for_each_schedule(
    lakehead: Lakehead, config: Path, tmp_path: Path
) -> None:
    done = dump(lakehead, config, "--plan-format", "airflow")
    fake_airflow(tmp_path / "modules")
    (tmp_path / "dags.py").write_text(done.out)

    ran = subprocess.run(
        [sys.executable, "-W", "error", tmp_path / "dags.py"],
        env={"PYTHONPATH": str(tmp_path / "modules")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    lines = ran.stdout.splitlines()
    assert lines[0] == "dag lakehead_lakehead_30_2_any_any_any 30 2 * * * 2"
    rendered = lines[1].replace("{{ '{' }}", "{")
    assert rendered.startswith(f"task public.cities cd {shlex.quote(str(config.parent))} && ")
    assert not re.search(r"\{[{%#]", lines[1].replace("{{ '{' }}", ""))
    assert len(lines) == 4


def test_a_folder_that_looks_like_a_template_is_none_for_airflow(
    lakehead: Lakehead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "{% endraw %}{{ 1 }}{# x #}"
    folder.mkdir()
    monkeypatch.chdir(folder)

    done = dump(lakehead, written(folder, changed(NIGHTLY)), "--plan-format", "airflow")

    [plan] = [line for line in done.out.splitlines() if line.startswith("PLAN_JSON")]
    assert "{{ '{' }}% endraw %}" in plan
    commands = [
        task["command"]
        for group in json.loads(json.loads(plan.partition("= ")[2]))["groups"]
        for task in group["tables"]
    ]
    assert not [each for each in commands if re.search(r"\{[{%#]", each.replace("{{ '{' }}", ""))]


@pytest.mark.parametrize(("schedule", "code"), [("0 0 */2 * mon", 2), ("0 0 1,15 * mon", 0), ("0 0 */2 * *", 0)])
def test_days_that_airflow_takes_otherwise_than_cron_are_refused_for_it(
    lakehead: Lakehead, tmp_path: Path, schedule: str, code: int
) -> None:
    config = written(tmp_path, changed({("runtime", "orchestration"): {"schedule": schedule}}))

    airflow, cron = (dump(lakehead, config, "--plan-format", form) for form in ("airflow", "cron"))

    assert (airflow.code, cron.code) == (code, 0)
    assert ("Airflow would take either" in airflow.err) == bool(code)


@pytest.mark.parametrize("name", ["a\\%b", "a\\"])
def test_a_path_with_a_backslash_is_refused_where_it_would_be_read_otherwise(
    lakehead: Lakehead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    config = written(folder, changed(NIGHTLY))

    cron = dump(lakehead, config, "--plan-format", "cron")
    systemd = dump(lakehead, config, "--plan-format", "systemd", "--plan-folder", tmp_path / "units")

    assert (cron.code, cron.out) == (2, "")
    assert "backslash" in cron.err
    assert systemd.code == (2 if name.endswith("\\") else 0)


def test_pipelines_with_similar_names_have_units_of_their_own(lakehead: Lakehead, tmp_path: Path) -> None:
    names = set[str]()
    for pipeline in ("shop a", "shop_a", "shop\ta", "s" * 300, "s" * 301):
        config = written(tmp_path, changed({**NIGHTLY, ("runtime", "pipeline"): pipeline}))
        done = dump(lakehead, config, "--plan-format", "systemd", "--plan-folder", tmp_path / "units")
        assert done.code == 0, done.err
        names.update(done.out.splitlines())

    assert len(names) == 4 * 5
    assert systemd_says(*map(Path, names)) == (0, "")


def test_tables_without_a_schedule_are_for_hands(lakehead: Lakehead, tmp_path: Path) -> None:
    config = written(tmp_path, changed({("tables", 0, "schedule"): "@daily"}))

    done = dump(lakehead, config, "--plan-format", "cron")

    assert [line[:10] for line in done.out.splitlines() if "--only-tables" in line] == [
        "0 0 * * * ",
        "# cd " + done.out.split("# cd ")[1][:5],
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plan-format", "cron"], "No table has a schedule. Set runtime.orchestration.schedule"),
        (["--plan-format", "systemd"], "Name a folder for them: --plan-folder"),
        (["--plan-folder", "x"], "--plan-folder is for --plan-format systemd"),
        (["--reload"], "leave out --reload and --load-date"),
        (["--maintenance-mode", "dry-run"], "leave out --maintenance-mode"),
        (["--metrics-port", "0"], "leave out --metrics-port and --metrics-file"),
        (["--only-tables", "nowhere"], "The configuration has no table nowhere"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    lakehead: Lakehead, tmp_path: Path, options: list[str], message: str
) -> None:
    done = dump(lakehead, written(tmp_path, changed({})), *options)

    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_wrong_schedule_is_named_with_its_place(lakehead: Lakehead, tmp_path: Path) -> None:
    done = dump(lakehead, written(tmp_path, changed({("tables", 0, "schedule"): "61 * * * *"})))

    assert done.code == 2
    assert "tables[0].schedule: has a minute outside 0 to 59." in done.err


def test_a_command_that_is_too_long_for_cron_is_refused(lakehead: Lakehead, tmp_path: Path) -> None:
    many = [{"table": f"a_rather_long_name_{number}", "mode": "full", "schedule": "@daily"} for number in range(60)]
    config = written(tmp_path, changed({("tables",): [*many, {"table": "other", "mode": "full"}]}))

    done = dump(lakehead, config, "--plan-format", "cron")

    assert done.code == 2
    assert "too long for cron" in done.err


@pytest.mark.slow  # a process of its own
def test_a_plan_needs_no_java_no_secret_and_makes_nothing(tmp_path: Path) -> None:
    config = written(tmp_path, changed(NIGHTLY))
    before = set(tmp_path.rglob("*"))

    done = subprocess.run(
        [LAKEHEAD, "run", config, "--dump-orchestration-plan"],
        env={"PATH": "/nowhere", "JAVA_HOME": "/nowhere", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert len(OrchestrationPlan.from_json(done.stdout).tables) == 2
    assert set(tmp_path.rglob("*")) == before
