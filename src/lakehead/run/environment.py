"""Reads environment variables into settings. The only module that reads the environment."""

import os
from collections.abc import Mapping
from pathlib import Path

from platformdirs import user_cache_path

from lakehead.errors import Misconfigured
from lakehead.spark.settings import CENTRAL, SparkSettings
from lakehead.storage.connect import StoreSettings

ENVIRONMENT: Mapping[str, str] = os.environ
"""The environment, in which references of a configuration are looked up."""

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
"""Iceberg's properties for the variables of the AWS tools."""

APP = "lakehead"
REFERENCE = "env:"
ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("STORAGE_EMULATOR_HOST",),
    "az": ("AZURE_STORAGE_ENDPOINT",),
}
"""The variables with the endpoint of each kind of store, the first that is set. obstore reads all of S3's by itself."""


def store_settings(url: str, environment: Mapping[str, str] = ENVIRONMENT) -> StoreSettings:
    """Return the settings for a store, from the variables that the cloud's own tools use."""
    scheme = url.partition("://")[0]
    return StoreSettings(
        endpoint=next((environment[name] for name in ENDPOINTS.get(scheme, ()) if environment.get(name)), ""),
        region=environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "",
        credentials={
            setting: environment[variable]
            for variable, setting in CREDENTIALS.get(scheme, {}).items()
            if environment.get(variable)
        },
    )


def state_password(environment: Mapping[str, str] = ENVIRONMENT) -> str | None:
    """Return the password of the state, for a URL without one."""
    return environment.get("LAKEHEAD_STATE_PASSWORD") or None


def gateway_token(environment: Mapping[str, str] = ENVIRONMENT) -> str | None:
    """Return the token for a gateway, for a command without a file that has it."""
    return environment.get("LAKEHEAD_TOKEN") or None


def catalog_properties(given: Mapping[str, str], environment: Mapping[str, str] = ENVIRONMENT) -> dict[str, str]:
    """Return a catalog's properties with every `env:NAME` replaced by that variable.

    For a warehouse on S3, missing endpoint, region and keys are taken from the variables of the AWS tools. Raises
    `Misconfigured` for a variable that is not set.
    """
    properties = {}
    for key, value in given.items():
        variable = value.removeprefix(REFERENCE)
        if is_reference(value) and variable not in environment:
            raise Misconfigured(
                f"The catalog property {key} refers to the environment variable {variable}, which is not set. Set it."
            )
        properties[key] = environment[variable] if is_reference(value) else value
    if properties.get("warehouse", "").partition("://")[0] in ("s3", "s3a"):
        properties.setdefault("io-impl", "org.apache.iceberg.aws.s3.S3FileIO")
        for variable, key in S3_PROPERTIES.items():
            if environment.get(variable):
                properties.setdefault(key, environment[variable])
    return properties


def is_reference(value: str) -> bool:
    """Whether a property has the form `env:NAME`."""
    return value.startswith(REFERENCE)


def without_archive(environment: Mapping[str, str] = ENVIRONMENT) -> dict[str, str]:
    """Return the environment for a command that creates no class-data archive. It still uses an existing one."""
    return {**environment, "LAKEHEAD_ARCHIVE": "no"}


def spark_settings(environment: Mapping[str, str] = ENVIRONMENT) -> SparkSettings:
    """Return the Spark settings: Java, where jars come from and are cached, whether to create a class-data archive."""
    cache, xdg_caches = environment.get("LAKEHEAD_CACHE"), environment.get("XDG_CACHE_HOME")
    jars = environment.get("LAKEHEAD_JARS")
    java_home = environment.get("JAVA_HOME")
    repositories = environment.get("LAKEHEAD_REPOSITORIES", CENTRAL)
    archive = environment.get("LAKEHEAD_ARCHIVE") or "yes"
    if archive not in ("yes", "no"):
        raise Misconfigured(
            f"The environment variable LAKEHEAD_ARCHIVE is {archive!r}. Set it to yes or no; the default is yes."
        )
    return SparkSettings(
        java_home=Path(java_home) if java_home else None,
        path=environment.get("PATH", ""),
        jar_folder=Path(jars) if jars else None,
        cache_folder=Path(cache)
        if cache
        else Path(xdg_caches, APP).expanduser()
        if xdg_caches
        else user_cache_path(APP),
        repositories=tuple(url.strip() for url in repositories.split(",") if url.strip()),
        class_data_archive=archive == "yes",
    )
