"""Who a client is: RocketMQ's access keys, which sign every request, and TLS."""

from __future__ import annotations

import base64
import hmac
import ssl
from dataclasses import dataclass, field

from mqlake.errors import RequestRefused
from mqlake.kernel import Command
from mqlake.remoting.codes import ResponseCode

ACL_EXCEPTION = "AclException"
"""RocketMQ 4.9's access control refuses with a general code, and this in the remark."""

ACCESS_KEY, SIGNATURE, TOKEN = "AccessKey", "Signature", "SecurityToken"


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key and its secret, as `plain_acl.yml` or a user of RocketMQ 5 has them."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def sign(self, command: Command) -> None:
        """Add the signature: it covers the values of all fields, in the order of their names, and the body."""
        fields = command.fields
        fields[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            fields[TOKEN] = self.security_token
        content = "".join(fields[name] for name in sorted(fields) if name != SIGNATURE).encode() + command.body
        digest = hmac.digest(self.secret_key.encode(), content, "sha1")
        fields[SIGNATURE] = base64.b64encode(digest).decode()


def tls_context(tls: ssl.SSLContext | bool) -> ssl.SSLContext | None:
    """Return the context for an argument `tls`: True verifies the server's certificate as a browser does."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    return ssl.create_default_context() if tls else None


def is_denied(error: RequestRefused) -> bool:
    """Return whether access control refused a request: repeating it is in vain."""
    return error.code == ResponseCode.NO_PERMISSION or ACL_EXCEPTION in error.remark
