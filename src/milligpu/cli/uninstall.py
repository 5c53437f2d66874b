"""`milligpu uninstall`: what is left to do before and after milligpu's objects are deleted."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from milligpu.agent.settings import AgentSettings
from milligpu.cli.agent import dir_option

if TYPE_CHECKING:
    from milligpu.kube.api import ApiClient

# Pods have 30 s to end, and a large image is pulled within a minute.
_DEADLINE_S = 120.0

_DEFAULTS = AgentSettings("")

_kubeconfig = click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
_timeout = click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=_DEADLINE_S,
    show_default=True,
    metavar="SECONDS",
    help="Seconds to wait until milligpu's programs have ended.",
)


@click.group()
def command() -> None:
    """Remove what milligpu leaves behind. `helm uninstall` runs these commands in the cluster.

    Without Helm: `announce`, then delete the objects of `milligpu manifests`, then `node` on each node, then
    `cluster`.
    """


@command.command()
@_kubeconfig
def announce(kubeconfig: str | None) -> None:
    """Write an event on each pod that still uses a GPU, or waits for one in a queue."""
    from milligpu.installation.uninstall import announce as run

    asyncio.run(_with_api(kubeconfig, lambda api: run(api, click.echo)))


@command.command()
@click.option(
    "--namespace", "-n", default="milligpu", show_default=True, metavar="NAME", help="Namespace of milligpu."
)
@_timeout
@_kubeconfig
def cluster(namespace: str, timeout: float, kubeconfig: str | None) -> None:
    """Remove milligpu's annotations, labels, taints and conditions of nodes, gates of pods, and its Leases.

    Waits until milligpu's programs have ended, because they would write all of it again.
    """
    from milligpu.installation.uninstall import clean_cluster

    asyncio.run(_with_api(kubeconfig, lambda api: clean_cluster(api, namespace, click.echo, timeout)))


@command.command()
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True),
    default=Path("/"),
    metavar="DIR",
    help="Where the node's directories are mounted, in a container.",
)
@dir_option("--kubelet-dir", str(_DEFAULTS.kubelet), "Directory of the kubelet.")
@dir_option("--cdi-dir", str(_DEFAULTS.cdi), "Directory of the container runtime's CDI files.")
@dir_option("--state-dir", str(_DEFAULTS.state), "Directory of the agent's files that survive a reboot.")
@dir_option("--run-dir", str(_DEFAULTS.run), "Directory of the agent's other files.")
@_timeout
def node(*, root: Path, kubelet_dir: Path, cdi_dir: Path, state_dir: Path, run_dir: Path, timeout: float) -> None:
    """Remove the agent's files from this node, once the agent has ended; with the same directories as the agent."""
    from milligpu.installation.node_files import remove_files, under

    settings = AgentSettings("", kubelet=kubelet_dir, cdi=cdi_dir, state=state_dir, run=run_dir)
    for path in remove_files(under(root, settings), timeout):
        click.echo(f"removed {path}")


async def _with_api(kubeconfig: str | None, run: Callable[["ApiClient"], Awaitable[None]]) -> None:
    from milligpu.kube.api import ApiClient
    from milligpu.kube.config import find_cluster

    async with ApiClient(find_cluster(kubeconfig)) as api:
        await run(api)
