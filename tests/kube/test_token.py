"""A token that is replaced in its file is used at once; what it says about itself can be read."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvloop
import yaml
from lightkube.config.models import User

from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.kube.config import find_cluster
from milligpu.kube.token import BearerToken, TokenClaims, read_claims
from milligpu.model.errors import Unavailable


def write_kubeconfig(folder: Path, url: str, **user: str) -> str:
    file = folder / "kubeconfig"
    found = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file.write_text(yaml.safe_dump(found))
    return str(file)


def with_server(folder: Path, good: str, use: Callable[[ApiClient], Awaitable[Any]]) -> Any:
    """Use a client whose token is in a file, against a server that takes one token only."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            line = b"200 OK" if f"Bearer {good}\r\n".encode() in head else b"401 Unauthorized"
            writer.write(b"HTTP/1.1 " + line + b"\r\nContent-Length: 3\r\n\r\n{}\n")

    async def run() -> Any:
        async with asyncio.timeout(30), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            config = find_cluster(write_kubeconfig(folder, url, tokenFile="token"))
            async with ApiClient(config, clock=lambda: 0.0) as api:
                return await use(api)

    return uvloop.run(run())


def test_a_token_that_was_replaced_is_read_again_when_the_server_refuses_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")

    async def use(api: ApiClient) -> Any:
        with pytest.raises(ApiRefused, match="401"):
            await api.get("/a")
        (tmp_path / "token").write_text("new\n")
        return await asyncio.gather(*(api.get("/b") for _ in range(20)))

    assert with_server(tmp_path, "new", use) == [b"{}\n"] * 20


def test_a_watch_uses_the_new_token_at_its_next_try(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")

    async def lines(api: ApiClient) -> list[list[bytes]]:
        return [each async for each in api.lines("/w", 5)]

    async def use(api: ApiClient) -> Any:
        with pytest.raises(ApiRefused, match="401"):
            await lines(api)
        (tmp_path / "token").write_text("new")
        with pytest.raises(ApiRefused, match="401"):
            await lines(api)
        return await lines(api)

    assert with_server(tmp_path, "new", use) == [[b"{}"]]


def test_a_token_is_read_again_every_minute_and_kept_while_its_file_is_away(tmp_path: Path) -> None:
    file, now = tmp_path / "token", [0.0]
    file.write_text("first")
    token = BearerToken(User(token_file=str(file)), lambda: now[0])
    assert token.read() == "first"
    file.write_text("second")
    now[0] = 59.0
    assert token.read() == "first"
    now[0] = 61.0
    assert token.read() == "second"
    file.unlink()
    now[0] = 200.0
    assert token.read() == "second"


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no token: .*/nowhere: No such file"):
        BearerToken(User(token_file=str(tmp_path / "nowhere"))).read()


def jwt(payload: object) -> str:
    def part(found: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(found).encode()).decode().rstrip("=")

    return f"{part({'alg': 'RS256'})}.{part(payload)}.c2ln"


def test_the_claims_of_a_token_name_its_node_and_its_end() -> None:
    bound = {"exp": 1_900_000_000, "kubernetes.io": {"namespace": "milligpu", "node": {"name": "n1", "uid": "u"}}}
    assert read_claims(jwt(bound)) == TokenClaims(datetime(2030, 3, 17, 17, 46, 40, tzinfo=UTC), "n1")
    assert read_claims(jwt({"iss": "x"})) == TokenClaims(None, "")


@pytest.mark.parametrize("text", ["", "secret", "a.b.c", "a.!!.c", f"a.{jwt([])}.c", jwt({"exp": "soon"})])
def test_a_token_of_another_kind_has_no_claims(text: str) -> None:
    assert read_claims(text) is None
