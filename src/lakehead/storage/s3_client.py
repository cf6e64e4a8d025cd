"""A client of boto3, for the requests to S3 that obstore does not have. Every call blocks. Needs boto3, an extra."""

from typing import Any

from lakehead.errors import Misconfigured
from lakehead.storage.connect import StoreSettings


def open_s3_client(settings: StoreSettings, *, purpose: str, attempts: int) -> Any:
    """Make a client whose requests are tried so often. Nothing is sent yet.

    `purpose` is the beginning of a message: "Tags of objects". Raises `Misconfigured` if boto3 is missing, or if it
    cannot use the settings.
    """
    try:
        import boto3  # noqa: PLC0415 - an extra, not always installed
        from botocore.config import Config  # noqa: PLC0415 - as above
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise Misconfigured(f"{purpose} need {error.name}. Install lakehead[s3].") from error
    try:
        return boto3.session.Session().client(
            "s3",
            endpoint_url=settings.endpoint or None,
            region_name=settings.region or None,
            aws_access_key_id=settings.credentials.get("access_key_id"),
            aws_secret_access_key=settings.credentials.get("secret_access_key"),
            aws_session_token=settings.credentials.get("session_token"),
            config=Config(
                connect_timeout=settings.connect_timeout,
                read_timeout=settings.request_timeout,
                retries={"total_max_attempts": max(1, attempts), "mode": "standard"},
                s3={"addressing_style": "path" if settings.endpoint else "auto"},
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise Misconfigured(f"{purpose} need a client of S3 ({error}). Correct the settings of S3.") from error
