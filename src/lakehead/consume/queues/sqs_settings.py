"""How to reach an SQS queue, and the limits of SQS."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from lakehead.errors import Misconfigured

BATCH = 10
"""The most messages of one request."""

LONGEST_POLL_SECONDS = 20
LONGEST_VISIBILITY_SECONDS = 12 * 60 * 60
SEND_BYTES = 256 * 1024
"""The most bytes of bodies in one request, if it has several."""

_AWS_HOST = re.compile(r"(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsSettings:
    """Settings of an SQS queue. What is left empty is looked up as the AWS tools do. Raises `Misconfigured`."""

    queue: str
    """The queue's URL, or its name in the account of the credentials."""

    endpoint: str = ""
    """Address of a server other than AWS's own, such as `http://127.0.0.1:4566`; not needed if `queue` is a URL."""

    region: str = ""
    """Region of the queue; not needed if `queue` is a URL of AWS."""

    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Secrets: `access_key_id`, `secret_access_key` and `session_token`."""

    connect_timeout: float = 5.0
    """Timeout for connecting, in seconds."""

    request_timeout: float = 10.0
    """Timeout of one request in seconds, besides the time that it waits for messages."""

    attempts: int = 3
    """How often a request is tried before it raises `Unavailable`."""

    requests_at_once: int = 4
    """How many receiving requests run side by side, and how many others."""

    def __post_init__(self) -> None:
        """Check the settings."""
        problems = [f"{name} is {value}, and must be positive" for name, value in self._numbers() if value <= 0]
        if not self.queue:
            problems.append("queue is empty, and must be a URL or a name")
        if unknown := sorted(self.credentials.keys() - {"access_key_id", "secret_access_key", "session_token"}):
            problems.append(f"credentials has the unknown name {unknown[0]!r}")
        if problems:
            raise Misconfigured(f"Invalid settings of an SQS queue: {'; '.join(problems)}.")

    @property
    def is_url(self) -> bool:
        """Whether `queue` is a URL."""
        return self.queue.startswith(("http://", "https://"))

    @property
    def effective_region(self) -> str | None:
        """The region that is set, or that of the URL; None: as the AWS tools find it."""
        found = _AWS_HOST.fullmatch(urlsplit(self.queue).hostname or "") if self.is_url else None
        return self.region or (found and (found[1] or found[2])) or None

    @property
    def effective_endpoint(self) -> str | None:
        """The endpoint that is set, or the server of a URL that is not of AWS; None: AWS's own."""
        if self.endpoint or not self.is_url:
            return self.endpoint or None
        parts = urlsplit(self.queue)
        return None if _AWS_HOST.fullmatch(parts.hostname or "") else f"{parts.scheme}://{parts.netloc}"

    def _numbers(self) -> list[tuple[str, float]]:
        return [
            ("connect_timeout", self.connect_timeout),
            ("request_timeout", self.request_timeout),
            ("attempts", self.attempts),
            ("requests_at_once", self.requests_at_once),
        ]
