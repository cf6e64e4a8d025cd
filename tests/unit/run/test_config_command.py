"""`lakehead config`: the schema, the check, the exit codes, and no JVM."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakehead.run.config.pipeline_config import PipelineConfig, json_schema
from lakehead.run.config.rules import broken_rules
from tests.unit.run.config_files import SMALL, changed, written
from tests.unit.run.queue_support import Done

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "conf"

WITHOUT_SPARK = """
import sys
from lakehead.run.main import main
code = 0
try:
    main()
except SystemExit as error:
    code = error.code
loaded = {"pyspark", "py4j", "pyiceberg"} & {name.partition(".")[0] for name in sys.modules}
sys.exit(f"loaded {loaded}" if loaded else code)
"""


Lakehead = Callable[..., Done]


def without_spark(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """A process of its own, with no Java in reach, and an error if anything of Spark is so much as loaded."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, "config", *arguments],
        env={"PATH": "", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("name", ["shop.json", "shop.toml"])
def test_a_configuration_that_is_right_is_ok_and_its_secrets_need_not_be_there(lakehead: Lakehead, name: str) -> None:
    done = lakehead("config", "check", EXAMPLES / name)

    assert (done.code, done.err) == (0, "")
    assert done.out == "ok: 2 tables (1 full, 1 scd1), 1 source, 1 sink\n"


@pytest.mark.slow
def test_a_configuration_is_checked_without_a_jvm() -> None:
    done = without_spark("check", EXAMPLES / "shop.json")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok: 2 tables")


@pytest.mark.slow
def test_three_problems_are_three_lines_and_exit_code_2_without_a_jvm(tmp_path: Path) -> None:
    problems = {("runtime", "raw_root"): None, ("tables", 0, "mode"): "fulll", ("tables", 1, "primary_keys"): None}
    path = written(tmp_path, changed(problems))

    done = without_spark("check", path)

    assert (done.returncode, done.stdout) == (2, "")
    first, *lines = done.stderr.splitlines()
    assert first == f"lakehead: {path} is invalid: 3 problems."
    assert [line.partition(": ")[0] for line in lines] == [
        "  runtime.raw_root",
        "  tables[0].mode",
        "  tables[1].primary_keys",
    ]


def test_a_file_that_is_not_there_is_one_sentence(lakehead: Lakehead, tmp_path: Path) -> None:
    done = lakehead("config", "check", tmp_path / "none.json")

    assert (done.code, done.out) == (2, "")
    assert done.err == f"lakehead: The configuration {tmp_path}/none.json cannot be read: No such file or directory.\n"


@pytest.mark.slow
def test_the_schema_is_printed_without_a_jvm() -> None:
    done = without_spark("schema")

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json_schema()


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("schema", "lakehead config schema > lakehead.schema.json"),
        ("check", "lakehead config check conf/shop.json"),
    ],
)
def test_help_shows_an_example(lakehead: Lakehead, command: str, example: str) -> None:
    assert example in " ".join(lakehead("config", command, "--help").out.split())


def models(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        "PipelineConfig": schema,
        **{name: model for name, model in schema["$defs"].items() if "properties" in model},
    }


def test_every_key_of_the_schema_says_what_it_means_and_refuses_unknown_ones() -> None:
    for name, model in models(json_schema()).items():
        assert model["additionalProperties"] is False, name
        for key, node in model["properties"].items():
            assert str(node.get("description", "")).rstrip().endswith("."), f"{name}.{key}"


def test_every_key_of_the_specification_is_known() -> None:
    known = {f"{name}.{key}" for name, model in models(json_schema()).items() for key in model["properties"]}

    assert known >= {
        *(
            f"RuntimeConfig.{key}"
            for key in ("raw_root", "final_root", "intermediate", "max_parallel_tables", "staging")
        ),
        *(f"RuntimeConfig.{key}" for key in ("state", "scd1_slicing", "logging", "metadata", "metadata_gateway")),
        *(
            "RuntimeConfig.finalize_full_refresh",
            "StagingConfig.enabled",
            "StagingConfig.ttl_hours",
            "PipelineConfig.metadata",
        ),
        *("MetadataGatewayConfig.ingestion_metrics", "MetadataGatewayConfig.ingestion_runtime"),
        *(
            "SchemaPolicyConfig.require_snapshot",
            "SchemaPolicyConfig.allow_missing_columns",
            "MetadataConfig.guardrails",
        ),
        *(
            f"TableConfig.{key}"
            for key in ("mode", "incremental_column", "primary_keys", "incr_col_type", "lag_seconds")
        ),
        *(f"TableConfig.{key}" for key in ("initial_watermark", "source_filter", "partition_by", "merge_filters")),
        *("TableConfig.reconciliation", "TableConfig.force_reload"),
    }


