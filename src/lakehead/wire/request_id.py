"""By what an agent knows a request again."""

from dataclasses import dataclass

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class RequestId:
    """Two digests of a request that an agent was given. Raises `ValueError` if they have not 16 bytes each."""

    dedupe_id: bytes
    """Says that it is the same request: of its route and sender with the Idempotency-Key, or else with the body."""

    body_digest: bytes
    """Says that it has the same content: of the decompressed body."""

    def __post_init__(self) -> None:
        if len(self.dedupe_id) != DIGEST_BYTES or len(self.body_digest) != DIGEST_BYTES:
            raise ValueError(f"Both digests of a request must have {DIGEST_BYTES} bytes.")
