"""Tokens open sessions for the one who has them, in their pool, for their time; anything else is refused."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.units import Milli
from milligpu.remote.bitfusion import bitfusion_request
from milligpu.remote.pool import create_pool, read_pool
from milligpu.remote.token_file import PORT, decode_token_file, encode_token_file, parse_server
from milligpu.remote.tokens import LIFETIME_MAX_S, PoolTokenClaims, TokenRefused, sign_token, verify_token

KEY = ec.generate_private_key(ec.SECP256R1())
CLAIMS = PoolTokenClaims("1", "alice", 1000, 2000, Milli(1500), 10)
TOKEN = sign_token(CLAIMS, KEY)


def test_a_token_says_what_was_signed() -> None:
    assert verify_token(TOKEN, KEY.public_key(), 1500) == CLAIMS


@pytest.mark.parametrize("now", [2000, 10**9, 0])
def test_a_token_is_refused_outside_its_time(now: float) -> None:
    with pytest.raises(TokenRefused):
        verify_token(TOKEN, KEY.public_key(), now)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a.b",
        TOKEN[:-2],
        TOKEN + "A",
        TOKEN.replace(".", ""),
        "Ä.Ö",
        TOKEN.upper(),
        "x" * 10**6,
    ],
    # The key is new in every process, and pytest's workers compare the names of tests.
    ids=["empty", "dot", "short", "cut", "longer", "without a dot", "not ascii", "upper case", "huge"],
)
def test_whatever_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(TokenRefused):
        verify_token(text, KEY.public_key(), 1500)


def test_every_changed_character_is_noticed() -> None:
    for at, char in enumerate(TOKEN):
        changed = TOKEN[:at] + ("A" if char != "A" else "B") + TOKEN[at + 1 :]
        # The last characters of base64 hold bits that belong to no byte.
        try:
            assert verify_token(changed, KEY.public_key(), 1500) == CLAIMS
        except TokenRefused:
            continue


def test_a_token_of_another_pool_is_refused() -> None:
    with pytest.raises(TokenRefused, match="its signature is not the pool's"):
        verify_token(TOKEN, ec.generate_private_key(ec.SECP256R1()).public_key(), 1500)


@pytest.mark.parametrize(
    "claims",
    [
        PoolTokenClaims("1", "Alice!", 0, 10),
        PoolTokenClaims("1", "", 0, 10),
        PoolTokenClaims("1", "alice", 0, LIFETIME_MAX_S + 1),
        PoolTokenClaims("1", "alice", 10, 10),
        PoolTokenClaims("1", "alice", 0, 10, Milli(0)),
        PoolTokenClaims("1", "alice", 0, 10, None, 101),
    ],
)
def test_no_token_is_made_that_says_too_much(claims: PoolTokenClaims) -> None:
    with pytest.raises(BadRequest):
        sign_token(claims, KEY)


def test_a_pool_is_made_once_and_read_again(tmp_path: Path) -> None:
    pool = create_pool(tmp_path / "pool")
    assert create_pool(tmp_path / "pool").pem == pool.pem == read_pool(tmp_path / "pool").pem
    assert (tmp_path / "pool/authority.key").stat().st_mode & 0o77 == 0
    (tmp_path / "pool/authority.key").write_bytes(b"something else")
    with pytest.raises(BadFormat):
        read_pool(tmp_path / "pool")


def test_a_token_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    access = create_pool(tmp_path / "pool").issue_token(CLAIMS, ["gpu-1:7070", "[fd00::1]:9"])
    assert decode_token_file(encode_token_file(access)) == access


@pytest.mark.parametrize(
    ("text", "want"), [("gpu-1", f"gpu-1:{PORT}"), ("10.0.0.1:9", "10.0.0.1:9"), ("[::1]", f"[::1]:{PORT}")]
)
def test_an_address_without_a_port_has_the_default_one(text: str, want: str) -> None:
    assert parse_server("--servers", text) == want


@pytest.mark.parametrize("text", ["", "a b", "host:", "host:0", "host:65536", "::1", "http://host", "host:-1"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_server("--servers", text)


def test_bitfusions_options_become_a_share() -> None:
    half = bitfusion_request("t", ("true",), "2", "0.5", None)
    assert (half.count, half.milli, half.mib) == (2, 500, None)
    memory = bitfusion_request("t", ("true",), "1", None, "1000")
    assert (memory.milli, memory.mib) == (None, 954)
    whole = bitfusion_request("t", ("true",), "1", None, None)
    assert (whole.milli, whole.mib) == (1000, None)


@pytest.mark.parametrize(
    ("count", "fraction", "megabytes"),
    [
        (None, None, None),
        ("0", None, None),
        ("1", "1.5", None),
        ("1", "0", None),
        ("1", None, "-1"),
        ("1", "0.5", "1"),
    ],
)
def test_bitfusions_options_that_make_no_sense_are_refused(
    count: str | None, fraction: str | None, megabytes: str | None
) -> None:
    with pytest.raises(BadRequest):
        bitfusion_request("t", ("true",), count, fraction, megabytes)
