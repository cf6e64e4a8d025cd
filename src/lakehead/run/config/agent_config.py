"""The configuration of an agent."""

from typing import Annotated

from pydantic import Field, StrictBool, StrictInt, field_validator, model_validator

from lakehead.agent.settings import AgentSettings
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.errors import Misconfigured
from lakehead.run.config.base import ConfigModel, NonEmptyText, SecretField, invalid
from lakehead.wire.batch_identity import check_id
from lakehead.wire.errors import InvalidIdentity

Bytes = Annotated[StrictInt, Field(ge=1)]
Count = Annotated[StrictInt, Field(ge=1)]
Port = Annotated[StrictInt, Field(ge=0, le=65_535)]
Seconds = Annotated[float, Field(gt=0)]

SPOOL, SENDING = SpoolSettings(), AgentSettings(agent_id="default", gateways=("http://127.0.0.1:8480",))
OTLP_PORT = 4318
"""Where OpenTelemetry's exporters send OTLP/HTTP if they are told nothing."""


class AgentTlsConfig(ConfigModel):
    """Certificates for gateways with https."""

    ca_file: NonEmptyText | None = Field(
        None, description="A PEM file of the authorities of the gateways' certificates. Default: those of the system."
    )
    cert_file: NonEmptyText | None = Field(
        None, description="A PEM file with the agent's own certificate, for gateways that ask for one."
    )
    key_file: NonEmptyText | None = Field(None, description="A PEM file with its private key.")

    @model_validator(mode="after")
    def _certificate_with_its_key(self) -> "AgentTlsConfig":
        if (self.cert_file is None) != (self.key_file is None):
            raise invalid("cert_file and key_file belong together: give both, or none.")
        return self


class AgentListenerConfig(ConfigModel):
    """Where programs of this machine send samples and log records."""

    host: NonEmptyText = Field("127.0.0.1", description="The address. Default: this machine alone can connect.")
    port: Port | None = Field(OTLP_PORT, description="The port; 0 takes any free one. null: no TCP port.")
    unix_socket: NonEmptyText | None = Field(
        None, description="A Unix socket to listen on too, for this user alone. Default: none."
    )
    allow_remote: StrictBool = Field(
        default=False,
        description="Whether host may be an address that other machines reach. There are no tokens and no encryption: "
        "everybody who reaches it can write, and operate the agent.",
    )
    hosts: tuple[NonEmptyText, ...] = Field(
        (), description="Names by which requests may call this machine, beside those of loopback."
    )
    origins: tuple[NonEmptyText, ...] = Field((), description="Origins of web pages that may send. Default: none.")
    body_bytes: Bytes = Field(16 << 20, description="The largest body of a request, as sent and decompressed.")
    bytes_in_flight: Bytes = Field(64 << 20, description="Bytes of bodies that may be under way.")

    @model_validator(mode="after")
    def _somewhere(self) -> "AgentListenerConfig":
        if self.port is None and self.unix_socket is None:
            raise invalid("port and unix_socket are both missing: nobody could send anything. Give one.")
        if self.bytes_in_flight < self.body_bytes:
            raise invalid("bytes_in_flight must be at least body_bytes: else the largest bodies are never taken.")
        return self


class AgentConfig(ConfigModel):
    """An agent: it takes samples and log records, keeps them on disk, and sends them to gateways until accepted."""

    agent_id: NonEmptyText = Field(description="Who the agent is, for good. Its token must be of the same agent.")
    gateways: tuple[NonEmptyText, ...] = Field(
        min_length=1, description="URLs of gateways of one authority, as https://gateway:8443. If one fails, the next."
    )
    token: SecretField = Field(description="The agent's token. A file is read again when gateways refuse the token.")
    spool_folder: NonEmptyText = Field(
        description="The folder where records wait. Its parent must exist, on a local disk. One for each agent."
    )
    authority: str = Field(
        "", description="The acceptance authority to believe. Default: the one that answers first, for good."
    )
    tls: AgentTlsConfig = Field(AgentTlsConfig(), description="Certificates, for gateways whose URLs are https.")
    listener: AgentListenerConfig = Field(
        AgentListenerConfig(), description="Where programs send to. Default: port 4318 of this machine, as OTLP has it."
    )
    spool_bytes: Bytes = Field(
        SPOOL.spool_bytes, description="How large the spool may become. Then requests get 503; nothing is dropped."
    )
    spool_entries: Count = Field(SPOOL.spool_entries, description="How many batches may wait.")
    parked_bytes: Bytes = Field(SPOOL.parked_bytes, description="How many bytes of refused batches are kept besides.")
    batch_seconds: Seconds = Field(SPOOL.batch_seconds, description="How long a batch collects records.")
    batch_records: Count = Field(SPOOL.batch_records, description="With how many records it is sent at the latest.")
    batch_bytes: Bytes = Field(SPOOL.batch_bytes, description="With how many bytes, before they are compressed.")
    in_flight: Annotated[StrictInt, Field(ge=2)] = Field(
        SENDING.in_flight, description="Batches of each kind that are sent at the same time."
    )
    attempt_seconds: Seconds = Field(SENDING.attempt_seconds, description="How long one attempt to send may take.")
    pause_seconds: Seconds = Field(
        SENDING.pause_seconds, description="How long nothing is sent after the token was refused."
    )
    offer_again_seconds: Seconds = Field(
        SENDING.offer_again_seconds, description="How often parked batches are sent again."
    )
    dedupe_seconds: Seconds = Field(
        SPOOL.dedupe_seconds, description="For how long a request that comes again is known, while the agent runs."
    )
    dedupe_requests: Count = Field(SPOOL.dedupe_requests, description="How many requests are known at most.")

    @field_validator("gateways")
    @classmethod
    def _can_be_reached(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        from lakehead.agent.gateway_connection import checked_url  # noqa: PLC0415 - loads HTTP and Arrow

        for url in given:
            try:
                checked_url(url)
            except Misconfigured as error:
                raise invalid(str(error)) from None
        return given

    @field_validator("agent_id")
    @classmethod
    def _fits_an_identity(cls, given: str) -> str:
        try:
            check_id("agent_id", given)
        except InvalidIdentity:
            raise invalid("must have 1 to 120 bytes in UTF-8, and no control characters.") from None
        return given
