"""The bucket policy, asked about every role, folder, operation and header that matters."""

import json
from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest

from lakehead.accept.bucket_policy import MAX_BYTES, QUEUE, BucketPolicySettings, bucket_policy, placeholder
from lakehead.accept.bucket_roles import ALL_FOLDERS, ROLE_ACCESS, BucketRole
from lakehead.errors import Misconfigured
from lakehead.run.config.gateway_config import GatewayConfig
from lakehead.storage import probe
from lakehead.wire import acceptance_keys, chunk_keys
from tests.unit.accept.policy_evaluator import SSE, S3Request, is_allowed

BUCKET = "lake"
KEY = "arn:aws:kms:eu-central-1:123456789012:key/11111111-2222-3333-4444-555555555555"
ARNS = {role: f"arn:aws:iam::123456789012:role/lakehead/{role}" for role in BucketRole}
ADMIN = "arn:aws:iam::123456789012:user/admin"
CREATE, REPLACE = {"If-None-Match": "*"}, {"If-Match": '"etag"'}
HEADERS: Mapping[str, Mapping[str, str]] = {"plain": {}, "create": CREATE, "replace": REPLACE}

# r: reads. c: creates by If-None-Match. w: also replaces by If-Match. d: deletes, versions too.
EXPECTED = """
                            gateway  gc    reconciler  reader
raw-blobs/v1                rw       rd    r           r
raw-blobs-by-time/v1        rc       r     rc          r
accepted/v1                 rc       rc    r           r
accepted-by-time/v1         rc       r     rc          r
accepted-by-blob/v1         rc       r     rc          r
quarantine/v1               rc       rc    rc          r
quarantine-by-blob/v1       rc       rc    rc          r
quarantined-identities/v1   rw       r     r           r
resolutions/v1              rw       r     r           r
repairs/v1                  rw       r     rw          r
retired/v1                  r        rc    r           r
discarded/v1                r        r     r           r
audit/v1                    rc       rc    rc          r
authority/v1                rw       r     r           r
tokens/v1                   r        -     -           -
reconciler/v1               r        r     rw          r
voiding/v1                  r        rc    r           r
manifests/v1                r        r     r           r
rollup/v1                   r        r     r           r
index/v1                    r        r     r           r
_probe                      rwd      rwd   rwd         r
landing-queue               rw       -     rw          -
tables/v1                   -        -     -           -
"""
COLUMNS, *ROWS = (line.split() for line in EXPECTED.strip().splitlines())
LETTERS = {
    (folder, BucketRole(role)): letters for folder, *row in ROWS for role, letters in zip(COLUMNS, row, strict=True)
}
FOLDERS = tuple(folder for folder, *_ in ROWS)
ELSEWHERE = "tables/v1"


def policy_for(**changed: Any) -> dict[str, Any]:
    settings = {"bucket": BUCKET, "principals": ARNS} | changed
    return bucket_policy(BucketPolicySettings(**settings))


def arn_of(folder: str, prefix: str = "") -> str:
    return f"arn:aws:s3:::{BUCKET}/{f'{prefix}/' if prefix else ''}{folder}/some/key.json"


def expected(role: BucketRole, folder: str, operation: str, headers: str, *, strict_blobs: bool) -> bool:
    """The rules in other words than the policy's: what the letters of a role say of one request."""
    letters = LETTERS[folder, role]
    writes = "c" in letters or "w" in letters
    match operation:
        case "GetObject":
            return "r" in letters
        case "DeleteObject" | "DeleteObjectVersion":
            return "d" in letters
        case "AbortMultipartUpload" | "CreateMultipartUpload" | "UploadPart":
            return writes
        case "PutObject" | "CompleteMultipartUpload" if headers == "create":
            return writes
        case "PutObject" | "CompleteMultipartUpload" if headers == "replace":
            return "w" in letters and not (strict_blobs and folder == "raw-blobs/v1")
        case _:
            return False


OBJECT_OPERATIONS = (
    "GetObject",
    "GetObjectVersion",
    "PutObject",
    "CopyObject",
    "CreateMultipartUpload",
    "UploadPart",
    "UploadPartCopy",
    "CompleteMultipartUpload",
    "AbortMultipartUpload",
    "DeleteObject",
    "DeleteObjectVersion",
    "ReplicateObject",
    "ReplicateDelete",
)


@pytest.mark.slow
@pytest.mark.parametrize("strict_blobs", [False, True])
@pytest.mark.parametrize("prefix", ["", "metrics/prod"])
def test_every_role_may_do_what_the_table_says_and_nothing_else(prefix: str, *, strict_blobs: bool) -> None:
    policy = policy_for(prefix=prefix, blobs_by_create_only=strict_blobs)
    wrong = []

    for role, folder, operation, headers in product(BucketRole, FOLDERS, OBJECT_OPERATIONS, HEADERS):
        request = S3Request(ARNS[role], operation, arn_of(folder, prefix), HEADERS[headers])
        if is_allowed(policy, request) != expected(role, folder, operation, headers, strict_blobs=strict_blobs):
            wrong.append((role, folder, operation, headers))

    assert wrong == []


