"""TLS settings of a source, and their form for each driver of MySQL. With them every driver requires TLS."""

import ssl
from dataclasses import dataclass, field
from typing import Literal

from lakehead.errors import Misconfigured

Verify = Literal["identity", "ca"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS settings. On a cluster the files must exist on every worker too."""

    ca: str
    """PEM file of the trusted certificate authorities."""

    verify: Verify = "identity"
    """identity: the server's certificate must be valid for its host. ca: any host."""

    certificate: str | None = None
    """PEM file of the client certificate, for servers that require one. Needs `key` and `key_store`."""

    key: str | None = field(default=None, repr=False)
    """PEM file of the client certificate's private key."""

    key_password: str | None = field(default=None, repr=False)

    key_store: str | None = field(default=None, repr=False)
    """PKCS12 file of client certificate and key, for JDBC: ConnectorX does not support client certificates."""

    key_store_password: str | None = field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets among the settings."""
        return tuple(secret for secret in (self.key_password, self.key_store_password) if secret)


def pymysql_ssl_context(tls: Tls) -> ssl.SSLContext:
    """Return the SSL context for PyMySQL. Raises `Misconfigured` for a file that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except OSError as error:
        raise _unusable("ca", error) from None
    context.check_hostname = tls.verify == "identity"
    context.verify_mode = ssl.CERT_REQUIRED
    if tls.certificate:
        try:
            # Without a password function, Python would prompt for it on the terminal.
            context.load_cert_chain(tls.certificate, tls.key, password=lambda: tls.key_password or "")
        except OSError as error:
            raise _unusable("certificate or tls.key", error) from None
    return context


def connectorx_options(tls: Tls) -> dict[str, str]:
    """Return the URL options for ConnectorX. Raises `Misconfigured` for a client certificate: it has no such option."""
    if tls.certificate:
        raise Misconfigured(
            "A source with a client certificate can only be read by JDBC. Set the table's reader to jdbc."
        )
    mode = {"identity": "VERIFY_IDENTITY", "ca": "VERIFY_CA"}[tls.verify]
    # For a local server it would use a Unix socket, which has no TLS.
    return {"ssl-mode": mode, "ssl-ca": tls.ca, "prefer_socket": "false"}


def mariadb_jdbc_properties(tls: Tls) -> dict[str, str]:
    """Return the connection properties for MariaDB's JDBC driver."""
    given = {"sslMode": {"identity": "verify-full", "ca": "verify-ca"}[tls.verify], "serverSslCert": tls.ca}
    if tls.key_store:
        given |= {"keyStore": tls.key_store, "keyStoreType": "PKCS12", "keyStorePassword": tls.key_store_password or ""}
    return given


def _unusable(key: str, error: OSError) -> Misconfigured:
    reason = error.strerror if not isinstance(error, ssl.SSLError) else "it is not PEM, or its password is wrong"
    return Misconfigured(f"The file of tls.{key} cannot be used ({reason}). Check its path and content.")
