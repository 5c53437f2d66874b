"""`bitfusion`: Bitfusion's commands, served by GPU servers of milligpu."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from milligpu import __version__
from milligpu.cli.main import explain_error
from milligpu.cli.output import OutputFormat
from milligpu.cli.remote_options import pool_access, remote_options
from milligpu.cli.replace_process import replace_process
from milligpu.cli.run_remote import run_remote, wait_for_session
from milligpu.model.errors import BadRequest
from milligpu.remote.bitfusion import bitfusion_request
from milligpu.remote.client import read_servers, remote_environment
from milligpu.remote.filters import GpuFilter, parse_filter
from milligpu.remote.held_gpus import GpuHold
from milligpu.remote.protocol import OpenSession
from milligpu.remote.token_file import PoolAccess

_F = TypeVar("_F", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bitfusion", message="bitfusion of milligpu %(version)s")
def cli() -> None:
    """Use GPUs of other machines, with the commands of Bitfusion's client."""


def _gpu_options(function: _F) -> _F:
    """Add the options that say how many GPUs, how much of each, and which."""
    options = [
        click.option("-n", "--num_gpus", "count", metavar="COUNT", help="Number of GPUs."),
        click.option("-p", "--partial", "fraction", metavar="FRACTION", help="Fraction of each GPU, such as 0.5."),
        click.option("-m", "--partial_memory", "megabytes", metavar="MB", help="Memory of each GPU, in megabytes."),
        click.option(
            "-l",
            "--server_list",
            "server_list",
            metavar="HOST:PORT;…",
            help="GPU servers to ask, as Bitfusion writes them.",
        ),
        click.option(
            "-f",
            "--filter",
            "filters",
            multiple=True,
            metavar="KEY=VALUE",
            help="Only such GPUs: device.name='NVIDIA A10', server.cuda-version>=12.4; can be repeated.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return remote_options(function)


def _asked(
    argv: tuple[str, ...],
    *,
    count: str | None,
    fraction: str | None,
    megabytes: str | None,
    server_list: str | None,
    filters: tuple[str, ...],
    servers: str | None,
    token_file: Path | None,
) -> tuple[PoolAccess, OpenSession, list[GpuFilter]]:
    """Read the options: whom to ask, what for, and which GPUs will do."""
    if server_list is not None and servers is not None:
        raise BadRequest("--server_list", server_list, "left out where --servers is given")
    wanted = [parse_filter(each) for each in filters]
    access = pool_access(servers if server_list is None else server_list.replace(";", ","), token_file)
    return access, bitfusion_request(access.token, argv, count, fraction, megabytes), wanted


@cli.command(context_settings={"allow_interspersed_args": False})
@_gpu_options
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND…")
def run(*, argv: tuple[str, ...], plain: bool, **options: Any) -> int:
    """Run a command with GPUs of a GPU server."""
    access, request, filters = _asked(argv, **options)
    return run_remote(access, request, f"{request.count} GPUs", None, plain=plain, filters=filters)


@cli.command("request_gpus")
@_gpu_options
def request_gpus(*, plain: bool, **options: Any) -> None:
    """Hold GPUs of a GPU server for several commands: see `bitfusion client`."""
    access, request, filters = _asked(("bitfusion", "request_gpus"), **options)
    hold = GpuHold.own(os.environ)
    hold.check_free()
    described = f"{request.count} GPUs"
    session = wait_for_session(access, request, described, None, plain=plain, filters=filters)
    hold.begin(session, described)
    server = session.connection.server
    click.echo(f"milligpu: {described} of {server} are held until: bitfusion release_gpus", err=True)


@cli.command(context_settings={"allow_interspersed_args": False})
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND…")
def client(*, argv: tuple[str, ...]) -> int:
    """Run a command with the GPUs that `bitfusion request_gpus` holds."""
    held = GpuHold.own(os.environ).read()
    return replace_process(argv, remote_environment(held.variables, os.environ))


@cli.command("release_gpus")
def release_gpus() -> None:
    """Release the GPUs that `bitfusion request_gpus` holds."""
    if not GpuHold.own(os.environ).end():
        click.echo("milligpu: no GPUs were held", err=True)


@cli.command("list_gpus")
@remote_options
def list_gpus_command(*, servers: str | None, token_file: Path | None, plain: bool) -> int:
    """List the GPUs of the servers."""
    from milligpu.cli.pool import show_gpus
    from milligpu.remote.client import list_gpus

    access = pool_access(servers, token_file)
    return show_gpus(list_gpus(access, plain=plain), OutputFormat.TABLE)


@cli.command()
@remote_options
def smi(*, servers: str | None, token_file: Path | None, plain: bool) -> int:
    """Show what the servers' GPUs do: temperature, power, memory and utilization."""
    from milligpu.cli.pool import show_gpu_use

    return show_gpu_use(read_servers(pool_access(servers, token_file), plain=plain))


@cli.command()
@remote_options
def health(*, servers: str | None, token_file: Path | None, plain: bool) -> int:
    """Report the health of the servers and of this machine."""
    from milligpu.cli.health import show_health

    return show_health(servers, token_file, OutputFormat.TABLE, plain=plain, local=False)


def main() -> None:
    """Run the command line; errors are shown as those of `milligpu`."""
    try:
        result = cli.main(prog_name="bitfusion", standalone_mode=False)
    except Exception as error:
        sys.exit(explain_error("bitfusion", error))
    sys.exit(result if isinstance(result, int) else 0)
