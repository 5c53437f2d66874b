"""The options of commands that use a pool's authority."""

import re
import time
from pathlib import Path

import click

from milligpu.cli.remote_options import pool_access
from milligpu.model.errors import BadRequest
from milligpu.remote.pool import DEFAULT_FOLDER, admin_access
from milligpu.remote.token_file import PoolAccess, parse_server
from milligpu.remote.token_register import TokenRegister

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

folder_option = click.option(
    "--pool",
    "folder",
    type=click.Path(path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    metavar="DIR",
    help="Directory of the pool's authority.",
)
admin_option = click.option(
    "--pool",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Ask as the pool's admin, with the authority in this directory, and see all sessions.",
)


def parse_duration(field: str, text: str) -> int:
    """Read a time such as 30d or 12h, in seconds."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if match is None or int(match[1]) == 0:
        raise BadRequest(field, text, "a time such as 12h or 30d")
    return int(match[1]) * _UNITS[match[2]]


def known_servers(folder: Path, named: str | None) -> tuple[str, ...]:
    """The servers that an option names, or those of all tokens that the pool has made."""
    if named is not None:
        return tuple(parse_server("--servers", each) for each in named.split(","))
    found = dict.fromkeys(server for each in TokenRegister(folder).tokens() for server in each.servers)
    if not found:
        raise BadRequest("--servers", None, "HOST:PORT, because no token of the pool names a server")
    return tuple(found)


def access_of(folder: Path | None, servers: str | None, token_file: Path | None) -> PoolAccess:
    """The access of an admin where the authority's directory is named, else that of a token file."""
    if folder is None:
        return pool_access(servers, token_file)
    return admin_access(folder, known_servers(folder, servers), time.time())
