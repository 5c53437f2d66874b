import json
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from devcluster.certs import Authority, KeyPair, write_kubeconfig


def test_a_client_certificate_carries_user_and_groups(tmp_path: Path) -> None:
    pair = Authority("ca", tmp_path).client("system:node:a", ("system:nodes",), file="a")

    subject = x509.load_pem_x509_certificate(pair.certificate.read_bytes()).subject
    assert [each.value for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["system:node:a"]
    assert [each.value for each in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == ["system:nodes"]


def test_a_server_rejects_clients_of_another_ca(tmp_path: Path) -> None:
    ours, theirs = Authority("ours", tmp_path), Authority("theirs", tmp_path)
    server = ours.server("server", ("127.0.0.1", "server.local"), file="server")
    friend, stranger = ours.client("friend", file="friend"), theirs.client("stranger", file="stranger")

    _shake_hands(server, ours, "server.local", friend)
    _shake_hands(server, ours, "127.0.0.1", friend)
    for refused in (
        lambda: _shake_hands(server, theirs, "server.local", friend),
        lambda: _shake_hands(server, ours, "other.local", friend),
        lambda: _shake_hands(server, ours, "server.local", stranger),
        lambda: _shake_hands(friend, ours, "server.local", friend),
    ):
        with pytest.raises(ssl.SSLError):
            refused()


def _shake_hands(server: KeyPair, trusted: Authority, host: str, client: KeyPair) -> None:
    """Do a mutual TLS handshake in memory; the server trusts the CA that signed its certificate."""
    server_context = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cafile=str(server.certificate.with_name("ours.crt"))
    )
    server_context.verify_mode = ssl.CERT_REQUIRED
    server_context.load_cert_chain(server.certificate, server.key)
    client_context = ssl.create_default_context(cafile=str(trusted.certificate))
    client_context.load_cert_chain(client.certificate, client.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client_context.wrap_bio(to_client, to_server, server_hostname=host),
        server_context.wrap_bio(to_server, to_client, server_side=True),
    ]
    for side in sides * 3:  # TLS 1.3 completes after three rounds
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()


def test_keys_and_kubeconfigs_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    authority = Authority("ca", tmp_path)
    pair = authority.client("admin", file="admin")
    file = write_kubeconfig(
        tmp_path / "admin.kubeconfig", "https://127.0.0.1:1", authority.certificate, pair, "admin"
    )

    assert pair.key.stat().st_mode & 0o077 == 0
    assert file.stat().st_mode & 0o077 == 0
    assert json.loads(file.read_text())["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
