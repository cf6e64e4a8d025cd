"""The configuration of a gateway."""

import re
from pathlib import PurePosixPath
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field, StrictBool, StrictInt, model_validator

from lakehead.accept.bucket_policy import Encryption
from lakehead.accept.spool_limits import SpoolLimits
from lakehead.gateway.settings import GatewaySettings, IngestSettings, ListenerSettings
from lakehead.run.config.base import ConfigModel, NonEmptyText, SecretField, invalid
from lakehead.wire import acceptance_keys as keys
from lakehead.wire import chunk_keys
from lakehead.wire.authority_records import AcceptanceMode

Bytes = Annotated[StrictInt, Field(ge=1)]
Count = Annotated[StrictInt, Field(ge=1)]
Port = Annotated[StrictInt, Field(ge=0, le=65_535)]
Seconds = Annotated[float, Field(gt=0, le=3600)]

ReconcilerMode = Literal["required", "optional", "none"]

INGEST, LISTENER, SERVER, SPOOL = IngestSettings(), ListenerSettings(), GatewaySettings(), SpoolLimits()
MAX_NAME = 1024
CHUNKS = (chunk_keys.CHUNK_MANIFESTS, chunk_keys.ROLLUP, chunk_keys.INDEX)
TAKEN_FOLDERS = {(), *((each.partition("/")[0],) for each in (*keys.PLACES, *CHUNKS))}
"""Where the queue cannot be: the first segments of what acceptance stores, and the top of the store."""

MULTI_REGION = re.compile(
    r"\.mrap(?![\w-])|\.accesspoint\.s3-global\.amazonaws\.com|^arn:[^:]*:s3::[^:]*:accesspoint", re.IGNORECASE
)
"""Its alias, its host name, or its ARN, which is that of an access point without a region."""


def is_multi_region(store: str, endpoint: str = "") -> bool:
    """Return whether a store is a Multi-Region Access Point: by its name, its ARN, or the endpoint it is reached at."""
    parts = urlsplit(unquote(store))
    bucket = parts.netloc + parts.path if parts.netloc.lower().startswith("arn:") else parts.netloc
    return any(MULTI_REGION.search(each) for each in (bucket, parts.query, endpoint))


class ListenerTlsConfig(ConfigModel):
    """The certificate of a listener."""

    cert_file: NonEmptyText = Field(description="A PEM file with the certificate and those that it depends on.")
    key_file: NonEmptyText = Field(description="A PEM file with the private key.")
    key_password: SecretField | None = Field(None, description="The password of the private key. Default: none.")
    client_ca_file: NonEmptyText | None = Field(
        None, description="A PEM file of authorities: every client must show a certificate of one. Default: no need to."
    )


class ListenerConfig(ConfigModel):
    """Where a gateway listens."""

    host: NonEmptyText = Field("127.0.0.1", description="The address. Default: this machine alone can connect.")
    port: Port = Field(description="The port; 0 takes any free one.")
    tls: ListenerTlsConfig | None = Field(None, description="The certificate. Default: connections are not encrypted.")
    max_connections: Count = Field(
        LISTENER.max_connections, description="Connections that may be open. Stay below the limit of open files."
    )


class IngestConfig(ConfigModel):
    """Which batches are accepted, and how."""

    acceptance: AcceptanceMode = Field(
        "s3_manifest",
        description="When a batch is accepted: s3_manifest, when its identity manifest is in the object store; "
        "local_spool, when it is on the gateway's own disk, from where it is landed in the store.",
    )
    spool_folder: NonEmptyText | None = Field(
        None, description="The folder of the gateway's spool, for local_spool. Its parent must exist. One per gateway."
    )
    spool_bytes: Bytes = Field(SPOOL.most_bytes, description="How large the spool may become. Then uploads get 503.")
    spool_batches: Count = Field(SPOOL.most_batches, description="How many batches it may hold.")
    spool_address: NonEmptyText | None = Field(
        None,
        description="The URL at which garbage collection reaches the private listener. Default: its host and port.",
    )
    object_landing_interval_ms: Count = Field(
        1000, description="The pause between two landings of what is in the spool, in milliseconds."
    )
    body_bytes: Bytes = Field(INGEST.body_bytes, description="The largest frame, in bytes.")
    payload_bytes: Bytes = Field(INGEST.payload_bytes, description="The largest payload of a frame, decompressed.")
    read_seconds: Seconds = Field(INGEST.read_seconds, description="How long a client may take to send a frame.")
    accept_seconds: Seconds = Field(
        INGEST.accept_seconds, description="How long accepting a frame may take before it is answered 503."
    )
    requests_per_second: Annotated[float, Field(gt=0)] | None = Field(
        INGEST.requests_per_second, description="Requests of one agent, on average. null: any number."
    )
    burst: Count = Field(INGEST.burst, description="Requests of one agent at once, after a pause.")
    agent_requests: Count = Field(INGEST.agent_requests, description="Requests of one agent that may be under way.")
    requests_in_flight: Count = Field(INGEST.requests_in_flight, description="Requests that may be under way.")
    bytes_in_flight: Bytes = Field(INGEST.bytes_in_flight, description="Bytes of frames that may be under way.")

    @model_validator(mode="after")
    def _largest_frame_fits(self) -> "IngestConfig":
        if self.bytes_in_flight < self.body_bytes:
            raise invalid("bytes_in_flight must be at least body_bytes: else the largest frames are never taken.")
        return self

    @model_validator(mode="after")
    def _spool_has_a_place(self) -> "IngestConfig":
        if self.acceptance == "local_spool" and self.spool_folder is None:
            raise invalid("local_spool needs spool_folder: the folder of this gateway's own disk.")
        if self.spool_bytes < self.body_bytes:
            raise invalid("spool_bytes must be at least body_bytes: else the largest frames are never taken.")
        return self


