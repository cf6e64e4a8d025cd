"""The configuration of garbage collection, and of how long raw blobs are kept."""

from typing import Annotated

from pydantic import Field, model_validator

from lakehead.run.config.base import ConfigModel, NonEmptyText, SecretField, invalid

Days = Annotated[float, Field(gt=0, le=36_500)]
Seconds = Annotated[float, Field(gt=0, le=3600)]


class GcConfig(ConfigModel):
    """Garbage collection of raw blobs that were never accepted: `lakehead gc`."""

    retry_horizon_days: Days = Field(
        7.0,
        description="How old a raw blob must be before it can be an orphan, by the store's clock: longer than agents "
        "try to send a batch. A batch that comes later is answered 410, and its agent sends it under a new identity.",
    )
    token: SecretField | None = Field(
        None,
        description="The token of an admin, with which gateways with a spool are asked. Needed while a spool is open. "
        "Default: none.",
    )
    spool_seconds: Seconds = Field(10.0, description="How long a gateway with a spool may take to answer.")
    ca_file: NonEmptyText | None = Field(
        None,
        description="A PEM file of authorities for the certificates of private listeners. Default: the system's.",
    )
    cert_file: NonEmptyText | None = Field(
        None,
        description="A PEM file with the certificate to show to private listeners that ask for one. Default: none.",
    )
    key_file: NonEmptyText | None = Field(
        None, description="A PEM file with the key of cert_file. Default: it is in the same file."
    )

    @model_validator(mode="after")
    def _key_of_something(self) -> "GcConfig":
        if self.key_file is not None and self.cert_file is None:
            raise invalid("key_file needs cert_file.")
        return self


class RawBlobsConfig(ConfigModel):
    """How long the frames of accepted batches are kept as they were sent."""

    retention_days: Days | None = Field(
        None,
        description="How old a frame must be before it is deleted, if it has landed and nothing needs it any more. "
        "Default: frames are kept for good.",
    )
    rollback_days: Annotated[float, Field(ge=0, le=36_500)] = Field(
        7.0,
        description="How long ago a frame must have landed before it is deleted: longer than you would roll a table "
        "back.",
    )
