"""The webhook's own certificates: made here, trusted by name in the webhook's configuration, and replaced in time.

Each certificate has an authority of its own, whose key is forgotten once it has signed: there is nothing to steal
and nothing to store. A restart or another leader simply makes the next pair.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Long enough that a cluster can be away for weeks, short enough that rotation is ordinary.
LIFETIME = timedelta(days=90)
# Clocks of API servers and ours may differ.
_SKEW = timedelta(minutes=10)
# Ours, that of the instance before us, and one more: older ones belong to nobody.
AUTHORITIES_MAX = 3


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
    ends = now + lifetime
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = _name(f"milligpu webhook authority {now:%Y-%m-%dT%H:%M:%S}")
    authority = (
        _builder(issuer, issuer, authority_key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _builder(_name("milligpu webhook"), issuer, key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return Certificate(_pem(certificate), _key_pem(key), _pem(authority), now, ends)


def bundle(authority: bytes, known: bytes, now: datetime) -> bytes:
    """The authorities to trust: the new one first, then those that were known and still hold."""
    others = [each for each in _read(known) if each.not_valid_after_utc > now and _pem(each) != authority]
    return b"".join([authority, *map(_pem, others[: AUTHORITIES_MAX - 1])])


def _read(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem) if pem.strip() else []
    except ValueError:
        return []  # whatever stood there, nobody could trust it


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _SKEW).not_valid_after(ends)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=sign,
        crl_sign=sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
