"""`milligpu agent`: what runs on every machine with GPUs."""

import os
import socket
from pathlib import Path

import click


@click.command()
@click.option("--local", is_flag=True, help="Without Kubernetes: for the commands of this machine's users.")
@click.option("--kill-outside", is_flag=True, help="With --local: end processes that use more than their share.")
@click.option("--node", default="", help="The node's name in the cluster; default: NODE_NAME, else the host's.")
@click.option("--kubeconfig", metavar="FILE", help="Default: the pod's service account, else as kubectl.")
@click.option("--kubelet-dir", type=click.Path(path_type=Path), default=Path("/var/lib/kubelet"), show_default=True)
@click.option("--cdi-dir", type=click.Path(path_type=Path), default=Path("/var/run/cdi"), show_default=True)
@click.option("--state-dir", type=click.Path(path_type=Path), default=Path("/var/lib/milligpu"), show_default=True)
@click.option("--run-dir", type=click.Path(path_type=Path), default=Path("/run/milligpu"), show_default=True)
@click.option("--listen", default="0.0.0.0:9400", show_default=True, help="For metrics and statistics.")
def command(  # noqa: PLR0917 - as click calls it
    local: bool,
    kill_outside: bool,
    node: str,
    kubeconfig: str | None,
    kubelet_dir: Path,
    cdi_dir: Path,
    state_dir: Path,
    run_dir: Path,
    listen: str,
) -> int:
    """Offer this node's GPUs to Kubernetes and attach granted shares to containers, until SIGTERM.

    With --local serve `milligpu run` instead. Run by root it serves all users, and their limits are out of their
    reach. Without it `milligpu run` starts an agent for its own user and stops it when nobody needs it.
    """
    if local:
        return _serve_machine(kill_outside)
    from milligpu.node import service  # noqa: PLC0415 - gRPC and the rest are not for the other commands
    from milligpu.node.settings import Settings  # noqa: PLC0415

    name = node or os.environ.get("NODE_NAME") or socket.gethostname()
    service.main(Settings(name, kubeconfig, kubelet_dir, cdi_dir, state_dir, run_dir, listen))
    return 0


def _serve_machine(kill_outside: bool) -> int:
    from milligpu.agent.places import SERVICE, Places  # noqa: PLC0415
    from milligpu.agent.process import Settings, run  # noqa: PLC0415

    folder = SERVICE if os.geteuid() == 0 else Places.own(os.environ).folder
    return run(Settings(folder, idle=None, foreground=True, kill=kill_outside))
