"""What the environment says: read here, and handed on as settings."""

import os
from collections.abc import Mapping

from lakehead.storage.connect import StoreSettings

CREDENTIALS = {
    "s3": {
        "AWS_ACCESS_KEY_ID": "access_key_id",
        "AWS_SECRET_ACCESS_KEY": "secret_access_key",
        "AWS_SESSION_TOKEN": "session_token",
    },
    "gs": {"GOOGLE_APPLICATION_CREDENTIALS": "service_account"},
    "az": {"AZURE_STORAGE_ACCOUNT_NAME": "account_name", "AZURE_STORAGE_ACCOUNT_KEY": "account_key"},
}
ENDPOINT = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_ENDPOINT"}


def store_settings(url: str, environment: Mapping[str, str] = os.environ) -> StoreSettings:
    """Settings for the store of a URL, from the variables that the cloud's own tools read."""
    scheme = url.partition("://")[0]
    return StoreSettings(
        endpoint=environment.get(ENDPOINT.get(scheme, ""), ""),
        region=environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "",
        credentials={
            setting: environment[variable]
            for variable, setting in CREDENTIALS.get(scheme, {}).items()
            if environment.get(variable)
        },
    )
