"""`lakehead gateway` and `lakehead conflicts`: the authority, tokens, and what operators decide."""

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakehead.accept.acceptance import Acceptor, Conflict
from lakehead.accept.overlaps import Overlaps
from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds
from lakehead.run.config.config_file import read_config
from lakehead.run.config.gateway_config import GatewayConfig
from lakehead.run.config.problems import InvalidConfig
from lakehead.run.gateway_command import open_gateway, operator
from lakehead.run.gateway_wiring import GatewayWiring
from lakehead.wire import acceptance_keys
from lakehead.wire.audit_records import AuditEntry
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import OverlappedBatch
from tests.unit.accept.support import submitted
from tests.unit.run.queue_support import Done

CONFLICT = f"agent=6167656e742d61.boot=626f6f742d31.{10:020}-{20:020}.{submitted(b'other').sha256}"
Lakehead = Callable[..., Done]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path, {"store": f"file://{tmp_path}/lake", "ingest_listener": {"port": 0}})


def written(folder: Path, gateway: dict[str, Any]) -> Path:
    path = folder / "gateway.json"
    path.write_text(json.dumps({"gateway": gateway}))
    return path


def conflicting(wiring: GatewayWiring) -> str:
    """Accept a batch, and submit another under its identity. Returns the id of the conflict."""

    async def make() -> None:
        acceptor = Acceptor(
            store=wiring.store, clock=SystemClock(), ids=RandomIds(), random=wiring.random, collector_id="g"
        )
        await acceptor.accept(submitted(b"accepted"))
        conflict = await acceptor.accept(submitted(b"other"))
        assert isinstance(conflict, Conflict)
        await wiring.conflicts.record(conflict)

    asyncio.run(make())
    return CONFLICT


def test_a_store_becomes_an_authority_once(lakehead: Lakehead, config: Path) -> None:
    first, again = lakehead("gateway", "init", config), lakehead("gateway", "init", config)

    assert (first.code, again.code) == (0, 0)
    assert "from now on" in first.out
    assert "already" in again.out
    assert first.out.split(": ")[-1] == again.out.split(": ")[-1], "the same id"
    assert f"lakehead gateway token add {config} --agent" in first.err


def test_a_gateway_does_not_start_without_an_authority(lakehead: Lakehead, config: Path) -> None:
    done = lakehead("gateway", config)

    assert done.code == 2
    assert "run `lakehead gateway init CONFIG` once" in done.err


def test_a_token_is_printed_once_listed_without_its_secret_and_revoked(lakehead: Lakehead, config: Path) -> None:
    lakehead("gateway", "init", config)

    added = lakehead("gateway", "token", "add", config, "--agent", "web-1")
    lakehead("gateway", "token", "add", config, "--role", "viewer")
    listed = lakehead("gateway", "token", "list", config, "--json")

    assert added.code == 0
    assert added.out.startswith("lh_")
    tokens = json.loads(listed.out)["tokens"]
    assert [(each["agent"], each["role"]) for each in tokens] == [("web-1", None), (None, "viewer")]
    assert added.out.strip() not in listed.out
    revoked = lakehead("gateway", "token", "revoke", config, tokens[0]["id"])
    assert revoked.out == "Revoked a token of the agent web-1: gateways refuse it within 30 s.\n"
    assert lakehead("gateway", "token", "list", config).out.splitlines()[-1] == "1 token"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either for an agent or for a role"),
        (["--agent", "a", "--role", "viewer"], "either for an agent or for a role"),
        (["--role", "king"], "'king' is not one of"),
    ],
)
def test_a_token_is_for_an_agent_or_a_role(
    lakehead: Lakehead, config: Path, arguments: list[str], message: str
) -> None:
    lakehead("gateway", "init", config)
    done = lakehead("gateway", "token", "add", config, *arguments)

    assert done.code == 2
    assert message in done.err


