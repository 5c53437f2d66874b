"""A pool's authority, in a directory that each of its servers has: it signs server certificates and tokens."""

import secrets
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from milligpu.kube.x509 import certificate_pem, key_pem, new_key, sign_authority, sign_leaf, subject_name
from milligpu.model.errors import BadFormat, Unavailable
from milligpu.remote.files import write_file
from milligpu.remote.token_file import PoolAccess
from milligpu.remote.tokens import PoolTokenClaims, sign_token

DEFAULT_FOLDER = Path("/etc/milligpu/pool")
_AUTHORITY, _KEY = "authority.pem", "authority.key"
_AUTHORITY_LIFETIME = timedelta(days=3650)
# A server makes itself a new certificate whenever it starts.
_SERVER_LIFETIME = timedelta(days=365)
_NAME = "milligpu pool"
_ADMIN_SECONDS = 60


@dataclass(frozen=True, slots=True)
class PoolAuthority:
    """The pool's CA with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> str:
        return certificate_pem(self.certificate).decode()

    def issue_token(self, claims: PoolTokenClaims, servers: Sequence[str]) -> PoolAccess:
        """Make what a client gets."""
        return PoolAccess(tuple(servers), self.pem, sign_token(claims, self.key))

    def server_context(self) -> ssl.SSLContext:
        """The TLS context of a server, with a new certificate of this pool."""
        key = new_key()
        certificate = sign_leaf(
            subject_name("milligpu server"),
            key,
            (self.certificate.subject, self.key),
            datetime.now(UTC),
            _SERVER_LIFETIME,
            usages=[ExtendedKeyUsageOID.SERVER_AUTH],
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # connections are few, and are not resumed
        # Python reads certificates from files only; this one is gone when it was read.
        with tempfile.NamedTemporaryFile(prefix="milligpu-") as file:
            file.write(key_pem(key) + certificate_pem(certificate))
            file.flush()
            context.load_cert_chain(file.name)
        return context


def admin_access(folder: Path, servers: Sequence[str], now: float) -> PoolAccess:
    """What a command needs that runs where the authority is: a token for all sessions, valid for a minute."""
    claims = PoolTokenClaims(secrets.token_hex(8), "admin", int(now), int(now) + _ADMIN_SECONDS, admin=True)
    return read_pool(folder).issue_token(claims, servers)


def holds_authority(folder: Path) -> bool:
    """Whether a pool's authority is in this directory."""
    return (folder / _KEY).exists()


def create_pool(folder: Path) -> PoolAuthority:
    """Make a new authority. An existing one is kept, because tokens and servers depend on it."""
    if holds_authority(folder):
        return read_pool(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = new_key()
    certificate = sign_authority(subject_name(_NAME), key, datetime.now(UTC), _AUTHORITY_LIFETIME)
    write_file(folder / _AUTHORITY, certificate_pem(certificate))
    write_file(folder / _KEY, key_pem(key))
    return PoolAuthority(certificate, key)


def read_pool(folder: Path) -> PoolAuthority:
    """Read a pool's authority."""
    try:
        certificate = x509.load_pem_x509_certificate((folder / _AUTHORITY).read_bytes())
        key = serialization.load_pem_private_key((folder / _KEY).read_bytes(), None)
    except OSError as error:
        raise Unavailable(
            f"cannot read the pool's authority in {folder}: {error.strerror}", hint="make one: milligpu pool create"
        ) from None
    except ValueError as error:
        raise BadFormat(f"pool authority in {folder}", str(error)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise BadFormat(f"pool authority in {folder}", f"{_KEY} is not the key of {_AUTHORITY}")
    return PoolAuthority(certificate, key)
