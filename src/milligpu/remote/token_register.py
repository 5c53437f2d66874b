"""The tokens that a pool has issued and revoked: files next to its authority, without any secret."""

import fcntl
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from milligpu.model.errors import BadRequest
from milligpu.model.units import Milli
from milligpu.remote.files import write_file
from milligpu.remote.pool import PoolAuthority
from milligpu.remote.revocations import RevocationList, sign_revocations, verify_revocations
from milligpu.remote.tokens import PoolTokenClaims
from milligpu.wire.documents import Document, DocumentFormat, DocumentPart, encode

TOKENS = DocumentFormat("token register")
REVOCATIONS_FILE = "revocations"


class TokenState(StrEnum):
    """Whether a token opens sessions."""

    VALID = "valid"
    EXPIRED = "expired"
    REVOKED = "revoked"


class _Token(DocumentPart, frozen=True):
    id: str
    name: str
    issued: int
    expires: int
    quota: int | None = None
    priority_max: int = 0
    servers: list[str] = msgspec.field(default_factory=list[str])


class _Tokens(Document, frozen=True):
    tokens: list[_Token]


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token as the pool remembers it."""

    claims: PoolTokenClaims
    servers: tuple[str, ...]

    def state(self, revocations: RevocationList, now: float) -> TokenState:
        if self.claims.id in revocations.revoked:
            return TokenState.REVOKED
        return TokenState.VALID if now < self.claims.expires else TokenState.EXPIRED


class TokenRegister:
    """The register in a pool's directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "tokens.json"

    def tokens(self) -> list[IssuedToken]:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return []
        return [_issued(each) for each in TOKENS.decode(text, _Tokens).tokens]

    def add(self, claims: PoolTokenClaims, servers: Iterable[str], now: float) -> None:
        """Remember a token, before anybody gets it. Those that expired a month ago are forgotten."""
        with self._locked():
            kept = [each for each in self.tokens() if each.claims.expires > now - _REMEMBERED_S]
            kept.append(IssuedToken(claims, tuple(servers)))
            write_file(self._path, encode(_Tokens(TOKENS.version, [_raw(each) for each in kept])).encode())

    def revocations(self, authority: PoolAuthority) -> RevocationList:
        try:
            text = (self._folder / REVOCATIONS_FILE).read_text()
        except FileNotFoundError:
            return RevocationList()
        return verify_revocations(text, authority.key.public_key())

    def revoke(
        self, authority: PoolAuthority, names: Iterable[str], servers: Iterable[str], now: float
    ) -> tuple[str, RevocationList]:
        """Sign a new list that has these tokens, given by ID or by the name that they are for; returns its text."""
        with self._locked():
            known = [each for each in self.tokens() if each.claims.expires > now]
            found: dict[str, int] = {}
            for name in names:
                meant = [each.claims for each in known if name in (each.claims.id, each.claims.name)]
                if not meant:
                    raise BadRequest(
                        "NAME", name, "the name or ID of a token that has not expired", hint=_LIST_HINT
                    )
                found.update({claims.id: claims.expires for claims in meant})
            everywhere = [*servers, *(server for each in known for server in each.servers)]
            made = self.revocations(authority).with_revoked(found, tuple(dict.fromkeys(everywhere)), now)
            text = sign_revocations(made, authority.key)
            write_file(self._folder / REVOCATIONS_FILE, text.encode())
        return text, made

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Two commands that read, change and write must not lose each other's change."""
        with (self._folder / ".tokens.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


_REMEMBERED_S = 30 * 24 * 3600
_LIST_HINT = "list them with: milligpu pool token list"


def _issued(raw: _Token) -> IssuedToken:
    quota = None if raw.quota is None else Milli(raw.quota)
    claims = PoolTokenClaims(raw.id, raw.name, raw.issued, raw.expires, quota, raw.priority_max)
    return IssuedToken(claims, tuple(raw.servers))


def _raw(each: IssuedToken) -> _Token:
    claims = each.claims
    return _Token(
        claims.id, claims.name, claims.issued, claims.expires, claims.quota, claims.priority_max, list(each.servers)
    )