@pytest.mark.parametrize("prefix", ["", "metrics/prod"])
def test_a_role_that_another_policy_allows_everything_writes_and_deletes_no_more(prefix: str) -> None:
    policy = policy_for(prefix=prefix)
    writing = [each for each in OBJECT_OPERATIONS if each.startswith(("Put", "Copy", "Complete", "Upload", "Delete"))]
    wrong = []

    for role, folder, operation, headers in product(BucketRole, FOLDERS, writing, HEADERS):
        request = S3Request(ARNS[role], operation, arn_of(folder, prefix), HEADERS[headers])
        allowed = is_allowed(policy, request, by_identity=True)
        if allowed != expected(role, folder, operation, headers, strict_blobs=False):
            wrong.append((role, folder, operation, headers))

    assert wrong == []


@pytest.mark.parametrize("role", [BucketRole.GC, BucketRole.RECONCILER, BucketRole.READER])
def test_tokens_are_read_by_gateways_alone(role: BucketRole) -> None:
    for operation in ("GetObject", "GetObjectVersion"):
        request = S3Request(ARNS[role], operation, arn_of("tokens/v1"))
        assert not is_allowed(policy_for(), request, by_identity=True)


@pytest.mark.parametrize("folder", ["accepted/v1", "audit/v1"])
def test_an_administrator_cannot_change_what_is_append_only(folder: str) -> None:
    policy = policy_for()

    def may(operation: str, headers: Mapping[str, str] = {}) -> bool:
        return is_allowed(policy, S3Request(ADMIN, operation, arn_of(folder), headers), by_identity=True)

    assert may("PutObject", CREATE)
    assert may("CompleteMultipartUpload", CREATE)
    assert may("CreateMultipartUpload")
    assert may("UploadPart")
    assert may("GetObject")
    for operation, name in product(("PutObject", "CompleteMultipartUpload"), ("plain", "replace")):
        assert not may(operation, HEADERS[name]), (operation, name)
    for operation, name in product(("CopyObject", "UploadPartCopy"), HEADERS):
        assert not may(operation, HEADERS[name]), (operation, name)
    for operation in ("DeleteObject", "DeleteObjectVersion", "ReplicateObject", "ReplicateDelete"):
        assert not may(operation), operation


@pytest.mark.parametrize("named", [[BucketRole.GATEWAY], list(BucketRole)])
@pytest.mark.parametrize("operation", ["DeleteObject", "DeleteObjectVersion"])
def test_raw_blobs_are_deleted_by_gc_alone_and_by_nobody_while_it_is_not_named(
    named: list[BucketRole], operation: str
) -> None:
    policy = policy_for(principals={role: ARNS[role] for role in named})
    deleting = {
        arn
        for arn in (*ARNS.values(), ADMIN)
        if is_allowed(policy, S3Request(arn, operation, arn_of("raw-blobs/v1")), by_identity=True)
    }

    assert deleting == ({ARNS[BucketRole.GC]} if BucketRole.GC in named else set())


def test_raw_blobs_may_be_written_without_a_condition_unless_it_is_required() -> None:
    plain = S3Request(ADMIN, "PutObject", arn_of("raw-blobs/v1"))
    part = S3Request(ADMIN, "UploadPart", arn_of("raw-blobs/v1"))

    assert is_allowed(policy_for(), plain, by_identity=True)
    assert not is_allowed(policy_for(blobs_by_create_only=True), plain, by_identity=True)
    assert is_allowed(policy_for(blobs_by_create_only=True), part, by_identity=True)


def test_others_are_left_alone_outside_of_the_authority() -> None:
    for operation in ("PutObject", "CopyObject", "DeleteObject", "DeleteObjectVersion", "GetObject"):
        for folder, prefix in ((ELSEWHERE, ""), ("accepted/v1", "another-authority")):
            request = S3Request(ADMIN, operation, arn_of(folder, prefix))
            assert is_allowed(policy_for(), request, by_identity=True), (operation, folder)
            assert not is_allowed(policy_for(), request), "nobody is allowed anything by it"


@pytest.mark.parametrize("role", BucketRole)
def test_a_role_lists_the_bucket_and_reads_its_settings_and_changes_neither(role: BucketRole) -> None:
    def may(operation: str) -> bool:
        return is_allowed(policy_for(), S3Request(ARNS[role], operation, f"arn:aws:s3:::{BUCKET}"))

    assert may("ListObjectsV2")
    assert may("GetBucketVersioning")
    assert may("GetBucketLifecycleConfiguration")
    assert not may("PutBucketLifecycleConfiguration")
    assert not may("PutBucketPolicy")


