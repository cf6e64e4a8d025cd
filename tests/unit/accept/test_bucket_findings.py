"""What is said of a bucket's settings, by settings alone: what real servers cannot be made to answer."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lakehead.accept.bucket_findings import bucket_findings
from lakehead.accept.bucket_policy import BucketPolicySettings, bucket_policy
from lakehead.accept.bucket_roles import BucketRole
from lakehead.accept.bucket_settings import AuthorityPlace, BucketSettings, Check, Severity, Unread
from lakehead.accept.s3_bucket_settings import settings_of

PLACE = AuthorityPlace(bucket="lake", prefix="prod")
ARNS = {role: f"arn:aws:iam::123456789012:role/{role}" for role in BucketRole}
POLICY: Any = bucket_policy(BucketPolicySettings(bucket="lake", prefix="prod", principals=ARNS))
FOLDERS = {"accepted": "prod/accepted/v1/", "audit": "prod/audit/v1/", "blobs": "prod/raw-blobs/v1/"}
CREATE = {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}}


def settings(**changed: Any) -> BucketSettings:
    """Settings without a finding, but for those that are given."""
    good = {"versioning": "Enabled", "lifecycle": (), "object_lock": {"ObjectLockEnabled": "Enabled"}}
    return BucketSettings(**(good | {"policy": json.dumps(POLICY), "replication": None, "encryption": None} | changed))


def deny(action: str | list[str], resource: str = "arn:aws:s3:::lake/*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Deny", "Principal": "*", "Action": action, "Resource": resource, **more}


def dangers(*statements: Mapping[str, Any], place: AuthorityPlace = PLACE, partition: str = "aws") -> set[str]:
    """What everybody may do under a policy, as the folder and a word of the problem."""
    policy = json.dumps({"Statement": statements}).replace("arn:aws:s3", f"arn:{partition}:s3")
    found = bucket_findings(settings(policy=policy), place)
    return {
        f"{name} {'versions' if 'versions' in each.problem else 'deletes' if 'deletes' in each.problem else 'replaces'}"
        for each in found
        if each.severity is Severity.DANGER
        for name, folder in FOLDERS.items()
        if folder in each.problem
    }


ALL = {f"{folder} {what}" for folder in ("accepted", "blobs") for what in ("deletes", "versions")} | {
    "accepted replaces"
}
NO_DELETES = {"accepted replaces"}


def test_a_bucket_as_it_should_be_has_no_findings() -> None:
    assert bucket_findings(settings(), PLACE) == ()


@pytest.mark.parametrize("check", Check)
def test_what_was_not_read_is_unknown_and_never_silent(check: Check) -> None:
    place = AuthorityPlace(bucket="lake", prefix="prod", encryption="AES256")
    [unknown] = [
        each for each in bucket_findings(settings(**{check.value: Unread("why.")}), place) if each.check is check
    ]
    assert (unknown.severity, "could not be checked: why." in unknown.problem) == (Severity.UNKNOWN, True)


@pytest.mark.parametrize(
    ("statements", "may"),
    [
        ([], ALL),
        ([deny("s3:*")], set()),
        ([deny("S3:deleteobject*")], NO_DELETES),
        ([deny("s3:DeleteObject")], NO_DELETES | {"accepted versions", "blobs versions"}),
        (
            [deny("s3:DeleteObject*", "arn:aws:s3:::lake/prod/accepted/v1/*")],
            ALL - {"accepted deletes", "accepted versions"},
        ),
        ([deny("s3:DeleteObject*", "arn:aws:s3:::*/accepted/*")], ALL - {"accepted deletes", "accepted versions"}),
        ([deny("s3:DeleteObject*", "arn:aws:s3:::lake/????/*")], NO_DELETES),
        ([deny("s3:DeleteObject*", "arn:aws:s3:::lake/prod/accepted/v1/agent=*")], ALL),
        ([deny("s3:DeleteObject*", "arn:aws:s3:::lake/accepted/v1/*")], ALL),
        ([deny("s3:DeleteObject*", "arn:aws:s3:::lake/prod/accepted/v1/")], ALL),
        ([deny("s3:DeleteObject*", "arn:aws:s3:::other/*")], ALL),
        ([deny("s3:DeleteObject*", "arn:aws:s3:::lake/[p]rod/*")], ALL),
        ([deny("s3:DeleteObject*", Effect="Allow")], ALL),
        ([deny("s3:DeleteObject*", Principal={"AWS": "*"})], NO_DELETES),
        ([deny("s3:DeleteObject*", Principal={"AWS": ["arn:aws:iam::1:root", "*"]})], NO_DELETES),
        ([deny("s3:DeleteObject*", Principal={"AWS": "arn:aws:iam::123456789012:root"})], ALL),
        ([{**deny("s3:DeleteObject*"), "Principal": None, "NotPrincipal": {"AWS": "arn:aws:iam::1:root"}}], ALL),
        ([{**deny("s3:DeleteObject*"), "Resource": None, "NotResource": "arn:aws:s3:::lake/x/*"}], ALL),
        ([deny("s3:DeleteObject*", Condition={"Bool": {"aws:MultiFactorAuthPresent": "false"}})], ALL),
        (
            [deny("s3:DeleteObject*", Condition={"ArnNotEquals": {"aws:PrincipalArn": "arn:aws:iam::1:role/gc"}})],
            ALL - {"blobs deletes", "blobs versions"},
        ),
        ([deny("s3:DeleteObject*", Condition={"ArnNotLike": {"aws:PrincipalArn": "arn:aws:iam::*:role/*"}})], ALL),
        ([deny("s3:DeleteObject*", Condition={"StringNotEquals": {"aws:PrincipalArn": ["gc", "admin"]}})], ALL),
        ([deny("s3:PutObject", Condition=CREATE)], ALL - NO_DELETES),
        ([deny("s3:PutObject", Condition={"Null": {"S3:If-None-Match": ["true"]}})], ALL - NO_DELETES),
        ([deny("s3:PutObject", Condition={"Null": {"s3:if-match": "true"}})], ALL),
        ([deny("s3:PutObject", Condition={**CREATE, "StringEquals": {"aws:SourceVpc": "vpc-1"}})], ALL),
        ([deny("s3:PutObject", "arn:aws:s3:::lake/" + "*a" * 200 + "*", Condition=CREATE)], ALL),
    ],
)
def test_a_denial_counts_if_it_surely_holds_for_everybody(statements: list[Mapping[str, Any]], may: set[str]) -> None:
    assert dangers(*statements) == may


def test_a_denial_counts_in_every_partition_of_aws() -> None:
    assert dangers(deny("s3:*"), partition="aws-cn") == dangers(deny("s3:*"), partition="aws-us-gov") == set()


def test_a_server_that_is_not_that_of_aws_is_not_believed_to_obey() -> None:
    [found] = bucket_findings(settings(), AuthorityPlace(bucket="lake", prefix="prod", is_aws=False))

    assert (found.check, found.severity) == (Check.POLICY, Severity.UNKNOWN)


def test_without_versions_a_delete_is_told_to_be_final_and_with_them_to_leave_a_marker() -> None:
    for versioning, words in (("", "cannot be undone"), ("Enabled", "leaves a marker"), ("Suspended", "suspended")):
        found = bucket_findings(settings(policy=None, versioning=versioning), PLACE)
        assert any(words in each.problem for each in found if each.check is Check.POLICY), versioning


@pytest.mark.parametrize("policy", ["", "[]", "{}", '{"Statement": 1}', '{"Statement": [1]}', "null"])
def test_a_policy_that_is_not_understood_is_unknown(policy: str) -> None:
    [found] = bucket_findings(settings(policy=policy), PLACE)

    assert (found.check, found.severity) == (Check.POLICY, Severity.UNKNOWN)


def test_a_prefix_that_can_stand_in_no_policy_makes_it_unknown() -> None:
    place = AuthorityPlace(bucket="lake", prefix="a*b")

    for policy, severity in ((json.dumps(POLICY), Severity.UNKNOWN), (None, Severity.DANGER)):
        [found] = bucket_findings(settings(policy=policy), place)
        assert (found.check, found.severity) == (Check.POLICY, severity)


def test_a_rule_that_is_newer_than_lakehead_is_told() -> None:
    [found] = bucket_findings(settings(lifecycle=[{"Status": "Enabled", "Vaporise": {"Days": 1}}]), PLACE)

    assert (found.severity, "Vaporise" in found.problem) == (Severity.WARNING, True)


class Odd:
    """A client whose server answers every question in the same odd way."""

    def __init__(self, answer: Mapping[str, Any] | Exception) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        def ask(**_: str) -> Mapping[str, Any]:
            if isinstance(self._answer, Exception):
                raise self._answer
            return self._answer

        return ask


def client_error(status: int, code: str) -> Exception:
    error: Exception = ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Get")
    return error


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (client_error(501, "NotImplemented"), "does not implement"),
        (client_error(405, "MethodNotAllowed"), "does not implement"),
        (client_error(404, "404"), "by hand"),
        (client_error(404, "NoSuchKey"), "by hand"),
        (client_error(403, "AccessDenied"), "Allow s3:Get"),
        (client_error(500, "InternalError"), "by hand"),
        ({"Name": "lake", "Contents": []}, "may not implement"),
    ],
)
def test_an_answer_that_is_no_setting_is_unknown(answer: Mapping[str, Any] | Exception, advice: str) -> None:
    found = bucket_findings(settings_of("lake", Odd(answer)), PLACE)
    unknown = {each.check for each in found if each.severity is Severity.UNKNOWN and advice in each.advice}

    assert unknown >= {Check.LIFECYCLE, Check.OBJECT_LOCK, Check.POLICY, Check.REPLICATION}
    assert any(each.check is Check.VERSIONING for each in found), "a bucket that is not versioned is no silence either"
