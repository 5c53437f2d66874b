"""`milligpu agent`: what runs on every node with GPUs."""

import os
import socket
from pathlib import Path

import click


@click.command()
@click.option("--node", default="", help="The node's name in the cluster; default: NODE_NAME, else the host's.")
@click.option("--kubeconfig", metavar="FILE", help="Default: the pod's service account, else as kubectl.")
@click.option("--kubelet-dir", type=click.Path(path_type=Path), default=Path("/var/lib/kubelet"), show_default=True)
@click.option("--cdi-dir", type=click.Path(path_type=Path), default=Path("/var/run/cdi"), show_default=True)
@click.option("--state-dir", type=click.Path(path_type=Path), default=Path("/var/lib/milligpu"), show_default=True)
@click.option("--run-dir", type=click.Path(path_type=Path), default=Path("/run/milligpu"), show_default=True)
@click.option("--listen", default="0.0.0.0:9400", show_default=True, help="For metrics and statistics.")
def command(  # noqa: PLR0917 - as click calls it
    node: str,
    kubeconfig: str | None,
    kubelet_dir: Path,
    cdi_dir: Path,
    state_dir: Path,
    run_dir: Path,
    listen: str,
) -> None:
    """Offer this node's GPUs to Kubernetes and attach them to the pods that were granted a share, until SIGTERM."""
    from milligpu.node import service  # noqa: PLC0415 - gRPC and the rest are not for the other commands
    from milligpu.node.settings import Settings  # noqa: PLC0415

    name = node or os.environ.get("NODE_NAME") or socket.gethostname()
    service.main(Settings(name, kubeconfig, kubelet_dir, cdi_dir, state_dir, run_dir, listen))
