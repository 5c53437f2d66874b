"""`milligpu server`: share this machine's GPUs with programs on other machines."""

import socket
from pathlib import Path

import click

from milligpu.cli.pool_options import parse_duration
from milligpu.cli.server_install import install
from milligpu.model.attach import parse_server_name
from milligpu.model.errors import BadRequest
from milligpu.remote.pool import DEFAULT_FOLDER, read_pool
from milligpu.remote.server import ClusterSettings, ServerSettings, run
from milligpu.remote.token_file import PORT, parse_server


@click.group(invoke_without_command=True)
@click.option(
    "--listen",
    default=f"0.0.0.0:{PORT}",
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Address on which clients reach this server.",
)
@click.option(
    "--pool",
    "folder",
    type=click.Path(path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    metavar="DIR",
    help="Directory of the pool's authority, made by `milligpu pool create`; each server of a pool has a copy.",
)
@click.option(
    "--state-dir",
    "state",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/milligpu/server"),
    show_default=True,
    metavar="DIR",
    help="Directory for programs that clients sent, so that they need not send them again.",
)
@click.option(
    "--plain",
    is_flag=True,
    help="Without TLS: whoever is on the network can read tokens and data.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="HOST:PORT",
    help="Another server of the pool, to exchange revoked tokens with; can be repeated.",
)
@click.option(
    "--exchange-interval",
    type=click.FloatRange(1, 60),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between exchanges of revoked tokens with other servers.",
)
@click.option(
    "--cluster",
    is_flag=True,
    help="Give shares to pods of a Kubernetes cluster (annotation milligpu.dev/attach), and report to it.",
)
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Kubeconfig of that cluster (default: the pod's service account, else as kubectl).",
)
@click.option("--name", metavar="NAME", help="Name of this server's GpuServer object (default: the host name).")
@click.option(
    "--address",
    metavar="HOST:PORT",
    help="Address at which pods reach this server; only with --cluster (default: the host name and the port).",
)
@click.option("--idle-limit", metavar="TIME", help="End sessions that leave their GPU unused for so long: 30m.")
@click.pass_context
def command(
    context: click.Context,
    *,
    listen: str,
    folder: Path,
    state: Path,
    plain: bool,
    peers: tuple[str, ...],
    exchange_interval: float,
    idle_limit: str | None,
    cluster: bool,
    kubeconfig: str | None,
    name: str | None,
    address: str | None,
) -> int | None:
    """Serve GPUs over the network: clients run `milligpu run --remote` or `bitfusion run` with a token of the pool.

    Sessions get shares from this machine's session service, like local commands, and are held to them here.
    """
    if context.invoked_subcommand is not None:
        return None
    host, _, port = parse_server("--listen", listen).rpartition(":")
    if cluster and plain:
        raise BadRequest("--plain", None, "left out with --cluster: the tokens of pods need TLS")
    if not cluster and (kubeconfig or name or address):
        raise BadRequest("--cluster", None, "set, because --kubeconfig, --name or --address is given")
    settings = ServerSettings(
        host.strip("[]"),
        int(port),
        state,
        folder,
        plain,
        tuple(parse_server("--peer", each) for each in peers),
        exchange_interval,
        None if idle_limit is None else parse_duration("--idle-limit", idle_limit),
        _cluster(kubeconfig, name, address, port) if cluster else None,
    )
    return run(settings, read_pool(folder))


command.add_command(install)


def _cluster(kubeconfig: str | None, name: str | None, address: str | None, port: str) -> ClusterSettings:
    host = socket.gethostname()
    reached = parse_server("--address", address or f"{host}:{port}")
    return ClusterSettings(parse_server_name("--name", name or host.lower()), reached, kubeconfig)
