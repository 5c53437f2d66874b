"""`bitfusion`: Bitfusion's commands, served by GPU servers of milligpu."""

import sys
from pathlib import Path

import click

from milligpu import __version__
from milligpu.cli.main import explain_error
from milligpu.cli.output import OutputFormat
from milligpu.cli.remote_options import pool_access, remote_options
from milligpu.cli.run_remote import run_remote
from milligpu.model.errors import BadRequest
from milligpu.remote.bitfusion import bitfusion_request


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bitfusion", message="bitfusion of milligpu %(version)s")
def cli() -> None:
    """Use GPUs of other machines, with the commands of Bitfusion's client."""


@cli.command(context_settings={"allow_interspersed_args": False})
@click.option("-n", "--num_gpus", "count", metavar="COUNT", help="Number of GPUs.")
@click.option("-p", "--partial", "fraction", metavar="FRACTION", help="Fraction of each GPU, such as 0.5.")
@click.option("-m", "--partial_memory", "megabytes", metavar="MB", help="Memory of each GPU, in megabytes.")
@click.option(
    "-l",
    "--server_list",
    "server_list",
    metavar="HOST:PORT;…",
    help="GPU servers to ask, as Bitfusion writes them.",
)
@remote_options
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND…")
def run(
    *,
    count: str | None,
    fraction: str | None,
    megabytes: str | None,
    server_list: str | None,
    servers: str | None,
    token_file: Path | None,
    plain: bool,
    argv: tuple[str, ...],
) -> int:
    """Run a command with GPUs of a GPU server."""
    if server_list is not None and servers is not None:
        raise BadRequest("--server_list", server_list, "left out where --servers is given")
    access = pool_access(servers if server_list is None else server_list.replace(";", ","), token_file)
    request = bitfusion_request(access.token, argv, count, fraction, megabytes)
    return run_remote(access, request, f"{request.count} GPUs", None, plain=plain)


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