class GatewayConfig(ConfigModel):
    """A gateway: which batches it accepts, from whom, and into which store."""

    store: NonEmptyText = Field(
        description="The URL of the store: bucket and prefix are the acceptance authority, the same for all gateways."
    )
    store_seconds: Seconds = Field(
        10.0, description="How long one request to the store may take before it is made again."
    )
    collector_id: Annotated[NonEmptyText, Field(max_length=MAX_NAME)] | None = Field(
        None, description="The gateway's own name in what it stores. Default: the name of the machine."
    )
    ingest: IngestConfig = Field(IngestConfig(), description="Limits on batches, and when one is accepted.")
    ingest_listener: ListenerConfig = Field(
        ListenerConfig(port=8480), description="Where agents upload batches. Default: port 8480 of this machine."
    )
    private_listener: ListenerConfig = Field(
        ListenerConfig(port=8481, max_connections=64),
        description="Health, metrics and conflicts, for operators. Default: port 8481 of this machine.",
    )
    queue_path: NonEmptyText = Field(
        "landing-queue", description="The folder of the store with the queue of accepted batches that are to be landed."
    )
    reconciler: ReconcilerMode | None = Field(
        None,
        description="Whether a reconciler looks after what is accepted. required: the gateway is ready only while one "
        "gives signs of life in the store. optional: its signs of life are told. none: none is expected, for "
        "local_spool alone. Default: required with s3_manifest, none with local_spool.",
    )
    metrics_need_token: StrictBool = Field(
        default=True, description="Whether /metrics needs a token with a role, as other private routes do."
    )
    unready_seconds: Annotated[float, Field(ge=0, le=3600)] = Field(
        SERVER.unready_seconds,
        description="How long a stopping gateway says that it is not ready before it takes no more batches: as long as "
        "a load balancer needs to notice.",
    )
    stop_seconds: Count = Field(
        SERVER.stop_seconds, description="How long requests under way may take when the gateway stops."
    )
    side_effect_seconds: Seconds = Field(
        SERVER.side_effect_seconds,
        description="How long derived indexes, the landing queue and the spool may take after that.",
    )
    bucket_encryption: Encryption | None = Field(
        None, description="The default encryption that the bucket must have; another is told. Default: any."
    )
    allow_multi_region_access_point: StrictBool = Field(
        default=False,
        description="Whether the store may be a Multi-Region Access Point. Say so only if you have proved that every "
        "write of this prefix goes to the same bucket: else two regions accept different frames as the same batch.",
    )

    @property
    def reconciler_mode(self) -> ReconcilerMode:
        """Whether a reconciler looks after what is accepted, by the default if nothing is said."""
        return self.reconciler or ("none" if self.ingest.acceptance == "local_spool" else "required")

    @model_validator(mode="after")
    def _looked_after(self) -> "GatewayConfig":
        if self.ingest.acceptance == "s3_manifest" and self.reconciler == "none":
            raise invalid(
                "reconciler must not be none with s3_manifest: a gateway that is killed leaves accepted batches that "
                "no index names and nobody lands. Leave it out, and run `lakehead reconcile CONFIG` beside the "
                "gateways; or set optional, if they shall be ready without one."
            )
        return self

    @model_validator(mode="after")
    def _one_authority(self) -> "GatewayConfig":
        if "://" not in self.store:
            raise invalid("store must be a URL, such as s3://bucket/prefix or file:///folder.")
        if not self.allow_multi_region_access_point and is_multi_region(self.store):
            raise invalid(
                "store is a Multi-Region Access Point, which is no lock: two regions may accept different frames as "
                "the same batch. Name one bucket, or set allow_multi_region_access_point."
            )
        if PurePosixPath(self.queue_path).is_absolute() or ".." in PurePosixPath(self.queue_path).parts:
            raise invalid("queue_path must be a folder of the store.")
        if (first := PurePosixPath(self.queue_path).parts[:1]) in TAKEN_FOLDERS:
            raise invalid(
                f"queue_path must not begin with {'/'.join(first) or '.'}/, where acceptance has its objects."
            )
        return self
