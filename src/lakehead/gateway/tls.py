"""TLS of a listener."""

import ssl

from lakehead.errors import Misconfigured
from lakehead.gateway.settings import TlsSettings


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context for a listener's connections, TLS 1.2 at least. Raises `Misconfigured`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.cert_file, settings.key_file, settings.key_password or "")
        if settings.client_ca_file is not None:
            context.load_verify_locations(settings.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(
            each for each in (settings.cert_file, settings.key_file, settings.client_ca_file) if each is not None
        )
        raise Misconfigured(f"The TLS files {files} cannot be used ({error}). Correct the settings of TLS.") from error
    return context
