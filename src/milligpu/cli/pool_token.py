"""`milligpu pool token`: make, list and revoke the tokens that give access to a pool."""

import os
import secrets
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import click

from milligpu.cli.exit_codes import ExitCode
from milligpu.cli.output import OutputFormat, format_option, show_data, show_table
from milligpu.cli.pool_options import folder_option, parse_duration
from milligpu.model.errors import MilligpuError
from milligpu.model.policy import PRIORITY_MAX
from milligpu.model.units import Milli, parse_quantity, show_milli
from milligpu.remote.pool import read_pool
from milligpu.remote.revocation_store import exchange
from milligpu.remote.token_file import PoolAccess, encode_token_file, parse_server
from milligpu.remote.token_register import TokenRegister
from milligpu.remote.tokens import PoolTokenClaims


@click.group()
def token() -> None:
    """Make, list and revoke tokens."""


@token.command("create")
@click.argument("name")
@folder_option
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
def create(
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
    milli = None if quota is None else Milli(int(parse_quantity("--quota", quota) * 1000))
    now = int(time.time())
    ends = now + parse_duration("--expires", expires)
    claims = PoolTokenClaims(secrets.token_hex(8), name, now, ends, milli, priority_max)
    access = read_pool(folder).issue_token(claims, [parse_server("--server", each) for each in servers])
    TokenRegister(folder).add(claims, access.servers, now)
    text = encode_token_file(access)
    if output is None:
        sys.stdout.write(text)
        return
    with os.fdopen(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


@token.command("list")
@folder_option
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def list_tokens(*, folder: Path, output: OutputFormat) -> None:
    """List the tokens that the pool has made, and whether they still open sessions."""
    register = TokenRegister(folder)
    revoked, now = register.revocations(read_pool(folder)), time.time()
    rows = [
        {
            "id": each.claims.id,
            "name": each.claims.name,
            "state": str(each.state(revoked, now)),
            "expires": datetime.fromtimestamp(each.claims.expires, UTC).isoformat(timespec="seconds"),
            "quota": None if each.claims.quota is None else show_milli(each.claims.quota),
            "priority_max": each.claims.priority_max,
            "servers": list(each.servers),
        }
        for each in register.tokens()
    ]
    if output is not OutputFormat.TABLE:
        show_data(rows, output)
        return
    keys = ["id", "name", "state", "expires", "quota"]
    cells = [["-" if row[key] is None else str(row[key]) for key in keys] for row in rows]
    show_table([key.upper() for key in keys], cells, colors={"valid": "green", "revoked": "bold red"})


@token.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME|ID…")
@folder_option
@click.option("--server", "servers", multiple=True, metavar="HOST:PORT", help="Another server to send it to.")
@click.option("--plain", is_flag=True, help="Without TLS, to servers that run with --plain.")
def revoke(*, names: tuple[str, ...], folder: Path, servers: tuple[str, ...], plain: bool) -> int:
    """Revoke tokens by ID, or all tokens of NAME: their sessions end, and they open no more.

    The list of revoked tokens is signed, and sent to every server that a token of the pool names. Servers that do
    not answer now get it from the others, within a minute after they do. The exit code is 1 if none was reached.
    """
    authority = read_pool(folder)
    named = [parse_server("--server", each) for each in servers]
    text, made = TokenRegister(folder).revoke(authority, names, named, time.time())
    access = PoolAccess((), authority.pem, "")
    reached = 0
    for server in made.servers:
        try:
            ended = exchange(server, access, text, plain=plain).ended
        except MilligpuError as error:
            click.echo(f"milligpu: {error.message}", err=True)
            continue
        reached += 1
        click.echo(f"{server}: list {made.serial} taken, {ended} sessions ended")
    return ExitCode.OK if reached or not made.servers else ExitCode.CHECK_FAILED
