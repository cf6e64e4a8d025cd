"""Settings planted in buckets of real servers: each is found, and the same elsewhere, or taken away, is not.

SeaweedFS has no replication and no transitions; MiniStack does not keep the old form of a rule's prefix.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest

from lakehead.accept.bucket_findings import bucket_findings
from lakehead.accept.bucket_policy import BucketPolicySettings, Encryption, bucket_policy
from lakehead.accept.bucket_roles import BucketRole
from lakehead.accept.bucket_settings import AuthorityPlace, Check, Finding, Severity
from lakehead.accept.s3_bucket_settings import settings_of
from lakehead.run.bucket_checks import bucket_check
from lakehead.storage.connect import StoreSettings
from lakehead.storage.open_store import open_store
from lakehead.storage.port import Created, Exists
from lakehead.storage.s3_client import open_s3_client
from tests.servers.ports import free_ports
from tests.support.async_tests import async_test

PREFIX = "prod"
ACCEPTED, BLOBS = f"{PREFIX}/accepted/v1/", f"{PREFIX}/raw-blobs/v1/"
ARNS = {role: f"arn:aws:iam::123456789012:role/{role}" for role in BucketRole}
Rule = Mapping[str, Any]
SERVERS = ("seaweed", "ministack")


@dataclass(frozen=True)
class Bucket:
    """A new bucket, and who may change it."""

    name: str
    client: Any
    settings: StoreSettings

    is_aws: bool = False

    def found(self, check: Check, encryption: Encryption | None = None) -> list[Finding]:
        place = AuthorityPlace(bucket=self.name, prefix=PREFIX, is_aws=self.is_aws, encryption=encryption)
        return [each for each in bucket_findings(settings_of(self.name, self.client), place) if each.check is check]

    def worst(self, check: Check, encryption: Encryption | None = None) -> Severity | None:
        found = self.found(check, encryption)
        return found[0].severity if found else None

    def set_rules(self, rules: Mapping[str, Rule]) -> None:
        """Plant lifecycle rules, each by its name."""
        planted = {"Rules": [{"ID": name, "Status": "Enabled", **rule} for name, rule in rules.items()]}
        self.client.put_bucket_lifecycle_configuration(Bucket=self.name, LifecycleConfiguration=planted)

    def rules_found(self) -> dict[str, Severity]:
        """The names of the rules that are found, each with its severity."""
        found = self.found(Check.LIFECYCLE)
        names = [re.findall("lifecycle rule '(.*?)'", each.problem) for each in found]
        return {name: each.severity for each, [name] in zip(found, names, strict=True)}

    def set_policy(self, *statements: Mapping[str, Any]) -> None:
        policy = {"Version": "2012-10-17", "Statement": statements}
        self.client.put_bucket_policy(Bucket=self.name, Policy=json.dumps(policy))


@pytest.fixture
def bucket_of(request: pytest.FixtureRequest) -> Callable[..., Bucket]:
    """Make a bucket on one of the servers."""

    def make(server: str, **more: Any) -> Bucket:
        settings: StoreSettings = (
            request.getfixturevalue("seaweed").settings()
            if server == "seaweed"
            else request.getfixturevalue("sqs_server").s3_settings()
        )
        client, name = open_s3_client(settings, purpose="Tests", attempts=1), f"b{uuid4().hex}"
        client.create_bucket(Bucket=name, **more)
        return Bucket(name, client, settings)

    return make


DAYS: Rule = {"Expiration": {"Days": 30}}
EVERYWHERE = (*SERVERS,)
RULES: Mapping[str, tuple[Rule, Severity, tuple[str, ...]]] = {
    "days": (DAYS, Severity.DANGER, EVERYWHERE),
    "date": ({"Expiration": {"Date": "2040-01-01T00:00:00Z"}}, Severity.DANGER, EVERYWHERE),
    "versions": ({"NoncurrentVersionExpiration": {"NoncurrentDays": 3}}, Severity.DANGER, EVERYWHERE),
    "markers": ({"Expiration": {"ExpiredObjectDeleteMarker": True}}, Severity.WARNING, EVERYWHERE),
    "transition": ({"Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]}, Severity.WARNING, ("ministack",)),
    "versions moved": (
        {"NoncurrentVersionTransitions": [{"NoncurrentDays": 3, "StorageClass": "GLACIER"}]},
        Severity.WARNING,
        ("ministack",),
    ),
}


@pytest.mark.parametrize("server", SERVERS)
def test_a_lifecycle_rule_is_found_where_batches_are_accepted_and_nowhere_else(
    server: str, bucket_of: Callable[..., Bucket]
) -> None:
    bucket, rules, expected = bucket_of(server), dict[str, Rule](), dict[str, Severity]()
    for name, (rule, severity, servers) in RULES.items():
        if server in servers:
            for where in (ACCEPTED, BLOBS, "other/", f"{PREFIX}-2/", "accepted/v1/"):
                rules[f"{name} at {where}"] = {"Filter": {"Prefix": where}, **rule}
            expected |= {f"{name} at {where}": severity for where in (ACCEPTED, BLOBS)}

    bucket.set_rules(rules)
    assert bucket.rules_found() == expected
    bucket.client.delete_bucket_lifecycle(Bucket=bucket.name)
    assert bucket.found(Check.LIFECYCLE) == []


TAG = {"Key": "age", "Value": "old"}
LIMITS: Mapping[str, tuple[Rule, Severity | None, tuple[str, ...]]] = {
    "no filter": ({"Filter": {}}, Severity.DANGER, EVERYWHERE),
    "old prefix": ({"Prefix": f"{PREFIX}/acc"}, Severity.DANGER, ("seaweed",)),
    "old prefix elsewhere": ({"Prefix": "elsewhere/"}, None, ("seaweed",)),
    "inside of the folder": ({"Filter": {"Prefix": f"{ACCEPTED}agent=61/"}}, Severity.DANGER, EVERYWHERE),
    "above the prefix": ({"Filter": {"Prefix": "pr"}}, Severity.DANGER, EVERYWHERE),
    "tag": ({"Filter": {"Tag": TAG}}, Severity.WARNING, EVERYWHERE),
    "size above": ({"Filter": {"ObjectSizeGreaterThan": 500}}, Severity.DANGER, EVERYWHERE),
    "size below": ({"Filter": {"ObjectSizeLessThan": 50_000}}, Severity.DANGER, EVERYWHERE),
    "and": (
        {"Filter": {"And": {"Prefix": BLOBS, "ObjectSizeGreaterThan": 5, "ObjectSizeLessThan": 500}}},
        Severity.DANGER,
        EVERYWHERE,
    ),
    "and a tag": ({"Filter": {"And": {"Prefix": BLOBS, "Tags": [TAG]}}}, Severity.WARNING, EVERYWHERE),
    "and elsewhere": ({"Filter": {"And": {"Prefix": "x/", "Tags": [TAG]}}}, None, EVERYWHERE),
    "records": ({"Filter": {"Prefix": f"{PREFIX}/tokens/"}}, Severity.WARNING, EVERYWHERE),
    "queue": ({"Filter": {"Prefix": f"{PREFIX}/landing-queue/"}}, Severity.WARNING, EVERYWHERE),
    "probes": ({"Filter": {"Prefix": f"{PREFIX}/_probe/"}}, None, EVERYWHERE),
    "disabled": ({"Filter": {"Prefix": ""}, "Status": "Disabled"}, None, EVERYWHERE),
}


@pytest.mark.parametrize("server", SERVERS)
def test_a_rule_reaches_what_its_prefix_tags_and_sizes_let_it_reach(
    server: str, bucket_of: Callable[..., Bucket]
) -> None:
    bucket, planted = bucket_of(server), {name: case for name, case in LIMITS.items() if server in case[2]}

    bucket.set_rules({name: {**DAYS, **limit} for name, (limit, _, _) in planted.items()})
    assert bucket.rules_found() == {name: severity for name, (_, severity, _) in planted.items() if severity}
    abort = {"Filter": {"Prefix": ""}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}
    bucket.set_rules({"uploads": abort})
    assert bucket.found(Check.LIFECYCLE) == []


@pytest.mark.parametrize("server", SERVERS)
def test_versioning_is_told_as_it_is(server: str, bucket_of: Callable[..., Bucket]) -> None:
    bucket, found = bucket_of(server), []

    found.append(bucket.worst(Check.VERSIONING))
    for status in ("Enabled", "Suspended", "Enabled"):
        bucket.client.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": status})
        found.append(bucket.worst(Check.VERSIONING))
    assert found == [Severity.ADVICE, None, Severity.WARNING, None]
    assert bucket.worst(Check.OBJECT_LOCK) is Severity.ADVICE


@pytest.mark.parametrize("server", SERVERS)
def test_a_lock_of_everything_is_told_and_one_that_is_left_to_the_objects_is_not(
    server: str, bucket_of: Callable[..., Bucket]
) -> None:
    bucket = bucket_of(server, ObjectLockEnabledForBucket=True)

    assert bucket.found(Check.OBJECT_LOCK) == []
    lock = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 7}}}
    bucket.client.put_object_lock_configuration(Bucket=bucket.name, ObjectLockConfiguration=lock)
    [found] = bucket.found(Check.OBJECT_LOCK)
    assert found.severity is Severity.WARNING
    assert "7 days (GOVERNANCE)" in found.problem


def test_replication_is_told_where_it_reaches_the_authority(bucket_of: Callable[..., Bucket]) -> None:
    bucket, target = bucket_of("ministack"), bucket_of("ministack")
    for each in (bucket, target):
        each.client.put_bucket_versioning(Bucket=each.name, VersioningConfiguration={"Status": "Enabled"})

    def replicated(prefix: str, status: str = "Enabled") -> list[Finding]:
        rule = {"ID": "r", "Status": status, "Priority": 1, "DeleteMarkerReplication": {"Status": "Disabled"}}
        to = {"Filter": {"Prefix": prefix}, "Destination": {"Bucket": f"arn:aws:s3:::{target.name}"}}
        configuration = {"Role": "arn:aws:iam::123456789012:role/r", "Rules": [rule | to]}
        bucket.client.put_bucket_replication(Bucket=bucket.name, ReplicationConfiguration=configuration)
        return bucket.found(Check.REPLICATION)

    assert bucket.found(Check.REPLICATION) == []
    [found] = replicated(ACCEPTED)
    assert found.severity is Severity.WARNING
    assert f"replicated to {target.name}" in found.problem
    assert replicated("other/") == replicated("", "Disabled") == []
    assert len(replicated("")) == 1


@pytest.mark.parametrize("server", SERVERS)
def test_the_default_encryption_is_compared_with_the_one_that_is_wanted(
    server: str, bucket_of: Callable[..., Bucket]
) -> None:
    bucket = bucket_of(server)
    rules = [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
    bucket.client.put_bucket_encryption(Bucket=bucket.name, ServerSideEncryptionConfiguration={"Rules": rules})

    assert bucket.found(Check.ENCRYPTION) == bucket.found(Check.ENCRYPTION, encryption="AES256") == []
    assert bucket.worst(Check.ENCRYPTION, encryption="aws:kms") is Severity.WARNING


def test_the_printed_policy_has_no_findings_and_each_denial_that_it_loses_is_one(
    bucket_of: Callable[..., Bucket],
) -> None:
    bucket = replace(bucket_of("ministack"), is_aws=True)
    assert bucket.worst(Check.POLICY) is Severity.DANGER, "there is none"
    settings = BucketPolicySettings(bucket=bucket.name, prefix=PREFIX, principals=ARNS)
    statements: Any = bucket_policy(settings)["Statement"]
    bucket.set_policy(*statements)
    assert bucket.found(Check.POLICY) == []

    lost = {}
    for statement in statements:
        bucket.set_policy(*(each for each in statements if each != statement))
        if severity := bucket.worst(Check.POLICY):
            lost[statement["Sid"][:-6]] = severity
    assert lost == {
        "AppendOnlyIsCreated": Severity.DANGER,
        "AppendOnlyIsNotCopied": Severity.WARNING,
        "AppendOnlyIsNotDeleted": Severity.DANGER,
        "BlobsAreDeletedByGcAlone": Severity.DANGER,
        "BlobDeletesAreNotReplicated": Severity.ADVICE,
    }
    bucket.client.delete_bucket_policy(Bucket=bucket.name)
    assert "has no policy" in bucket.found(Check.POLICY)[0].problem


def test_a_server_that_passes_over_a_condition_is_not_said_to_refuse_anything(
    bucket_of: Callable[..., Bucket],
) -> None:
    """SeaweedFS takes this denial, which AWS's own pages have, and takes plain writes all the same."""
    bucket = bucket_of("seaweed")
    condition = {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}}
    objects = f"arn:aws:s3:::{bucket.name}/{ACCEPTED}*"
    create = {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": objects}
    deletes = {"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject*", "Resource": objects}
    bucket.set_policy(create | {"Condition": condition}, deletes)

    bucket.client.put_object(Bucket=bucket.name, Key=f"{ACCEPTED}x", Body=b"plain")
    with pytest.raises(bucket.client.exceptions.ClientError, match="AccessDenied"):
        bucket.client.delete_object(Bucket=bucket.name, Key=f"{ACCEPTED}x")
    dangers = [each.problem for each in bucket.found(Check.POLICY) if each.severity is Severity.DANGER]
    assert any("without If-None-Match" in each and ACCEPTED in each for each in dangers)
    assert not any("deletes" in each and ACCEPTED in each for each in dangers), "that is refused"
    many = {"Objects": [{"Key": f"{ACCEPTED}x"}]}
    assert "Deleted" in bucket.client.delete_objects(Bucket=bucket.name, Delete=many), "but not in this way"
    anybody = {"Condition": {"Null": {"s3:if-none-match": "true"}}}
    bucket.set_policy(create | anybody, deletes, deletes | {"Resource": f"arn:aws:s3:::{bucket.name}/{BLOBS}*"})
    severities = {each.severity for each in bucket.found(Check.POLICY)}
    assert (Severity.DANGER in severities, Severity.UNKNOWN in severities) == (False, True), "its word is not taken"


@async_test
async def test_a_lock_keeps_a_version_and_does_not_keep_its_identity_closed(
    bucket_of: Callable[..., Bucket],
) -> None:
    bucket = bucket_of("seaweed", ObjectLockEnabledForBucket=True)
    lock = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}}
    bucket.client.put_object_lock_configuration(Bucket=bucket.name, ObjectLockConfiguration=lock)
    store, key = open_store(f"s3://{bucket.name}/{PREFIX}", bucket.settings), "accepted/v1/x.json"
    assert isinstance(await store.create(key, b"first"), Created)
    assert isinstance(await store.create(key, b"second"), Exists)

    [version] = bucket.client.list_object_versions(Bucket=bucket.name)["Versions"]
    with pytest.raises(bucket.client.exceptions.ClientError, match="AccessDenied"):
        bucket.client.delete_object(Bucket=bucket.name, Key=version["Key"], VersionId=version["VersionId"])
    await store.delete(key)
    assert isinstance(await store.create(key, b"second"), Created), "a delete marker has freed the key"


