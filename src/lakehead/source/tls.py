"""TLS to a MySQL server, in the words of each driver that reads one. Every one refuses a server that has none."""

import ssl
from dataclasses import dataclass, field
from typing import Literal

from lakehead.errors import Misconfigured

Verify = Literal["identity", "ca"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Whom to trust, and who we are. Files are read wherever rows are: on a cluster by the workers too."""

    ca: str
    """The file of the certificates, in PEM, one of which the server's must be signed by."""

    verify: Verify = "identity"
    """Whether the server's certificate must also be for the host by whose name or address it is reached."""

    certificate: str | None = None
    """The file of our own certificate, in PEM, for servers that ask for one. It goes with `key` and `key_store`."""

    key: str | None = field(default=None, repr=False)
    """The file of its key, in PEM."""

    key_password: str | None = field(default=None, repr=False)

    key_store: str | None = field(default=None, repr=False)
    """The file of our certificate and its key in PKCS12, as JDBC wants them: ConnectorX has no client certificates."""

    key_store_password: str | None = field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be said aloud."""
        return tuple(secret for secret in (self.key_password, self.key_store_password) if secret)


def for_python(tls: Tls) -> ssl.SSLContext:
    """As PyMySQL takes it. Raises `Misconfigured` for a file that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except OSError as error:
        raise _unusable("ca", error) from None
    context.check_hostname = tls.verify == "identity"
    context.verify_mode = ssl.CERT_REQUIRED
    if tls.certificate:
        try:
            # Without a word it would be asked for at the terminal.
            context.load_cert_chain(tls.certificate, tls.key, password=lambda: tls.key_password or "")
        except OSError as error:
            raise _unusable("certificate or tls.key", error) from None
    return context


def for_connectorx(tls: Tls) -> dict[str, str]:
    """As ConnectorX takes it, in its URL. Raises `Misconfigured` for a certificate of ours: it has a word for none."""
    if tls.certificate:
        raise Misconfigured("A source with a client certificate is only read by JDBC. Set the table's reader to jdbc.")
    mode = {"identity": "VERIFY_IDENTITY", "ca": "VERIFY_CA"}[tls.verify]
    # On this machine it would go on by a socket that has no TLS.
    return {"ssl-mode": mode, "ssl-ca": tls.ca, "prefer_socket": "false"}


def for_jdbc(tls: Tls) -> dict[str, str]:
    """As MariaDB's JDBC driver takes it, in properties of a connection."""
    given = {"sslMode": {"identity": "verify-full", "ca": "verify-ca"}[tls.verify], "serverSslCert": tls.ca}
    if tls.key_store:
        given |= {"keyStore": tls.key_store, "keyStoreType": "PKCS12", "keyStorePassword": tls.key_store_password or ""}
    return given


def _unusable(key: str, error: OSError) -> Misconfigured:
    reason = error.strerror if not isinstance(error, ssl.SSLError) else "it is no PEM, or its password is another"
    return Misconfigured(f"A file of the source's tls.{key} cannot be used ({reason}). Check its path and content.")
