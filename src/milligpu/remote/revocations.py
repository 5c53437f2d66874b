"""Tokens that open nothing any more: a list with a serial number, signed by the pool's authority.

The newest list counts. Whoever has one may pass it on, because only the authority can sign it; so servers exchange
theirs, and a client cannot keep a server from learning of it for long.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from milligpu.model.errors import BadFormat
from milligpu.remote.signatures import SignatureRefused, sign, verify

_PURPOSE = b"milligpu revocations 1\n"
# 30 days of tokens, all revoked, of a pool that makes one each minute.
_LENGTH_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class RevocationList:
    """What was revoked, and the servers that must know."""

    serial: int = 0
    revoked: Mapping[str, int] = field(default_factory=dict[str, int])
    """The IDs of tokens, and when each expires: from then on it need not be listed."""
    servers: tuple[str, ...] = ()

    def with_revoked(self, tokens: Mapping[str, int], servers: tuple[str, ...], now: float) -> "RevocationList":
        """The next list: with these tokens and servers, without tokens that have expired."""
        kept = {name: ends for name, ends in {**self.revoked, **tokens}.items() if ends > now}
        return RevocationList(self.serial + 1, kept, tuple(dict.fromkeys((*self.servers, *servers))))


class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    serial: int
    revoked: dict[str, int]
    servers: list[str]


def sign_revocations(made: RevocationList, key: ec.EllipticCurvePrivateKey) -> str:
    return sign(_PURPOSE, msgspec.json.encode(_List(1, made.serial, dict(made.revoked), list(made.servers))), key)


def verify_revocations(text: str, key: ec.EllipticCurvePublicKey) -> RevocationList:
    """Read a list, or raise BadFormat; nothing of it is read before its signature is checked."""
    try:
        raw = msgspec.json.decode(verify(_PURPOSE, text, key, _LENGTH_MAX), type=_List)
    except SignatureRefused:
        raise BadFormat("list of revoked tokens", "its signature is not the pool's") from None
    except msgspec.DecodeError as error:
        raise BadFormat("list of revoked tokens", str(error), hint="it is of a newer milligpu") from None
    return RevocationList(raw.serial, raw.revoked, tuple(raw.servers))