def test_conflicts_are_listed_shown_and_decided_about_by_the_submitted_hash(lakehead: Lakehead, config: Path) -> None:
    lakehead("gateway", "init", config)
    conflict = conflicting(open_gateway(config))

    listed = lakehead("conflicts", "list", config)
    shown = json.loads(lakehead("conflicts", "show", config, conflict).out)

    assert [conflict, "identity_conflict", "agent-a", "10-20", "open"] in [
        row.split() for row in listed.out.splitlines()
    ]
    assert listed.out.endswith("1 conflict\n")
    assert shown["manifest"]["submitted_frame_sha256"] == submitted(b"other").sha256
    assert lakehead("conflicts", "accept-existing", config, conflict, "--note", "a clone").code == 0
    decided = json.loads(lakehead("conflicts", "show", config, conflict).out)["resolution"]
    assert (decided["resolution"], decided["note"]) == ("accept_existing", "a clone")
    assert lakehead("conflicts", "quarantine", config, conflict).code == 0
    assert lakehead("conflicts", "release", config, conflict).code == 0
    assert json.loads(lakehead("conflicts", "list", config, "--agent", "other", "--json").out) == {"conflicts": []}


def test_an_overlap_is_shown_with_both_batches_and_cannot_be_dropped_but_its_boot_can_be_quarantined(
    lakehead: Lakehead, config: Path
) -> None:
    lakehead("gateway", "init", config)
    wiring, late = open_gateway(config), submitted(b"late")
    overlaps = Overlaps(
        store=wiring.store,
        clock=SystemClock(),
        ids=RandomIds(),
        random=wiring.random,
        observed_by="pipeline telemetry",
        most_records=100,
    )
    key = acceptance_keys.accepted(BatchIdentity("agent-a", "boot-1", 15, 30))
    other = OverlappedBatch(
        accepted_manifest_key=key,
        raw_blob_key=acceptance_keys.raw_blob("ab" * 32),
        frame_sha256="ab" * 32,
        ranges=((15, 17), (20, 20)),
    )
    asyncio.run(overlaps.record(late.identity, late.sha256, [other], table="table-uuid"))

    [shown] = json.loads(lakehead("conflicts", "list", config, "--json").out)["conflicts"]

    assert (shown["kind"], shown["manifest"]["frame_sha256"]) == ("overlap", late.sha256)
    assert shown["manifest"]["ranges"] == [[15, 17], [20, 20]]
    assert shown["manifest"]["others"] == [json.loads(msgspec.json.encode(other))]
    assert shown["manifest"]["observed_at_unix_ns"] > 0
    assert [shown["id"], "overlap", "agent-a", "10-20", "open"] in [
        row.split() for row in lakehead("conflicts", "list", config).out.splitlines()
    ]
    assert json.loads(lakehead("conflicts", "show", config, shown["id"]).out) == shown
    refused = lakehead("conflicts", "accept-existing", config, shown["id"])
    assert (refused.code, "its agent has nothing to drop" in refused.err) == (2, True)
    assert "is in quarantine" in lakehead("conflicts", "quarantine", config, shown["id"]).out


def test_batches_with_common_numbers_are_listed_also_if_nothing_is_known_to_differ(
    lakehead: Lakehead, config: Path
) -> None:
    lakehead("gateway", "init", config)
    wiring = open_gateway(config)
    batches = [BatchIdentity("web-1", "b1", 10, end) for end in (20, 25)]

    async def accept() -> None:
        for each in batches:
            await wiring.acceptor(wiring.store).accept(submitted(str(each).encode(), each))

    assert lakehead("conflicts", "overlaps", config).out == "0 overlaps\n"
    asyncio.run(accept())

    shown = lakehead("conflicts", "overlaps", config)
    [overlap] = json.loads(lakehead("conflicts", "overlaps", config, "--agent", "web-1", "--json").out)["overlaps"]

    assert shown.out.splitlines()[1].split()[:5] == ["web-1", "b1", "10-20", "10-25", "10-20"]
    assert shown.out.endswith("no difference is known\n1 overlap\n")
    assert [each["accepted_manifest_key"] for each in overlap["batches"]] == list(
        map(acceptance_keys.accepted, batches)
    )
    assert overlap["common"] == [10, 20]
    assert lakehead("conflicts", "overlaps", config, "--agent", "web-2").out == "0 overlaps\n"


