"""The files for encrypted connections to gateways."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files for connections to gateways."""

    ca_file: str | None = None
    """The authorities that a gateway's certificate may be of. None: those of the system."""

    cert_file: str | None = None
    """The client's own certificate, for gateways that ask for one. None: there is none."""

    key_file: str | None = None
    """The key of `cert_file`. None: it is in the same file."""
