"""Certificates and kubeconfigs of one cluster.

There are three CAs, as in a real cluster. With a single one, any node's certificate would also be accepted by etcd,
or as that of the API server's front proxy.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from milligpu.kube.x509 import certificate_pem, key_pem, new_key, sign_authority, sign_leaf, subject_name

# A cluster runs for hours; one that a person started may run for weeks.
LIFETIME = timedelta(days=365)


@dataclass(frozen=True)
class KeyPair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority, which issues certificates into its directory."""

    def __init__(self, name: str, folder: Path) -> None:
        self._key = new_key()
        self._name = subject_name(name)
        self._folder = folder
        self.pair = _write(
            folder, name, sign_authority(self._name, self._key, datetime.now(UTC), LIFETIME), self._key
        )

    @property
    def certificate(self) -> Path:
        return self.pair.certificate

    def client(self, user: str, groups: Sequence[str] = (), *, file: str) -> KeyPair:
        """Issue a client certificate for `user`, a member of `groups`."""
        return self._issue(file, subject_name(user, groups), (), ExtendedKeyUsageOID.CLIENT_AUTH)

    def server(self, name: str, hosts: Sequence[str], *, file: str, also_client: bool = False) -> KeyPair:
        """Issue a server certificate for `hosts`, which are addresses or names."""
        usages = (
            ExtendedKeyUsageOID.SERVER_AUTH,
            *((ExtendedKeyUsageOID.CLIENT_AUTH,) if also_client else ()),
        )
        return self._issue(file, subject_name(name), hosts, *usages)

    def _issue(
        self, file: str, subject: x509.Name, hosts: Sequence[str], *usages: x509.ObjectIdentifier
    ) -> KeyPair:
        key, now = new_key(), datetime.now(UTC)
        issuer = (self._name, self._key)
        certificate = sign_leaf(subject, key, issuer, now, LIFETIME, usages=usages, hosts=hosts)
        return _write(self._folder, file, certificate, key)


def service_account_keys(folder: Path) -> KeyPair:
    """Write the keys that sign and verify service account tokens; `certificate` is the public one."""
    key = new_key()
    public = folder / "service-accounts.pub"
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return KeyPair(public, _write_key(folder / "service-accounts.key", key))


def write_kubeconfig(file: Path, server: str, authority: Path, pair: KeyPair, user: str) -> Path:
    """Write a self-contained kubeconfig, which may be copied. (JSON is valid YAML.)"""
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


def _write(folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    file = folder / f"{name}.crt"
    file.write_bytes(certificate_pem(certificate))
    return KeyPair(file, _write_key(folder / f"{name}.key", key))


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    file.touch(mode=0o600)
    file.write_bytes(key_pem(key))
    return file


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