def test_the_audit_trail_is_shown_the_oldest_entry_first(lakehead: Lakehead, config: Path) -> None:
    lakehead("gateway", "init", config)
    conflict = conflicting(open_gateway(config))
    lakehead("gateway", "token", "add", config, "--agent", "web-1")
    lakehead("conflicts", "accept-existing", config, conflict, "--note", "a clone")

    shown = lakehead("gateway", "audit", config)
    entries = json.loads(lakehead("gateway", "audit", config, "--json").out)["entries"]

    assert [each["action"] for each in entries] == ["init", "add_token", "accept_existing"]
    assert {each["by"] for each in entries} == {operator()}
    assert entries[1]["after"]["agent_id"] == "web-1"
    assert "token_sha256" not in entries[1]["after"]
    assert (entries[2]["before"], entries[2]["after"]["note"], entries[2]["problem"]) == (None, "a clone", "")
    assert acceptance_keys.parse_identity_conflict(entries[2]["because_of"]) is not None
    assert datetime.fromisoformat(entries[0]["at"]).tzinfo is not None
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows[0] == ["TIME", "BY", "ACTION", "SUBJECT", "BECAUSE", "OF"]
    assert [row[3] for row in rows[1:-1]] == ["init", "add_token", "accept_existing"]
    assert shown.out.endswith("3 entries\n")


def test_only_the_last_entries_of_the_audit_trail_are_shown_if_one_asks_for_them(
    lakehead: Lakehead, config: Path
) -> None:
    lakehead("gateway", "init", config)
    wiring = open_gateway(config)
    old = AuditEntry(action_id=RandomIds().uuid(), at_unix_ns=10**18, by="ann", action="revoke_token", subject="t")
    asyncio.run(wiring.store.create(old.key, old.encode()))

    assert lakehead("gateway", "audit", config).out.endswith("2 entries\n")
    assert "revoke_token" not in lakehead("gateway", "audit", config, "--since", "1h").out
    wrong = lakehead("gateway", "audit", config, "--since", "yesterday")
    assert (wrong.code, "such as 12h or 3d" in wrong.err) == (2, True)


def test_an_entry_of_the_audit_trail_that_cannot_be_read_is_shown_as_such(lakehead: Lakehead, config: Path) -> None:
    lakehead("gateway", "init", config)
    key = acceptance_keys.audit_entry(10**18, RandomIds().uuid())
    asyncio.run(open_gateway(config).store.create(key, b"{}"))

    shown = lakehead("gateway", "audit", config)
    [broken, _] = json.loads(lakehead("gateway", "audit", config, "--json").out)["entries"]

    assert shown.code == 0
    assert key in shown.out
    assert (broken["key"], broken["action"]) == (key, None)
    assert broken["problem"]


def test_help_of_the_audit_trail_shows_an_example(lakehead: Lakehead) -> None:
    said = " ".join(lakehead("gateway", "audit", "--help").out.split())

    assert "lakehead gateway audit conf/gateway.toml --since 7d" in said


@pytest.mark.parametrize("command", ["show", "accept-existing", "quarantine", "release"])
def test_a_conflict_that_there_is_not_is_told(lakehead: Lakehead, config: Path, command: str) -> None:
    lakehead("gateway", "init", config)
    missing = f"agent=61.boot=62.{1:020}-{2:020}.{'0' * 64}"

    assert "List them: lakehead conflicts list" in lakehead("conflicts", command, config, "nonsense").err
    done = lakehead("conflicts", command, config, missing)
    assert done.code == 2
    assert "is in quarantine under" in done.err


def test_a_configuration_without_a_gateway_is_told(lakehead: Lakehead, tmp_path: Path) -> None:
    pipelines = {"p": {"queue": {"type": "sqs", "queue": "q"}, "tables": [{"table": "a.b", "format": "csv"}]}}
    (tmp_path / "c.json").write_text(json.dumps({"pipelines": pipelines}))

    done = lakehead("gateway", tmp_path / "c.json")

    assert done.code == 2
    assert "has no gateway" in done.err


