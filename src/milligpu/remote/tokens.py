"""Tokens: who may open sessions in a pool, signed by the pool's authority. Servers check them on their own."""

import re
from dataclasses import dataclass

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from milligpu.model.errors import BadRequest
from milligpu.model.policy import PRIORITY_MAX
from milligpu.model.units import Milli
from milligpu.remote.protocol import SKEW_S
from milligpu.remote.signatures import SignatureRefused, sign, verify

# A lost token is of no use after this time, whether it is noticed or not.
LIFETIME_MAX_S = 30 * 24 * 3600
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
    admin: bool = False
    """Whether it sees all sessions and may drain servers: made for a minute by commands that have the authority."""


class _Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    v: int
    id: str
    name: str
    issued: int
    expires: int
    quota: int | None = None
    priority_max: int = 0
    admin: bool = False


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
    raw = _Claims(
        1, claims.id, claims.name, claims.issued, claims.expires, claims.quota, claims.priority_max, claims.admin
    )
    return sign(_PURPOSE, msgspec.json.encode(raw), key)


def verify_token(text: str, key: ec.EllipticCurvePublicKey, now: float) -> PoolTokenClaims:
    """Return what a token says, or refuse it. Nothing of it is read before its signature is checked."""
    try:
        raw = msgspec.json.decode(verify(_PURPOSE, text, key, _LENGTH_MAX), type=_Claims)
    except SignatureRefused as refused:
        foreign = ": its signature is not the pool's" if refused.is_foreign else ""
        raise TokenRefused(f"a token of this pool{foreign}") from None
    except msgspec.DecodeError:
        raise TokenRefused("a token that this server can read: it is of a newer milligpu") from None
    quota = None if raw.quota is None else Milli(raw.quota)
    claims = PoolTokenClaims(raw.id, raw.name, raw.issued, raw.expires, quota, raw.priority_max, raw.admin)
    if raw.v != 1:
        raise TokenRefused("a token that this server can read: it is of a newer milligpu")
    check_claims(claims)
    if now >= claims.expires:
        raise TokenRefused("a token that has not expired")
    if now < claims.issued - SKEW_S:
        raise TokenRefused("a token that is valid already: compare the clocks of both machines")
    return claims