def test_a_setting_that_may_not_be_read_is_unknown(bucket_of: Callable[..., Bucket]) -> None:
    bucket = bucket_of("seaweed")
    bucket.set_rules({"all": {"Filter": {"Prefix": ""}, **DAYS}})
    denied = {"Effect": "Deny", "Principal": "*", "Resource": f"arn:aws:s3:::{bucket.name}"}
    bucket.set_policy(denied | {"Action": "s3:GetLifecycleConfiguration"})

    [found] = bucket.found(Check.LIFECYCLE)
    assert found.severity is Severity.UNKNOWN
    assert "403 AccessDenied" in found.problem
    assert "Allow s3:GetLifecycleConfiguration" in found.advice


def test_a_bucket_or_a_server_that_is_not_there_is_unknown_throughout(bucket_of: Callable[..., Bucket]) -> None:
    bucket, [port] = bucket_of("ministack"), free_ports(1)
    away = replace(bucket.settings, endpoint=f"http://127.0.0.1:{port}")

    for name, settings in ((f"absent-{uuid4().hex}", bucket.settings), (bucket.name, away)):
        check = bucket_check(f"s3://{name}/{PREFIX}", settings, encryption="AES256")
        assert check is not None
        assert [(each.check, each.severity) for each in check()] == [(each, Severity.UNKNOWN) for each in Check]