@pytest.mark.parametrize(
    ("gateway", "message"),
    [
        ({"store": "lake"}, "must be a URL"),
        ({"store": "s3://b", "queue_path": "../other"}, "must be a folder of the store"),
        ({"store": "s3://b", "queue_path": "./accepted/v1/queue"}, "must not begin with accepted/"),
        ({"store": "s3://b", "queue_path": "rollup"}, "must not begin with rollup/"),
        ({"store": "s3://b", "queue_path": "."}, "must not begin with ./"),
        ({"store": "s3://b", "collector_id": "x" * 1_025}, "collector_id"),
        ({"store": "s3://b", "ingest": {"acceptance": "both"}}, "acceptance"),
        ({"store": "s3://b", "ingest": {"body_bytes": 10, "bytes_in_flight": 9}}, "largest frames are never taken"),
        ({"store": "s3://b", "ingest": {"acceptance": "local_spool"}}, "local_spool needs spool_folder"),
        ({"store": "s3://b", "ingest": {"spool_bytes": 1_000}}, "spool_bytes must be at least body_bytes"),
        ({"store": "s3://b", "ingest": {"object_landing_interval_ms": 0}}, "object_landing_interval_ms"),
        ({"store": "s3://b", "ingest_listener": {"port": 70_000}}, "port"),
    ],
)
def test_a_gateway_that_cannot_work_is_refused(tmp_path: Path, gateway: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        read_config(written(tmp_path, gateway))


MULTI_REGION_HOST = "abc123.mrap.accesspoint.s3-global.amazonaws.com"


@pytest.mark.parametrize(
    "store",
    [
        "s3://abc123.mrap/lake",
        "s3://ABC123.MRAP/lake",
        "s3://abc123%2Emrap",
        "s3://arn:aws:s3::123456789012:accesspoint/abc123.mrap",
        "s3://arn:aws:s3::123456789012:accesspoint:abc123.mrap/lake",
        "s3://arn:aws-cn:s3::123456789012:accesspoint/abc123/lake",
        "s3://ARN%3Aaws%3As3%3A%3A123456789012%3Aaccesspoint%2Fabc123",
        f"s3://{MULTI_REGION_HOST}/lake",
        f"s3://{MULTI_REGION_HOST.upper()}.cn",
        f"s3://b?endpoint=https%3A%2F%2F{MULTI_REGION_HOST}",
        f"s3://b?region=eu-central-1&endpoint=https://{MULTI_REGION_HOST.title()}:443/",
    ],
)
def test_a_multi_region_access_point_is_refused_however_it_is_named(tmp_path: Path, store: str) -> None:
    with pytest.raises(InvalidConfig, match="Multi-Region Access Point, which is no lock"):
        read_config(written(tmp_path, {"store": store}))


@pytest.mark.parametrize(
    "store",
    ["s3://lake/abc123.mrap", "s3://lake.mrap-logs", "s3://lakemrap", "s3://arn:aws:s3:eu-central-1:123:accesspoint/x"],
)
def test_what_only_looks_like_a_multi_region_access_point_is_taken(tmp_path: Path, store: str) -> None:
    assert read_config(written(tmp_path, {"store": store})).gateway is not None


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
def test_an_endpoint_of_the_environment_that_is_a_multi_region_access_point_is_refused(variable: str) -> None:
    """The client of the store reads these variables by itself."""
    wiring = GatewayWiring(GatewayConfig(store="s3://b"), {variable: f"https://{MULTI_REGION_HOST}"})

    with pytest.raises(Misconfigured, match="which is no lock"):
        _ = wiring.store


@pytest.mark.parametrize(
    "command",
    [
        ("gateway", "token", "add", "--agent", "web-1"),
        ("gateway", "token", "list"),
        ("gateway", "token", "revoke", "0b8c"),
        ("gateway", "audit"),
        ("conflicts", "list"),
        ("conflicts", "overlaps"),
        ("conflicts", "show", CONFLICT),
        ("conflicts", "quarantine", CONFLICT),
    ],
)
def test_a_command_on_a_store_that_is_no_authority_says_so_and_leaves_nothing_there(
    lakehead: Lakehead, config: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    words = 3 if command[1] == "token" else 2
    done = lakehead(*command[:words], config, *command[words:])

    assert done.code == 2
    assert "There is no acceptance authority" in done.err
    assert not (tmp_path / "lake").exists()


def test_a_multi_region_access_point_is_taken_if_that_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, {"store": "s3://abc123.mrap/lake", "allow_multi_region_access_point": True})

    assert read_config(path).gateway is not None


def test_a_gateway_is_counted_when_its_configuration_is_checked(lakehead: Lakehead, config: Path) -> None:
    assert lakehead("config", "check", config).out == "ok: 1 gateway, 1 sink\n"


def test_by_default_batches_are_accepted_in_the_store_and_spools_are_landed_every_second(config: Path) -> None:
    ingest = open_gateway(config).config.ingest

    assert (ingest.acceptance, ingest.object_landing_interval_ms) == ("s3_manifest", 1000)


def test_the_mode_changes_after_a_drain_and_a_lost_spool_is_given_up_by_its_id(
    lakehead: Lakehead, tmp_path: Path
) -> None:
    spool = {"acceptance": "local_spool", "spool_folder": str(tmp_path / "spool")}
    config = written(tmp_path, {"store": f"file://{tmp_path}/lake", "ingest": spool})
    assert lakehead("gateway", "init", config).code == 0
    authority = open_gateway(config).authority
    asyncio.run(authority.open_spool("lost-spool", collector_id="burnt-down"))

    drained = lakehead("gateway", "drain", config)
    waits = lakehead("gateway", "set-mode", config, "s3_manifest")
    unknown = lakehead("gateway", "drain", config, "--lost", "another")
    given_up = lakehead("gateway", "drain", config, "--lost", "lost-spool")
    changed = lakehead("gateway", "set-mode", config, "s3_manifest")
    again = lakehead("gateway", "drain", config)
    (tmp_path / "spool" / "batches").mkdir(exist_ok=True)
    (tmp_path / "spool" / "batches" / "found-again.lmbatch").touch()
    found_again = lakehead("gateway", "drain", config)

    assert (drained.code, "Landed 0 batches. The spool is empty and closed." in drained.out) == (0, True)
    assert (waits.code, "lost-spool of burnt-down" in waits.err) == (2, True)
    assert (unknown.code, "open are lost-spool of burnt-down" in unknown.err) == (2, True)
    assert (given_up.code, "what it held is not waited for" in given_up.out) == (0, True)
    assert (changed.code, "accepts by s3_manifest, in epoch 2" in changed.out) == (0, True)
    assert (again.code, "nothing to drain" in again.out) == (0, True)
    assert (found_again.code, "has 1 files of batches" in found_again.err) == (2, True)
    assert asyncio.run(authority.read()).open_spools == ()


def test_a_gateway_of_another_mode_than_its_authority_does_not_start(lakehead: Lakehead, config: Path) -> None:
    assert lakehead("gateway", "init", config).code == 0
    spool = {"acceptance": "local_spool", "spool_folder": str(config.parent / "spool")}
    other = written(config.parent, {"store": f"file://{config.parent}/lake", "ingest": spool})

    done = lakehead("gateway", other)

    assert done.code == 2
    assert "accept by s3_manifest" in done.err


def test_draining_without_a_spool_says_what_to_set(lakehead: Lakehead, config: Path) -> None:
    assert lakehead("gateway", "init", config).code == 0
    assert lakehead("gateway", "set-mode", config, "local_spool").code == 0

    done = lakehead("gateway", "drain", config)

    assert (done.code, "Set ingest.spool_folder" in done.err) == (2, True)