@pytest.mark.parametrize("prefix", ["", "metrics/prod"])
@pytest.mark.parametrize(
    ("encryption", "headers", "taken"),
    [
        ("AES256", {}, True),
        ("AES256", {SSE: "AES256"}, True),
        ("AES256", {SSE: "aws:kms"}, False),
        ("aws:kms", {}, True),
        ("aws:kms", {SSE: "AES256"}, False),
        ("aws:kms", {SSE: "aws:kms:dsse"}, False),
        ("aws:kms", {SSE: "aws:kms"}, False),
        ("aws:kms", {SSE: "aws:kms", f"{SSE}-aws-kms-key-id": KEY}, True),
        ("aws:kms", {SSE: "aws:kms", f"{SSE}-aws-kms-key-id": KEY.replace("1111", "9999")}, False),
        ("aws:kms", {f"{SSE}-customer-algorithm": "AES256"}, False),
        (None, {SSE: "aws:kms"}, True),
        (None, {f"{SSE}-customer-algorithm": "AES256"}, True),
    ],
)
def test_encryption_is_as_required(
    prefix: str, encryption: str | None, headers: Mapping[str, str], *, taken: bool
) -> None:
    policy = policy_for(prefix=prefix, encryption=encryption, kms_key=KEY if encryption == "aws:kms" else "")

    for folder in ALL_FOLDERS:
        request = S3Request(ADMIN, "PutObject", arn_of(folder, prefix), {**CREATE, **headers})
        assert is_allowed(policy, request, by_identity=True) == taken, folder
    outside = S3Request(ADMIN, "PutObject", arn_of(ELSEWHERE), headers)
    assert is_allowed(policy, outside, by_identity=True) == (taken or bool(prefix)), "below the prefix, or everywhere"


def test_every_folder_of_the_layout_has_its_line() -> None:
    folders = [
        value
        for module in (acceptance_keys, chunk_keys)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str) and not name.startswith("_")
    ]

    assert {"/".join(folder.split("/")[:2]) for folder in folders} | {probe.FOLDER} == set(ALL_FOLDERS)
    assert {*FOLDERS} == {*ALL_FOLDERS, QUEUE, ELSEWHERE}


def test_the_queue_is_where_gateways_have_it() -> None:
    assert GatewayConfig.model_fields["queue_path"].default == QUEUE


def test_no_role_changes_what_another_only_creates() -> None:
    created = {folder for access in ROLE_ACCESS.values() for folder in access.creates}
    changed = {folder for access in ROLE_ACCESS.values() for folder in access.changes}

    assert not created & changed


def test_a_policy_with_long_names_fits_into_what_s3_takes_and_a_larger_one_is_refused() -> None:
    long_names = {role: f"arn:aws:iam::123456789012:role/{'r' * 64}-{role}" for role in BucketRole}
    largest = policy_for(
        bucket="b" * 40,
        prefix="p" * 24,
        principals=long_names,
        encryption="aws:kms",
        kms_key=KEY,
        blobs_by_create_only=True,
    )

    assert len(json.dumps(largest, separators=(",", ":"))) <= MAX_BYTES
    with pytest.raises(Misconfigured, match="bytes, and S3 takes 20,480"):
        policy_for(prefix="p" * 500)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bucket": "s3://lake"}, "name of a bucket"),
        ({"bucket": "lake*"}, "name of a bucket"),
        ({"prefix": "a*"}, "cannot stand in a policy"),
        ({"prefix": "${aws:username}"}, "cannot stand in a policy"),
        ({"prefix": "/a/"}, "cannot stand in a policy"),
        ({"queue": "a?"}, "cannot stand in a policy"),
        ({"queue": "accepted"}, "contain each other"),
        ({"queue": ""}, "cannot stand in a policy"),
        ({"queue": "raw-blobs/v1/queue"}, "contain each other"),
        ({"principals": {}}, "No role is named"),
        ({"principals": {BucketRole.GC: "*"}}, "not the ARN"),
        ({"principals": {BucketRole.GC: "arn:aws:iam::123456789012:role/*"}}, "not the ARN"),
        ({"principals": {BucketRole.GC: ADMIN, BucketRole.READER: ADMIN}}, "two roles"),
        ({"principals": {BucketRole.GC: ADMIN, BucketRole.READER: ADMIN.replace("aws", "aws-cn")}}, "partitions"),
        ({"kms_key": KEY}, "Give both"),
        ({"kms_key": "alias/x", "encryption": "aws:kms"}, "not the ARN of a key"),
    ],
)
def test_what_would_mean_something_else_in_a_policy_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        policy_for(**changed)


def test_the_partition_of_the_roles_is_that_of_the_bucket() -> None:
    policy = policy_for(principals={BucketRole.GC: "arn:aws-cn:iam::123456789012:role/gc"})

    assert '"arn:aws-cn:s3:::lake/accepted/v1/*"' in json.dumps(policy)
    assert "arn:aws:s3" not in json.dumps(policy)


def test_a_role_that_is_not_known_yet_is_one_that_s3_refuses() -> None:
    assert placeholder(BucketRole.GC) == "arn:aws:iam::ACCOUNT-ID:role/lakehead-gc"
    assert policy_for(principals={BucketRole.GC: placeholder(BucketRole.GC)})
