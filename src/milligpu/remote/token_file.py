"""The file that a client gets: the token, the pool's servers, and the authority that proves them."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from milligpu.model.errors import BadRequest, Unavailable
from milligpu.wire.documents import Document, DocumentFormat, encode

TOKEN_FILE = DocumentFormat("token file")
VARIABLE = "MILLIGPU_TOKEN_FILE"
MOUNTED = Path("/etc/milligpu/token/token.json")
PORT = 7070
"""The port of a server whose address names none."""

_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^\s:\[\],/]+)(:(?P<port>[0-9]{1,5}))?")
_PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class PoolAccess:
    """What a client needs to open sessions."""

    servers: tuple[str, ...]
    """HOST:PORT each."""
    authority: str
    """The pool's CA, in PEM."""
    token: str


class _TokenFile(Document, frozen=True):
    servers: list[str]
    authority: str
    token: str


def parse_server(field: str, text: str) -> str:
    """Read an address as HOST:PORT; without a port it is the default one."""
    match = _ADDRESS.fullmatch(text.strip())
    port = int(match["port"] or PORT) if match else 0
    if match is None or not 0 < port <= _PORT_MAX:
        raise BadRequest(field, text, f"HOST or HOST:PORT, such as gpu-1.example.com:{PORT}")
    return f"{match['host']}:{port}"


def encode_token_file(access: PoolAccess) -> str:
    return encode(_TokenFile(TOKEN_FILE.version, list(access.servers), access.authority, access.token)) + "\n"


def decode_token_file(text: str | bytes) -> PoolAccess:
    """Read a token file, or raise BadFormat."""
    raw = TOKEN_FILE.decode(text, _TokenFile)
    try:
        servers = tuple(parse_server("servers", each) for each in raw.servers)
    except BadRequest as error:
        raise TOKEN_FILE.refuse(error) from None
    return PoolAccess(servers, raw.authority, raw.token)


def token_path(given: Path | None, env: Mapping[str, str]) -> Path:
    """The file that an option names, or the environment, or the user's own, or where a pod has its Secret."""
    if given is not None:
        return given
    if env.get(VARIABLE):
        return Path(env[VARIABLE])
    config = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or "/", ".config")
    own = Path(config, "milligpu", "token.json")
    return MOUNTED if MOUNTED.exists() and not own.exists() else own


def read_token_file(path: Path) -> PoolAccess:
    try:
        return decode_token_file(path.read_bytes())
    except OSError as error:
        raise Unavailable(
            f"cannot read the token file {path}: {error.strerror}",
            hint="the admin of the GPU servers makes one: milligpu pool token create NAME",
        ) from None
