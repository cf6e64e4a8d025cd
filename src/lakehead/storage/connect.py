"""obstore clients for S3, GCS and Azure, made from settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from lakehead.errors import Misconfigured
from lakehead.retry import Backoff

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

Client = S3Store | GCSStore | AzureStore


class Bucket(NamedTuple):
    """The bucket or container of a store, and the prefix of its keys there."""

    scheme: str
    name: str
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How to connect to a store. Settings left empty are looked up as the cloud's own tools do, e.g. from a role."""

    endpoint: str = ""
    """Address of a server other than the cloud's own, such as `http://127.0.0.1:8333`. It may also be in the URL.
    Azurite's endpoint includes the account: `http://127.0.0.1:10000/devstoreaccount1`."""

    region: str = ""
    """Region of the bucket (S3). It may also be in the URL."""

    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Secrets, under obstore's names: `access_key_id`, `secret_access_key` and `session_token` for S3,
    `service_account` (a file) or `service_account_key` for GCS, `account_name` and `account_key` for Azure."""

    request_timeout: float = 60.0
    """Timeout of one request in seconds, including its body."""

    connect_timeout: float = 5.0
    """Timeout for connecting, in seconds."""

    backoff: Backoff = field(default_factory=Backoff)
    """How often a request is attempted, and the pauses between attempts."""


def connect(bucket: Bucket, settings: StoreSettings, *, retries: int) -> Client:
    """Make a client for one bucket, which retries each request up to `retries` times. Nothing is sent yet."""
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
    # Each cloud knows other names; obstore raises for an unknown one.
    config: dict[str, Any] = dict(settings.credentials)
    if settings.endpoint:
        # For S3 not `endpoint`: obstore reads the environment too, and AWS_ENDPOINT_URL_S3 would win over that.
        names = {"s3": "aws_endpoint_url_s3", "gs": "base_url", "az": "endpoint"}
        config[names[bucket.scheme]] = settings.endpoint
    if settings.region and bucket.scheme == "s3":
        config["region"] = settings.region
    make: Callable[..., Client] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[bucket.scheme]
    try:
        return make(bucket.name, prefix=bucket.prefix or None, client_options=client, retry_config=retry, **config)
    except (BaseError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise Misconfigured(
            f"Cannot set up a client for {bucket.scheme}://{bucket.name}: {reason}. Check the store's settings."
        ) from error
