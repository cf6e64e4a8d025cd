"""The settings of an agent. Configurations of every command import them, so they import neither HTTP nor Arrow."""

from dataclasses import dataclass, field

from lakehead.agent.spool_settings import SpoolSettings
from lakehead.agent.tls_files import TlsFiles
from lakehead.errors import Misconfigured
from lakehead.retry import PollInterval
from lakehead.wire.batch_identity import check_id


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Who an agent is, what it keeps and how it sends. Raises `Misconfigured` and `InvalidIdentity`."""

    agent_id: str
    """Who it is, for good. Its token must be of the same agent."""

    gateways: tuple[str, ...]
    """URLs of ingest listeners, as https://gateway:8443, all of one acceptance authority. One is used until it fails,
    and then the next; agents begin with different ones."""

    spool_folder: str = "lakehead-spool"
    """Where records wait. It is made if it is missing; its parent must exist, on a local disk. One for each agent."""

    authority: str = ""
    """The acceptance authority whose receipts count. Empty: that of the first receipt, remembered in the spool."""

    tls: TlsFiles = field(default_factory=TlsFiles)
    """Certificates, for gateways whose URLs are https."""

    spool: SpoolSettings = field(default_factory=SpoolSettings)
    """How batches are made, how many are kept, and for how long requests are recognised."""

    in_flight: int = 4
    """How many batches of each kind are sent at the same time. At least 2: one that fails must not hold up others."""

    attempt_seconds: float = 30.0
    """How long one attempt may take, from connecting to the last byte of the answer."""

    gateway_backoff: PollInterval = field(
        default_factory=lambda: PollInterval(first_seconds=0.2, cap_seconds=30.0, growth=2.0)
    )
    """For how long a gateway that failed is avoided. A Retry-After is added."""

    retry_after_seconds: float = 600.0
    """The longest Retry-After that is believed, in seconds."""

    batch_backoff: PollInterval = field(
        default_factory=lambda: PollInterval(first_seconds=1.0, cap_seconds=300.0, growth=2.0)
    )
    """How long a batch waits that fails where others are accepted."""

    pause_seconds: float = 60.0
    """For how long nothing is sent after a gateway refused the token or the agent (401, 403)."""

    offer_again_seconds: float = 3600.0
    """How often parked batches are sent again, in seconds that the agent runs. They are also sent when it starts."""

    def __post_init__(self) -> None:
        check_id("agent_id", self.agent_id)
        if not self.gateways:
            raise Misconfigured("There is no gateway to send to. Give the URL of at least one.")
        if self.in_flight < 2:
            raise Misconfigured(f"in_flight is {self.in_flight}. It must be at least 2.")
        for name in ("attempt_seconds", "retry_after_seconds", "pause_seconds", "offer_again_seconds"):
            if not (seconds := getattr(self, name)) > 0:
                raise Misconfigured(f"{name} is {seconds}. It must be above 0.")