def reference() -> str:
    """The tables of docs/config.md, from the schema."""
    schema = json_schema()
    places = {
        "PipelineConfig": "The file",
        "RuntimeConfig": "`runtime`",
        "StateConfig": "`runtime.state`",
        "LedgerConfig": "`runtime.ledger`",
        "SlicingConfig": "`runtime.scd1_slicing`",
        "StagingConfig": "`runtime.staging`",
        "MaintenanceConfig": "`runtime.maintenance`",
        "LoggingConfig": "`runtime.logging`",
        "OrchestrationConfig": "`runtime.orchestration`",
        "SourceConfig": "`sources.<name>`",
        "TlsConfig": "`sources.<name>.tls`",
        "IcebergSinkConfig": "`sinks.<name>`, type iceberg",
        "FileSinkConfig": "`sinks.<name>`, type files",
        "SparkConfig": "`spark`",
        "TableConfig": "`tables[*]`",
        "ProtectedColumnConfig": "`tables[*].columns.<name>`",
        "ReconciliationConfig": "`tables[*].reconciliation`",
        "ConsumeConfig": "`pipelines.<name>`",
        "SqsQueueConfig": "`pipelines.<name>.queue`, type sqs",
        "ManifestQueueConfig": "`pipelines.<name>.queue`, type manifest",
        "FolderQueueConfig": "`pipelines.<name>.queue`, type folder",
        "FilesQueueConfig": "`pipelines.<name>.queue`, type files",
        "TableRouteConfig": "`pipelines.<name>.tables[*]`",
        "CsvConfig": "`pipelines.<name>.tables[*].csv`",
        "ColumnConfig": "`pipelines.<name>.tables[*].columns[*]`",
        "GatewayConfig": "`gateway`",
        "IngestConfig": "`gateway.ingest`",
        "ListenerConfig": "`gateway.ingest_listener`, `gateway.private_listener`",
        "ListenerTlsConfig": "`gateway.ingest_listener.tls`, `gateway.private_listener.tls`",
        "ReconcileConfig": "`reconcile`",
        "ReconcileEventsConfig": "`reconcile.events`",
        "GcConfig": "`gc`",
        "RawBlobsConfig": "`raw_blobs`",
        "AgentConfig": "`agent`",
        "AgentTlsConfig": "`agent.tls`",
        "AgentListenerConfig": "`agent.listener`",
        "MetadataConfig": "`metadata`",
        "GuardrailsConfig": "`metadata.guardrails`, `tables[*].guardrails`",
        "SchemaPolicyConfig": "`metadata.schema_policy`, `tables[*].schema_policy`",
        "MetadataGatewayConfig": "`runtime.metadata_gateway`",
        "NotificationsConfig": "`runtime.notifications`",
        "MetricsConfig": "`runtime.metrics`",
        "OpenLineageConfig": "`runtime.openlineage`",
        "SecretReference": "A reference to a secret",
    }
    known = models(schema)
    assert set(places) == set(known), "a part of the configuration has no place in the documentation"
    lines: list[str] = []
    for name, title in places.items():
        lines += [f"### {title}", "", known[name]["description"], "", "| key | default | meaning |", "|---|---|---|"]
        required = known[name].get("required", ())
        for key, node in known[name]["properties"].items():
            shown = "needed" if key in required else _default(node)
            lines.append(f"| `{key}` | {shown} | {node['description'].replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)


def _default(node: dict[str, Any]) -> str:
    default = node.get("default")
    return "" if default is None or isinstance(default, list | dict) else f"`{json.dumps(default)}`"


def test_the_documentation_describes_every_key_as_the_schema_does() -> None:
    page = (ROOT / "docs" / "config.md").read_text()
    kept = re.search(r"(?<=<!-- keys: begin -->\n).*(?=<!-- keys: end -->)", page, re.DOTALL)

    assert kept is not None
    assert kept.group() == reference(), "write what reference() returns between the two marks in docs/config.md"


def test_the_smallest_example_of_the_documentation_is_right(lakehead: Lakehead, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "config.md").read_text()
    blocks = re.findall(r"^```(json|toml)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)

    assert blocks
    for number, (syntax, text) in enumerate(blocks):
        path = tmp_path / f"{number}.{syntax}"
        path.write_text(text)
        done = lakehead("config", "check", path)
        assert done.code == 0, done.err


def test_a_file_for_tables_needs_all_of_their_parts_and_one_for_pipelines_none_of_them() -> None:
    pipelines = {"events": {"queue": {"type": "folder", "url": "in"}, "tables": [{"table": "a.b", "format": "csv"}]}}

    assert {each.path for each in broken_rules({})} == {"runtime", "sources", "tables"} <= set(SMALL)
    assert list(broken_rules({"pipelines": pipelines})) == []
    assert PipelineConfig.model_validate({"pipelines": pipelines}).pipelines.keys() == {"events"}
    assert PipelineConfig.model_config["extra"] == "forbid"


def test_pipelines_are_counted_and_a_run_without_tables_says_so(lakehead: Lakehead, tmp_path: Path) -> None:
    pipelines = {"events": {"queue": {"type": "folder", "url": "in"}, "tables": [{"table": "a.b", "format": "csv"}]}}
    path = tmp_path / "events.json"
    path.write_text(json.dumps({"pipelines": pipelines}))

    assert lakehead("config", "check", path).out == "ok: 1 pipeline, 1 sink\n"
    done = lakehead("run", path)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("lakehead: The configuration has no tables to load.")
