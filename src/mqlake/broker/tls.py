"""TLS under RocketMQ's own settings (`tls.server.*`).

Permissive takes both kinds of clients on one port: the first byte of a TLS connection is 0x16, that of a frame is the
high byte of a length below 16 MiB, 0x00. Certificates that change are taken for new connections.
"""

from __future__ import annotations

import enum
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mqlake.broker.files import marks_of
from mqlake.errors import InvalidConfig

FIRST_BYTE: Final = b"\x16"
"""Of a TLS handshake."""
_log = logging.getLogger(__name__)


class TlsMode(enum.Enum):
    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files and rules of the server's side."""

    mode: TlsMode
    cert: Path
    key: Path
    ca: Path | None = None
    """Whoever signed the certificates of clients."""
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    key_password: str | None = field(default=None, repr=False)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> TlsSettings | None:
        """Return the settings of a broker.conf; None if TLS is off or no certificate is named."""
        get = properties.get
        cert, key, ca = (get(f"tls.server.{name}") for name in ("certPath", "keyPath", "trustCertPath"))
        mode = _mode(get("tls.server.mode", "permissive" if cert else "disabled"))
        if mode is TlsMode.DISABLED or (mode is TlsMode.PERMISSIVE and not cert and not key):
            return None
        if not cert or not key:
            raise InvalidConfig("tls.server.mode", mode.value, "needs tls.server.certPath and tls.server.keyPath")
        auth = get("tls.server.need.client.auth", "none")
        if auth not in CLIENT_AUTH:
            raise InvalidConfig("tls.server.need.client.auth", auth, f"must be one of {', '.join(CLIENT_AUTH)}")
        if CLIENT_AUTH[auth] is not ssl.CERT_NONE and not ca:
            raise InvalidConfig("tls.server.need.client.auth", auth, "needs tls.server.trustCertPath")
        trusted = Path(ca) if ca else None
        return cls(mode, Path(cert), Path(key), trusted, CLIENT_AUTH[auth], get("tls.server.keyPassword"))


def _mode(text: str) -> TlsMode:
    try:
        return TlsMode(text.lower())
    except ValueError:
        raise InvalidConfig("tls.server.mode", text, f"must be one of {', '.join(m.value for m in TlsMode)}") from None


class Tls:
    """The context of new connections."""

    def __init__(self, settings: TlsSettings) -> None:
        self.settings = settings
        self._marks = marks_of(settings.cert, settings.key, settings.ca)
        self.context = _context(settings)

    @property
    def is_enforced(self) -> bool:
        return self.settings.mode is TlsMode.ENFORCING

    def refresh(self) -> None:
        """Take changed files for new connections; broken ones are logged, and the ones before stay."""
        marks = marks_of(self.settings.cert, self.settings.key, self.settings.ca)
        if marks == self._marks:
            return
        self._marks = marks
        try:
            self.context = _context(self.settings)
            _log.info("%s was read again", self.settings.cert)
        except InvalidConfig as error:
            _log.error("the certificate stays as it was: %s", error)


def _context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = settings.client_auth
    try:
        # without a password OpenSSL would ask for one at the terminal
        context.load_cert_chain(settings.cert, settings.key, password=settings.key_password or "")
        if settings.ca is not None:
            context.load_verify_locations(settings.ca)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        why = error.strerror if isinstance(error, OSError) else str(error)
        files = f"{settings.cert}, {settings.key}" + (f", {settings.ca}" if settings.ca else "")
        raise InvalidConfig("tls", files, f"must be a certificate and its key in PEM: {why}") from None
    return context
