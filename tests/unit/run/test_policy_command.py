"""`lakehead policy print`: one JSON document, or one sentence."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lakehead.accept.bucket_policy import BucketPolicySettings, bucket_policy
from lakehead.accept.bucket_roles import BucketRole
from tests.unit.run.queue_support import Done

Lakehead = Callable[..., Done]
LAKEHEAD = Path(sys.executable).with_name("lakehead")
GATEWAY, GC = "arn:aws:iam::123456789012:role/gateway", "arn:aws:iam::123456789012:role/gc"
KEY = "arn:aws:kms:eu-central-1:123456789012:key/11111111-2222-3333-4444-555555555555"


def test_the_policy_of_the_roles_that_are_named_is_printed(lakehead: Lakehead) -> None:
    done = lakehead(
        *(
            "policy",
            "print",
            "--bucket",
            "lake",
            "--prefix",
            "prod",
            "--role",
            f"gateway={GATEWAY}",
            "--role",
            f"gc={GC}",
        ),
        *("--queue", "to-land", "--require-sse", "aws:kms", "--kms-key", KEY, "--require-blob-if-none-match"),
    )

    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == bucket_policy(
        BucketPolicySettings(
            bucket="lake",
            prefix="prod",
            principals={BucketRole.GATEWAY: GATEWAY, BucketRole.GC: GC},
            queue="to-land",
            encryption="aws:kms",
            kms_key=KEY,
            blobs_by_create_only=True,
        )
    )


@pytest.mark.parametrize("role", ["gateway", "gc", "reconciler", "reader"])
def test_a_role_without_an_arn_has_a_place_to_fill_in(lakehead: Lakehead, role: str) -> None:
    done = lakehead("policy", "print", "--bucket", "lake", "--role", role)

    assert done.code == 0
    assert f'"arn:aws:iam::ACCOUNT-ID:role/lakehead-{role}"' in done.out
    assert done.err == "Replace ACCOUNT-ID, and the names of the roles if they are others.\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--role", "admin"), "There is no role 'admin'. Roles are gateway, gc, reconciler, reader."),
        (("--role", "gc", "--role", "gc"), "The role gc is named twice."),
        (("--role", "gc=me"), "'me' for gc is not the ARN"),
        (("--role", "gc", "--prefix", "*"), "The prefix '*' cannot stand in a policy."),
    ],
)
def test_what_is_wrong_is_one_sentence(lakehead: Lakehead, words: tuple[str, ...], message: str) -> None:
    done = lakehead("policy", "print", "--bucket", "lake", *words)

    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_the_command_as_people_start_it_prints_nothing_but_json() -> None:
    done = subprocess.run(
        [LAKEHEAD, "policy", "print", "--bucket", "lake", "--role", f"gc={GC}"],
        env={"PATH": "", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["Version"] == "2012-10-17"
