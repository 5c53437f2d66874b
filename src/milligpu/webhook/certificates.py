"""The webhook's certificates, which the webhook issues itself and replaces in time.

Each certificate has a CA of its own, whose key is dropped once it has signed, so there is nothing to steal or
store. A restart, or another instance, issues a new pair.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from milligpu.kube.x509 import certificate_pem, key_pem, new_key, sign_authority, sign_leaf, subject_name

# Long enough for a cluster that is down for weeks, short enough that rotation is routine.
LIFETIME = timedelta(days=90)
# Two CAs of each of three instances while they rotate, and those of the instances before them.
AUTHORITIES_MAX = 8


@dataclass(frozen=True, slots=True)
class Certificate:
    """A server's certificate with its key and the CA that signed it, all in PEM."""

    certificate: bytes
    key: bytes
    authority: bytes
    made: datetime
    ends: datetime

    @property
    def renew_at(self) -> datetime:
        """After two thirds of the lifetime, which leaves a month to retry."""
        return self.made + (self.ends - self.made) * 2 / 3


def issue_certificate(hosts: Iterable[str], now: datetime, lifetime: timedelta = LIFETIME) -> Certificate:
    """Issue a certificate for a server with these names and addresses."""
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


def trust_bundle(authority: bytes, known: bytes, now: datetime) -> bytes:
    """Return the CAs to trust: the new one first, then known ones that have not expired."""
    others = [
        each for each in _read(known) if each.not_valid_after_utc > now and certificate_pem(each) != authority
    ]
    return b"".join([authority, *map(certificate_pem, others[: AUTHORITIES_MAX - 1])])


def _read(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem) if pem.strip() else []
    except ValueError:
        return []  # not a CA bundle
