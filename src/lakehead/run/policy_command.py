"""`lakehead policy`: print the bucket policy that protects an acceptance authority."""

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.errors import Misconfigured

if TYPE_CHECKING:
    from lakehead.accept.bucket_roles import BucketRole

app = typer.Typer(no_args_is_help=True, help="Print the bucket policy that protects accepted batches.")


class SseOption(StrEnum):
    """A server-side encryption."""

    AES256 = "AES256"
    KMS = "aws:kms"
    DSSE = "aws:kms:dsse"


@app.callback()
def policy() -> None:
    """Print the S3 bucket policy that protects accepted batches from mistakes. Nothing is changed."""


@app.command("print")
def print_(
    *,
    role: Annotated[
        list[str],
        typer.Option(
            metavar="ROLE[=ARN]",
            help="gateway, gc, reconciler or reader, and the ARN of its IAM role. Name all that use the bucket.",
        ),
    ],
    bucket: Annotated[str, typer.Option(metavar="NAME", help="The name of the bucket.")],
    prefix: Annotated[str, typer.Option(metavar="PREFIX", help="The authority's prefix in the bucket.")] = "",
    queue: Annotated[
        str, typer.Option(metavar="FOLDER", help="The queue_path of the gateways' configuration.")
    ] = "landing-queue",
    require_sse: Annotated[
        SseOption | None, typer.Option(help="Refuse writes that ask for another encryption.")
    ] = None,
    kms_key: Annotated[str, typer.Option(metavar="ARN", help="Refuse writes that ask for another key.")] = "",
    require_blob_if_none_match: Annotated[
        bool, typer.Option("--require-blob-if-none-match", help="Raw blobs cannot be replaced either.")
    ] = False,
) -> None:
    """Print one S3 bucket policy for all roles that are named, as JSON.

    A bucket has one policy: name every role that uses it, with the ARN of its IAM role. Without an ARN the policy has
    ACCOUNT-ID in its place, and S3 refuses it until that is replaced. If the bucket has a policy, add the statements to
    it. What each is for: docs/bucket-policy.md.

    Example: lakehead policy print --bucket lake --role gateway --role gc --role reconciler --role reader
    """
    from lakehead.accept.bucket_policy import (  # noqa: PLC0415 - other commands need not load it
        ACCOUNT,
        BucketPolicySettings,
        bucket_policy,
    )

    principals = _principals(role)
    settings = BucketPolicySettings(
        bucket=bucket,
        principals=principals,
        prefix=prefix,
        queue=queue,
        encryption=None if require_sse is None else require_sse.value,
        kms_key=kms_key,
        blobs_by_create_only=require_blob_if_none_match,
    )
    typer.echo(json.dumps(bucket_policy(settings), indent=2))
    if any(ACCOUNT in arn for arn in principals.values()):
        typer.echo(f"Replace {ACCOUNT}, and the names of the roles if they are others.", err=True)


def _principals(given: list[str]) -> "dict[BucketRole, str]":
    from lakehead.accept.bucket_policy import placeholder  # noqa: PLC0415 - see `print_`
    from lakehead.accept.bucket_roles import BucketRole  # noqa: PLC0415 - see `print_`

    principals: dict[BucketRole, str] = {}
    for each in given:
        name, _, arn = each.partition("=")
        if name not in set(BucketRole):
            raise Misconfigured(f"There is no role {name!r}. Roles are {', '.join(BucketRole)}.")
        role = BucketRole(name)
        if role in principals:
            raise Misconfigured(f"The role {role} is named twice. Name each once.")
        principals[role] = arn or placeholder(role)
    return principals
