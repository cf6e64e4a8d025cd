"""Where people learn of a bucket that weakens acceptance: a gateway's log and metrics, and `lakehead doctor`."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from lakehead.accept.bucket_policy import BucketPolicySettings, bucket_policy
from lakehead.accept.bucket_roles import BucketRole
from lakehead.storage.connect import StoreSettings
from lakehead.storage.s3_client import open_s3_client
from tests.servers.seaweed import Seaweed
from tests.servers.sqs import SqsServer
from tests.support.commands import lakehead_command
from tests.support.gateways import GatewayProcess, gateway_config

SECONDS = 60.0
ARNS = {role: f"arn:aws:iam::123456789012:role/{role}" for role in BucketRole}


def variables(settings: StoreSettings) -> dict[str, str]:
    keys = {f"AWS_{name.upper()}": value for name, value in settings.credentials.items()}
    return keys | {"AWS_ENDPOINT_URL": settings.endpoint, "AWS_REGION": settings.region}


def new_bucket(settings: StoreSettings) -> tuple[str, Any]:
    client, name = open_s3_client(settings, purpose="Tests", attempts=1), f"b{uuid4().hex}"
    client.create_bucket(Bucket=name)
    return name, client


def expire_all(name: str, client: Any) -> None:
    rule = {"ID": "thrifty", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 30}}
    client.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": [rule]})


@pytest.fixture
def gateway(tmp_path: Path, seaweed: Seaweed) -> Iterator[GatewayProcess]:
    """A gateway on a bucket where everything expires."""
    name, client = new_bucket(seaweed.settings())
    expire_all(name, client)
    env = variables(seaweed.settings())
    config = gateway_config(tmp_path, f"s3://{name}/prod", metrics_need_token=False)
    assert lakehead_command("gateway", "init", config, env=env).returncode == 0
    process = GatewayProcess(config, env, tmp_path / "log")
    try:
        yield process.start()
    finally:
        process.terminate()


def test_a_gateway_warns_and_counts_and_the_doctor_says_the_same_of_its_store(gateway: GatewayProcess) -> None:
    found, ends = "", time.monotonic() + SECONDS
    expected = 'lakehead_gateway_bucket_findings{check="lifecycle",severity="danger"} 1.0'
    while expected not in found and time.monotonic() < ends:
        found = httpx.get(f"{gateway.private}/metrics").text
    assert expected in found
    assert 'check="lifecycle",severity="unknown"} 0.0' in found
    assert "The bucket: danger: The lifecycle rule 'thrifty' deletes objects after 30 days" in gateway.log.read_text()

    store = json.loads(gateway.config.read_text())["gateway"]["store"]
    for options in (("--config", gateway.config), ("--store", store)):
        done = lakehead_command("doctor", "--no-spark", *options, env=gateway.env)
        assert done.returncode == 1, done.stderr
        assert "endangers accepted batches. The lifecycle rule 'thrifty'" in done.stderr
        assert "bucket advice: Versioning is off" in done.stdout


def test_the_doctor_finds_no_danger_in_the_printed_policy_and_one_in_a_rule_that_deletes(
    tmp_path: Path, sqs_server: SqsServer
) -> None:
    settings = sqs_server.s3_settings()
    name, client = new_bucket(settings)
    policy = bucket_policy(BucketPolicySettings(bucket=name, prefix="prod", principals=ARNS))
    client.put_bucket_policy(Bucket=name, Policy=json.dumps(policy))
    config = gateway_config(tmp_path, f"s3://{name}/prod")

    def doctor() -> tuple[int, str]:
        done = lakehead_command("doctor", "--no-spark", "--config", config, env=variables(settings))
        return done.returncode, done.stdout + done.stderr

    code, said = doctor()
    assert (code, "bucket ok" in said) == (0, False), "a server that is not that of AWS is not believed"
    assert "bucket unknown: The policy refuses what it should" in said
    expire_all(name, client)
    code, said = doctor()
    assert (code, "endangers accepted batches. The lifecycle rule 'thrifty'" in said) == (1, True), said


def test_a_store_without_an_authority_is_not_judged_as_one(seaweed: Seaweed) -> None:
    name, client = new_bucket(seaweed.settings())
    expire_all(name, client)
    done = lakehead_command("doctor", "--no-spark", "--store", f"s3://{name}/x", env=variables(seaweed.settings()))

    assert (done.returncode, "bucket" in done.stdout.replace(name, "")) == (0, False), done.stdout + done.stderr
