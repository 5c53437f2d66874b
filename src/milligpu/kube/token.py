"""The bearer token of a service account: read again when it is replaced, and what it says about itself.

Service account tokens expire. A kubelet writes a new one into the pod's volume long before that, and an admin may
write one into the file that a kubeconfig names (`tokenFile`). A token inside the kubeconfig never changes.
"""

import base64
import binascii
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from lightkube.config.models import User

from milligpu.model.errors import Unavailable

# A kubelet writes a new token long before the old one expires; client-go reads it once a minute, too.
_AGE_S = 60.0
# Header, payload and signature of a JSON Web Token.
_PARTS = 3


class BearerToken:
    """The token to send; one from a file is read again every minute, and when the API server refuses it."""

    def __init__(self, user: User, clock: Callable[[], float] = time.monotonic) -> None:
        if user.exec is not None or user.password is not None:
            raise Unavailable(
                "this kubeconfig uses an exec plugin or a password, which this command does not support",
                hint="use a service account token or a client certificate",
            )
        self.file = None if user.token_file is None else Path(user.token_file)
        """The file that it is read from, if any."""
        self._text = user.token or ""
        self._clock = clock
        self._read_at = -_AGE_S

    def read(self) -> str:
        """Return the token; empty for a client with a certificate. Raises `Unavailable` if there is no file."""
        if self.file is not None and self._clock() - self._read_at >= _AGE_S:
            self._read(self.file)
        return self._text

    def refresh(self, refused: str) -> bool:
        """Read the file again, because the API server refused a token; return whether there is another one."""
        if self.file is not None:
            self._read(self.file)
        return self._text != refused

    def _read(self, file: Path) -> None:
        try:
            self._text = file.read_text().strip() or self._text
        except OSError as error:
            # The one that was read before may still be good.
            if not self._text:
                raise Unavailable(f"no token: {file}: {error.strerror}") from None
        self._read_at = self._clock()


class _Bound(msgspec.Struct):
    name: str = ""


class _Kubernetes(msgspec.Struct):
    node: _Bound | None = None


class _Payload(msgspec.Struct):
    exp: int | None = None
    kubernetes: _Kubernetes = msgspec.field(name="kubernetes.io", default_factory=_Kubernetes)


class TokenClaims(msgspec.Struct, frozen=True):
    """What a token says about itself; only the API server can tell whether that is true."""

    expires: datetime | None
    node: str
    """The node to which the token is bound, by itself or through its pod; empty if it is bound to none."""


def read_claims(token: str) -> TokenClaims | None:
    """Return the claims of a service account's token; None for a token of another kind."""
    parts = token.split(".")
    if len(parts) != _PARTS:
        return None
    try:
        text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        found = msgspec.json.decode(text, type=_Payload)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None
    expires = None if found.exp is None else datetime.fromtimestamp(found.exp, UTC)
    return TokenClaims(expires, "" if found.kubernetes.node is None else found.kubernetes.node.name)
