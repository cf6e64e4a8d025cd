"""Clients of the clouds' object stores, from settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from lakehead.errors import Misconfigured
from lakehead.storage.backoff import Backoff

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

Client = S3Store | GCSStore | AzureStore


class Bucket(NamedTuple):
    """Where a store's objects lie."""

    scheme: str
    name: str
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How to reach a store. What is left empty is looked for where the cloud's tools look, as in a role."""

    endpoint: str = ""
    """Address of a server other than the cloud's own, such as `http://127.0.0.1:8333`. The URL may name it too.
    Azure's emulator wants its account in it: `http://127.0.0.1:10000/devstoreaccount1`."""

    region: str = ""
    """Region of the bucket (S3). The URL may name it too."""

    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Secrets, by obstore's names: `access_key_id`, `secret_access_key` and `session_token` for S3,
    `service_account` (a file) or `service_account_key` for GCS, `account_name` and `account_key` for Azure."""

    request_timeout: float = 60.0
    """Seconds that one request may take, its body included."""

    connect_timeout: float = 5.0
    """Seconds that connecting may take."""

    backoff: Backoff = field(default_factory=Backoff)
    """Tries of a request, and the pauses between them."""


def connect(bucket: Bucket, settings: StoreSettings, *, retries: int) -> Client:
    """A client for one bucket that tries each request that many times more. It sends nothing yet."""
    client: ClientConfig = {
        "timeout": timedelta(seconds=settings.request_timeout),
        "connect_timeout": timedelta(seconds=settings.connect_timeout),
        "allow_http": settings.endpoint.startswith("http://"),
    }
    retry: RetryConfig = {
        "max_retries": retries,
        "backoff": {
            "init_backoff": timedelta(seconds=settings.backoff.first_seconds),
            "max_backoff": timedelta(seconds=settings.backoff.cap_seconds),
            "base": 2,
        },
    }
    # Which names are known differs from cloud to cloud; obstore checks them and says which is not.
    config: dict[str, Any] = dict(settings.credentials)
    if settings.endpoint:
        config["base_url" if bucket.scheme == "gs" else "endpoint"] = settings.endpoint
    if settings.region and bucket.scheme == "s3":
        config["region"] = settings.region
    make: Callable[..., Client] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[bucket.scheme]
    try:
        return make(bucket.name, prefix=bucket.prefix or None, client_options=client, retry_config=retry, **config)
    except (BaseError, ValueError, TypeError) as error:
        gist = str(error).partition("\n")[0]
        raise Misconfigured(f"The store {bucket.scheme}://{bucket.name} cannot be set up: {gist}.") from error
