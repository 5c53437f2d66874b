"""Tokens: who may open sessions in a pool, signed by the pool's authority. Servers check them on their own."""

import base64
import binascii
import re
from dataclasses import dataclass

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from milligpu.model.errors import BadRequest
from milligpu.model.policy import PRIORITY_MAX
from milligpu.model.units import Milli

# A lost token is of no use after this time, whether it is noticed or not.
LIFETIME_MAX_S = 30 * 24 * 3600
# The clocks of two machines may differ by this much.
SKEW_S = 60
# What is signed begins with this, so that a signature for something else is never taken for one of a token.
_PURPOSE = b"milligpu token 1\n"
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_LENGTH_MAX = 4096


@dataclass(frozen=True, slots=True)
class PoolTokenClaims:
    """What a token says."""

    id: str
    name: str
    """Whose sessions these are."""
    issued: int
    """Seconds since 1970, as all times here."""
    expires: int
    quota: Milli | None = None
    """The most compute that its sessions hold at one server at a time."""
    priority_max: int = 0


class _Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    v: int
    id: str
    name: str
    issued: int
    expires: int
    quota: int | None = None
    priority_max: int = 0


class TokenRefused(BadRequest):
    """A token that opens nothing."""

    def __init__(self, want: str) -> None:
        """The token itself is never shown."""
        super().__init__("token", None, want)


def check_claims(claims: PoolTokenClaims) -> None:
    """Refuse what no token may say."""
    if not _NAME.fullmatch(claims.name):
        raise BadRequest("name", claims.name, "at most 63 lower-case letters, digits, '-' and '.'")
    if not 0 < claims.expires - claims.issued <= LIFETIME_MAX_S:
        raise BadRequest("--expires", f"{claims.expires - claims.issued} s", "a time of at most 30 days")
    if claims.quota is not None and claims.quota <= 0:
        raise BadRequest("--quota", claims.quota, "a positive number of GPUs")
    if not 0 <= claims.priority_max <= PRIORITY_MAX:
        raise BadRequest("--priority-max", claims.priority_max, f"a number from 0 to {PRIORITY_MAX}")


def sign_token(claims: PoolTokenClaims, key: ec.EllipticCurvePrivateKey) -> str:
    """Return the token's text."""
    check_claims(claims)
    body = msgspec.json.encode(
        _Claims(1, claims.id, claims.name, claims.issued, claims.expires, claims.quota, claims.priority_max)
    )
    signature = key.sign(_PURPOSE + body, ec.ECDSA(hashes.SHA256()))
    return f"{_to_text(body)}.{_to_text(signature)}"


def verify_token(text: str, key: ec.EllipticCurvePublicKey, now: float) -> PoolTokenClaims:
    """Return what a token says, or refuse it. Nothing of it is read before its signature is checked."""
    body_text, _, signature_text = text[:_LENGTH_MAX].partition(".")
    try:
        body, signature = _from_text(body_text), _from_text(signature_text)
    except (ValueError, binascii.Error):
        raise TokenRefused("a token of this pool") from None
    try:
        key.verify(signature, _PURPOSE + body, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise TokenRefused("a token of this pool: its signature is not the pool's") from None
    try:
        raw = msgspec.json.decode(body, type=_Claims)
    except msgspec.DecodeError:
        raise TokenRefused("a token that this server can read: it is of a newer milligpu") from None
    quota = None if raw.quota is None else Milli(raw.quota)
    claims = PoolTokenClaims(raw.id, raw.name, raw.issued, raw.expires, quota, raw.priority_max)
    if raw.v != 1:
        raise TokenRefused("a token that this server can read: it is of a newer milligpu")
    check_claims(claims)
    if now >= claims.expires:
        raise TokenRefused("a token that has not expired")
    if now < claims.issued - SKEW_S:
        raise TokenRefused("a token that is valid already: compare the clocks of both machines")
    return claims


def _to_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_text(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
