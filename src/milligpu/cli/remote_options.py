"""The options of commands that ask GPU servers."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from milligpu.model.errors import BadRequest
from milligpu.remote.token_file import PoolAccess, parse_server, read_token_file, token_path

_F = TypeVar("_F", bound=Callable[..., Any])


def remote_options(function: _F) -> _F:
    """Add `--servers`, `--token` and `--plain`; `pool_access` makes of them what a client needs."""
    options = [
        click.option(
            "--servers",
            metavar="HOST:PORT,…",
            help="GPU servers to ask, instead of those in the token file.",
        ),
        click.option(
            "--token",
            "token_file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Token file (default: $MILLIGPU_TOKEN_FILE, ~/.config/milligpu/token.json or "
            "/etc/milligpu/token/token.json).",
        ),
        click.option("--plain", is_flag=True, help="Without TLS; the server must run with --plain, too."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def pool_access(servers: str | None, token_file: Path | None) -> PoolAccess:
    """Read the token file; servers that were named replace its own."""
    access = read_token_file(token_path(token_file, os.environ))
    if servers is not None:
        named = tuple(parse_server("--servers", each) for each in servers.split(","))
        access = replace(access, servers=named)
    if not access.servers:
        raise BadRequest("--servers", None, "HOST:PORT, because the token file names no server")
    return access
