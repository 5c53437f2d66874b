"""The webhook's own certificates: made here, trusted by name in the webhook's configuration, and replaced in time.

Each certificate has an authority of its own, whose key is forgotten once it has signed: there is nothing to steal
and nothing to store. A restart or another leader simply makes the next pair.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from milligpu.kube.x509 import certificate_pem, key_pem, new_key, sign_authority, sign_leaf, subject_name

# Long enough that a cluster can be away for weeks, short enough that rotation is ordinary.
LIFETIME = timedelta(days=90)
# Two of each of three instances while they replace theirs, and of those before them; older ones belong to nobody.
AUTHORITIES_MAX = 8


@dataclass(frozen=True, slots=True)
class Certificate:
    """A server's certificate with its key and the authority that signed it, all in PEM."""

    certificate: bytes
    key: bytes
    authority: bytes
    made: datetime
    ends: datetime

    @property
    def renew_at(self) -> datetime:
        """After two thirds of its life, so that a month remains to do it in."""
        return self.made + (self.ends - self.made) * 2 / 3


def issue(hosts: Iterable[str], now: datetime, lifetime: timedelta = LIFETIME) -> Certificate:
    """Make a certificate for a server of these names and addresses."""
    authority_key, key = new_key(), new_key()
    issuer = subject_name(f"milligpu webhook authority {now:%Y-%m-%dT%H:%M:%S}")
    authority = sign_authority(issuer, authority_key, now, lifetime)
    certificate = sign_leaf(
        subject_name("milligpu webhook"),
        key,
        (issuer, authority_key),
        now,
        lifetime,
        usages=[ExtendedKeyUsageOID.SERVER_AUTH],
        hosts=list(hosts),
    )
    return Certificate(certificate_pem(certificate), key_pem(key), certificate_pem(authority), now, now + lifetime)


def bundle(authority: bytes, known: bytes, now: datetime) -> bytes:
    """The authorities to trust: the new one first, then those that were known and still hold."""
    others = [
        each for each in _read(known) if each.not_valid_after_utc > now and certificate_pem(each) != authority
    ]
    return b"".join([authority, *map(certificate_pem, others[: AUTHORITIES_MAX - 1])])


def _read(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem) if pem.strip() else []
    except ValueError:
        return []  # whatever stood there, nobody could trust it
