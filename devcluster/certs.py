"""Certificates and kubeconfigs of one cluster.

There are three authorities, as in a real cluster, because trust must not leak between them: with a single
one any node's certificate would also open etcd, or pass for the API server's front proxy.
"""

import base64
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A cluster lives for hours; a person's may stay for weeks.
LIFETIME = timedelta(days=365)


@dataclass(frozen=True)
class KeyPair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority whose key never leaves this process unless asked for."""

    def __init__(self, name: str, folder: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._folder = folder
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(authority=True), critical=True)
        self.pair = _write(folder, name, builder.sign(self._key, hashes.SHA256()), self._key)

    @property
    def certificate(self) -> Path:
        return self.pair.certificate

    def client(self, user: str, groups: Sequence[str] = (), *, file: str) -> KeyPair:
        """A certificate that lets `user`, a member of `groups`, in."""
        return self._issue(file, _name(user, groups), (), ExtendedKeyUsageOID.CLIENT_AUTH)

    def server(self, name: str, hosts: Sequence[str], *, file: str, also_client: bool = False) -> KeyPair:
        """A certificate for a server that is reached under `hosts`, addresses or names."""
        usages = (
            ExtendedKeyUsageOID.SERVER_AUTH,
            *((ExtendedKeyUsageOID.CLIENT_AUTH,) if also_client else ()),
        )
        return self._issue(file, _name(name), hosts, *usages)

    def _issue(
        self, file: str, subject: x509.Name, hosts: Sequence[str], *usages: x509.ObjectIdentifier
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._name, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(authority=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return _write(self._folder, file, builder.sign(self._key, hashes.SHA256()), key)


def service_account_keys(folder: Path) -> KeyPair:
    """The keys that service account tokens are signed and checked with; `certificate` is the public one."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = folder / "service-accounts.pub"
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return KeyPair(public, _write_key(folder / "service-accounts.key", key))


def write_kubeconfig(file: Path, server: str, authority: Path, pair: KeyPair, user: str) -> Path:
    """A kubeconfig that carries everything inside, so that it may be copied. (JSON is YAML, too.)"""
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    credentials = {
        "client-certificate-data": _base64(pair.certificate),
        "client-key-data": _base64(pair.key),
    }
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "devcluster", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "devcluster", "context": {"cluster": "devcluster", "user": user}}],
        "current-context": "devcluster",
    }
    file.touch(mode=0o600)
    file.write_text(json.dumps(content, indent=1) + "\n")
    return file


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + LIFETIME)


def _name(common: str, organizations: Sequence[str] = ()) -> x509.Name:
    """Kubernetes reads the user from the common name and the groups from the organizations."""
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    file = folder / f"{name}.crt"
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return KeyPair(file, _write_key(folder / f"{name}.key", key))


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    file.touch(mode=0o600)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return file


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
