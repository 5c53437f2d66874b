"""`milligpu server install`: make this machine a GPU server that starts with it."""

import secrets
import subprocess
import sys
import time
from pathlib import Path

import click

from milligpu.cli.exit_codes import ExitCode
from milligpu.cli.pool_options import folder_option
from milligpu.remote.install import UNIT, UNITS, NewFile, is_same, unit_text, write_new
from milligpu.remote.pool import PoolAuthority, create_pool, holds_authority
from milligpu.remote.token_file import PORT, encode_token_file, parse_server
from milligpu.remote.token_register import TokenRegister
from milligpu.remote.tokens import LIFETIME_MAX_S, PoolTokenClaims

_SYSTEMD = Path("/run/systemd/system")
"""Exists where systemd runs the machine."""
_STARTED = ("daemon-reload", f"enable --now {UNIT}")


@click.command()
@click.option(
    "--address",
    required=True,
    metavar="HOST:PORT",
    help="Address at which clients reach this server; it is written into the token.",
)
@click.option(
    "--listen", default=f"0.0.0.0:{PORT}", show_default=True, metavar="ADDRESS:PORT", help="Address to listen on."
)
@folder_option
@click.option(
    "--token",
    "name",
    default="first",
    show_default=True,
    metavar="NAME",
    help="Name of the first token, which is made with a new pool.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("/etc/milligpu/token/token.json"),
    show_default=True,
    metavar="FILE",
    help="Where the first token is written, for the clients.",
)
@click.option(
    "--unit-dir",
    "units",
    type=click.Path(path_type=Path),
    default=UNITS,
    show_default=True,
    metavar="DIR",
    help="Directory for the systemd unit.",
)
@click.option("--yes", is_flag=True, help="Do not ask before anything is written.")
def install(*, address: str, listen: str, folder: Path, name: str, output: Path, units: Path, yes: bool) -> int:
    """Install the GPU server on this machine: the pool's authority, a first token, and a systemd unit.

    Everything is shown before it is written, and nothing is written without a yes. Run again, it changes only what
    differs; the authority and the tokens of a pool are never replaced.
    """
    server = parse_server("--address", address)
    command = [
        str(Path(sys.executable).with_name("milligpu")),
        "server",
        "--listen",
        parse_server("--listen", listen),
    ]
    unit = NewFile(units / UNIT, unit_text([*command, "--pool", str(folder)]), "systemd unit")
    is_new = not holds_authority(folder)
    files = [] if is_same(unit) else [unit]
    _show(files, folder if is_new else None, output, name)
    if not files and not is_new:
        click.echo("milligpu: all is installed already", err=True)
        return ExitCode.OK
    if not yes and not click.confirm("Write this?", err=True):
        click.echo("milligpu: nothing was written", err=True)
        return ExitCode.OK
    if is_new:
        write_new(_first_token(create_pool(folder), folder, name, server, output))
    for each in files:
        write_new(each)
    return _start(units)


def _show(files: list[NewFile], pool: Path | None, output: Path, name: str) -> None:
    if pool is not None:
        click.echo(f"# {pool}: the authority of a new pool, with its private key (mode 600)")
        click.echo(f"# {output}: a token of {name!r} for clients, valid for 30 days (mode 600)")
    for each in files:
        click.echo(f"# {each.path}: {each.what}\n{each.text}")


def _first_token(authority: PoolAuthority, folder: Path, name: str, server: str, output: Path) -> NewFile:
    now = int(time.time())
    claims = PoolTokenClaims(secrets.token_hex(8), name, now, now + LIFETIME_MAX_S)
    TokenRegister(folder).add(claims, (server,), now)
    return NewFile(output, encode_token_file(authority.issue_token(claims, (server,))), "token", is_secret=True)


def _start(units: Path) -> int:
    """Start the server, unless the unit is not where this machine's systemd finds it."""
    if not _SYSTEMD.exists() or units != UNITS:
        commands = " && ".join(f"systemctl {each}" for each in _STARTED)
        click.echo(f"milligpu: installed; start it with: {commands}", err=True)
        return ExitCode.OK
    for each in _STARTED:
        done = subprocess.run(["systemctl", *each.split()], check=False)
        if done.returncode:
            return ExitCode.UNAVAILABLE
    click.echo("milligpu: installed and started; check it with: milligpu doctor --server", err=True)
    return ExitCode.OK
