"""Certificates for servers of tests, made by the system's `openssl`, each good for a day."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PASSWORD = "key-c4nary"
"""Of the client's key and key store."""


@dataclass(frozen=True)
class Authority:
    """One that signs certificates, and the folder where they lie, which everybody may read."""

    folder: Path
    name: str

    @classmethod
    def make(cls, folder: Path, name: str) -> "Authority":
        made = cls(folder, name)
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"),
            *("-keyout", made.file("ca.key"), "-out", made.ca, "-subj", f"/CN={name}"),
            *("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"),
        )
        return made

    @property
    def ca(self) -> Path:
        """The authority's own certificate."""
        return self.file("ca.pem")

    def file(self, name: str) -> Path:
        return self.folder / f"{self.name}-{name}"

    def sign(self, name: str, alternative: str, *, password: str | None = None) -> tuple[Path, Path]:
        """A new certificate for an alternative name, such as `IP:127.0.0.1`, and its key."""
        certificate, key, asked = (self.file(f"{name}.{ending}") for ending in ("pem", "key", "csr"))
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-keyout", key, "-out", asked),
            *(("-passout", f"pass:{password}") if password else ("-nodes",)),
            *("-subj", f"/CN={name}", "-addext", f"subjectAltName={alternative}"),
        )
        openssl(
            *("x509", "-req", "-in", asked, "-CA", self.ca, "-CAkey", self.file("ca.key"), "-CAcreateserial"),
            *("-days", "1", "-copy_extensions", "copy", "-out", certificate),
        )
        key.chmod(0o644)  # the server runs as another user
        return certificate, key


def key_store(certificate: Path, key: Path, password: str) -> Path:
    """Both in one file of PKCS12."""
    store = key.with_suffix(".p12")
    openssl(
        *("pkcs12", "-export", "-in", certificate, "-inkey", key, "-passin", f"pass:{password}"),
        *("-passout", f"pass:{password}", "-out", store),
    )
    return store


def openssl(*arguments: object) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise FileNotFoundError("The program 'openssl' is missing. Install the system's package 'openssl'.")
    subprocess.run([program, *map(str, arguments)], check=True, capture_output=True, timeout=60)
