"""`milligpu doctor`: check that a node is ready for the agent."""

import asyncio
from pathlib import Path

import click

from milligpu.agent.settings import AgentSettings
from milligpu.cli.agent import node_options
from milligpu.cli.check_table import CHECK_COLORS, check_rows
from milligpu.cli.exit_codes import ExitCode
from milligpu.cli.output import OutputFormat, format_option, show_data, show_table
from milligpu.model.errors import BadRequest
from milligpu.remote.token_file import PORT, parse_server

_FIELDS = ("group", "name", "level", "result", "message", "fix")


@click.command()
@click.option("--cluster", is_flag=True, help="Check a cluster before milligpu is installed, instead of this node.")
@click.option(
    "-n",
    "--namespace",
    default="milligpu",
    show_default=True,
    metavar="NAME",
    help="Namespace in which milligpu will be installed; with --cluster.",
)
@click.option("--server", is_flag=True, help="Check a GPU server (milligpu server), instead of a node.")
@click.option(
    "--server-address",
    default=f"127.0.0.1:{PORT}",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of that server.",
)
@click.option(
    "--pool",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("/etc/milligpu/pool"),
    show_default=True,
    metavar="DIR",
    help="Directory of the pool's authority; with --server.",
)
@node_options
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def command(
    *,
    cluster: bool,
    namespace: str,
    server: bool,
    server_address: str,
    folder: Path,
    settings: AgentSettings,
    output: OutputFormat,
) -> int:
    """Check that this node is ready for the agent, with the same options as the agent.

    Checks the driver, CDI, the container runtime, the kubelet, permissions in the cluster, other GPU plugins and
    the agent. With --cluster, looks at a cluster before an installation: versions, permissions, pod security,
    container runtimes, and which plugins offer GPUs now. With --server, checks that this machine serves its GPUs
    over the network: the pool's authority, the systemd unit, the server's answer, the driver and the GPUs.

    Each failed check suggests a fix. The exit code is 1 if a check fails; warnings do not count.
    """
    if cluster and server:
        raise BadRequest("--cluster", None, "left out where --server is given")
    if server:
        from milligpu.checks.gpu_server import check_gpu_server

        address = parse_server("--server-address", server_address)
        results = asyncio.run(check_gpu_server(folder, address))
    elif cluster:
        from milligpu.checks.before_install import check_cluster

        results = asyncio.run(check_cluster(settings.kubeconfig, namespace))
    else:
        from milligpu.checks.doctor import run_node_checks

        results = asyncio.run(run_node_checks(settings))
    if output is OutputFormat.TABLE:
        show_table(["GROUP", "CHECK", "RESULT", "MESSAGE"], check_rows(results), colors=CHECK_COLORS)
    else:
        show_data([{field: str(getattr(each, field)) for field in _FIELDS} for each in results], output)
    return ExitCode.CHECK_FAILED if any(each.is_error for each in results) else ExitCode.OK
