"""`milligpu pool`: the GPU servers that clients know, and the tokens that give access to them."""

import os
import re
import secrets
import sys
import time
from pathlib import Path

import click

from milligpu.cli.output import OutputFormat, format_option, show_data, show_table
from milligpu.cli.remote_options import pool_access, remote_options
from milligpu.model.errors import BadRequest, MilligpuError
from milligpu.model.policy import PRIORITY_MAX
from milligpu.model.units import Milli, parse_quantity, show_milli
from milligpu.remote.client import list_gpus
from milligpu.remote.protocol import GpuList
from milligpu.remote.token_file import encode_token_file, parse_server

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FOLDER = click.option(
    "--pool",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("/etc/milligpu/pool"),
    show_default=True,
    metavar="DIR",
    help="Directory of the pool's authority.",
)


def parse_duration(field: str, text: str) -> int:
    """Read a time such as 30d or 12h, in seconds."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if match is None or int(match[1]) == 0:
        raise BadRequest(field, text, "a time such as 12h or 30d")
    return int(match[1]) * _UNITS[match[2]]


@click.group()
def command() -> None:
    """Make and use pools of GPU servers."""


@command.command()
@_FOLDER
def create(folder: Path) -> None:
    """Make a pool's authority, unless there is one. Whoever has it can make tokens: keep it as a private key."""
    from milligpu.remote.pool import create_pool

    create_pool(folder)
    click.echo(f"milligpu: {folder}: authority of the pool; copy the directory to each of its servers", err=True)


@command.group()
def token() -> None:
    """Make tokens."""


@token.command("create")
@click.argument("name")
@_FOLDER
@click.option(
    "--server", "servers", multiple=True, metavar="HOST:PORT", help="A server of the pool; can be repeated."
)
@click.option(
    "--expires", default="30d", show_default=True, metavar="TIME", help="How long it is valid: at most 30d."
)
@click.option("--quota", metavar="GPUS", help="Most compute that it holds at each server at a time, such as 1.5.")
@click.option(
    "--priority-max",
    type=click.IntRange(0, PRIORITY_MAX),
    default=0,
    show_default=True,
    metavar="NUMBER",
    help="Highest GPU priority that its sessions may have.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write it here, not to stdout."
)
def token_create(
    *,
    name: str,
    folder: Path,
    servers: tuple[str, ...],
    expires: str,
    quota: str | None,
    priority_max: int,
    output: Path | None,
) -> None:
    """Make a token file for NAME, with which clients open sessions."""
    from milligpu.remote.pool import read_pool
    from milligpu.remote.tokens import PoolTokenClaims

    milli = None if quota is None else Milli(int(parse_quantity("--quota", quota) * 1000))
    now = int(time.time())
    ends = now + parse_duration("--expires", expires)
    claims = PoolTokenClaims(secrets.token_hex(8), name, now, ends, milli, priority_max)
    access = read_pool(folder).issue_token(claims, [parse_server("--server", each) for each in servers])
    text = encode_token_file(access)
    if output is None:
        sys.stdout.write(text)
        return
    with os.fdopen(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


@command.command("list")
@remote_options
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def list_command(*, servers: str | None, token_file: Path | None, plain: bool, output: OutputFormat) -> int:
    """List the GPUs of the servers, and what is free of each."""
    access = pool_access(servers, token_file)
    return show_gpus(list_gpus(access, plain=plain), access.servers, output)


def show_gpus(found: list[GpuList | MilligpuError], servers: tuple[str, ...], output: OutputFormat) -> int:
    """Print the GPUs of each server; the exit code says whether any answered."""
    rows = [
        {
            "server": server,
            "machine": answer.machine,
            "index": gpu.index,
            "uuid": gpu.uuid,
            "model": gpu.model,
            "memory_mib": gpu.mib,
            "free": show_milli(Milli(gpu.free_milli)),
            "free_mib": gpu.free_mib,
            "state": gpu.state,
        }
        for server, answer in zip(servers, found, strict=True)
        if isinstance(answer, GpuList)
        for gpu in answer.gpus
    ]
    for answer in found:
        if isinstance(answer, MilligpuError):
            click.echo(f"milligpu: {answer.message}", err=True)
    if output is OutputFormat.TABLE:
        heads = ["SERVER", "GPU", "MODEL", "MEMORY", "FREE", "FREE MEMORY", "STATE"]
        keys = ["server", "index", "model", "memory_mib", "free", "free_mib", "state"]
        show_table(heads, [[str(row[key]) for key in keys] for row in rows])
    else:
        show_data(rows, output)
    return 0 if any(isinstance(answer, GpuList) for answer in found) else 1
