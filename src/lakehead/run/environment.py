"""What the environment says: read here, and handed on as settings."""

import os
from collections.abc import Mapping
from pathlib import Path

from lakehead.errors import Misconfigured
from lakehead.spark.settings import CENTRAL, SparkSettings
from lakehead.storage.connect import StoreSettings

ENVIRONMENT: Mapping[str, str] = os.environ
"""For whoever looks up what a configuration refers to."""

CREDENTIALS = {
    "s3": {
        "AWS_ACCESS_KEY_ID": "access_key_id",
        "AWS_SECRET_ACCESS_KEY": "secret_access_key",
        "AWS_SESSION_TOKEN": "session_token",
    },
    "gs": {"GOOGLE_APPLICATION_CREDENTIALS": "service_account"},
    "az": {"AZURE_STORAGE_ACCOUNT_NAME": "account_name", "AZURE_STORAGE_ACCOUNT_KEY": "account_key"},
}
S3_PROPERTIES = {
    "AWS_ENDPOINT_URL": "s3.endpoint",
    "AWS_ACCESS_KEY_ID": "s3.access-key-id",
    "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
    "AWS_SESSION_TOKEN": "s3.session-token",
    "AWS_REGION": "client.region",
}
"""Iceberg's names for what the cloud's tools read."""

REFERENCE = "env:"
ENDPOINT = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_ENDPOINT"}


def store_settings(url: str, environment: Mapping[str, str] = ENVIRONMENT) -> StoreSettings:
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


def state_password(environment: Mapping[str, str] = ENVIRONMENT) -> str | None:
    """The password of the state's user, for a URL that has none."""
    return environment.get("LAKEHEAD_STATE_PASSWORD") or None


def catalog_properties(given: Mapping[str, str], environment: Mapping[str, str] = ENVIRONMENT) -> dict[str, str]:
    """A catalog's properties as they were given: `env:NAME` is the variable of that name, so that no secret is typed.

    For a warehouse on S3, endpoint, region and keys that were not given come from the variables of the cloud's tools.
    """
    properties = {}
    for key, value in given.items():
        variable = value.removeprefix(REFERENCE)
        if is_reference(value) and variable not in environment:
            raise Misconfigured(
                f"The catalog property {key} is to come from the variable {variable}, which is not set."
            )
        properties[key] = environment[variable] if is_reference(value) else value
    if properties.get("warehouse", "").partition("://")[0] in ("s3", "s3a"):
        properties.setdefault("io-impl", "org.apache.iceberg.aws.s3.S3FileIO")
        for variable, key in S3_PROPERTIES.items():
            if environment.get(variable):
                properties.setdefault(key, environment[variable])
    return properties


def is_reference(value: str) -> bool:
    """Whether a catalog's property names the variable that it comes from."""
    return value.startswith(REFERENCE)


def without_archive(environment: Mapping[str, str] = ENVIRONMENT) -> dict[str, str]:
    """The environment for a command that makes no class-data archive. It uses one that is there."""
    return {**environment, "LAKEHEAD_ARCHIVE": "no"}


def spark_settings(environment: Mapping[str, str] = ENVIRONMENT) -> SparkSettings:
    """Settings for Spark: which Java, where jars are fetched from, kept, or lie already, whether an archive is made."""
    caches = Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    jars = environment.get("LAKEHEAD_JARS")
    java_home = environment.get("JAVA_HOME")
    repositories = environment.get("LAKEHEAD_REPOSITORIES", CENTRAL)
    archive = environment.get("LAKEHEAD_ARCHIVE") or "yes"
    if archive not in ("yes", "no"):
        raise Misconfigured(f"The variable LAKEHEAD_ARCHIVE is {archive!r}. Set it to yes or no; unset, it is yes.")
    return SparkSettings(
        java_home=Path(java_home) if java_home else None,
        path=environment.get("PATH", ""),
        jar_folder=Path(jars) if jars else None,
        cache_folder=Path(environment.get("LAKEHEAD_CACHE") or caches / "lakehead"),
        repositories=tuple(url.strip() for url in repositories.split(",") if url.strip()),
        class_data_archive=archive == "yes",
    )
