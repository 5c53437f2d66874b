"""`milligpu agent`: the process that shares the GPUs of one machine."""

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from milligpu.agent.settings import AUDIT_EVERY_S, EVICT_AFTER_S, AgentSettings
from milligpu.model.errors import BadRequest
from milligpu.model.policy import SharePolicy, parse_policy
from milligpu.model.units import GPUS_MAX, Milli, parse_fraction, parse_whole

_F = TypeVar("_F", bound=Callable[..., Any])


def dir_option(name: str, default: str, what: str) -> Callable[[_F], _F]:
    path = click.Path(path_type=Path)
    return click.option(name, type=path, default=Path(default), show_default=True, metavar="DIR", help=what)


_OPTIONS = (
    click.option(
        "--node",
        default="",
        metavar="NAME",
        help="Name of this node in the cluster (default: $NODE_NAME, else the host name).",
    ),
    click.option(
        "--kubeconfig", metavar="FILE", help="Kubeconfig (default: the pod's service account, else as kubectl)."
    ),
    dir_option("--kubelet-dir", "/var/lib/kubelet", "Directory of the kubelet, with its sockets."),
    dir_option("--cdi-dir", "/var/run/cdi", "Directory in which the container runtime looks for CDI files."),
    dir_option("--state-dir", "/var/lib/milligpu", "Directory for the agent's files that must survive a reboot."),
    dir_option("--run-dir", "/run/milligpu", "Directory for limits pages, usage pages and sockets of containers."),
    click.option(
        "--host-root",
        type=click.Path(path_type=Path),
        default=Path("/"),
        show_default=True,
        metavar="DIR",
        help="Directory in which the node's root directory is mounted, for an agent in a container.",
    ),
    click.option(
        "--driver-root",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Root directory of NVIDIA's driver on the node (default: /run/nvidia/driver if a driver is there, "
        "else /).",
    ),
    click.option(
        "--reserve",
        multiple=True,
        metavar="[GPU=]FRACTION",
        help="Fraction of each GPU, or of the GPU with this index, to reserve for `milligpu run` on this node; "
        "can be repeated.",
    ),
    click.option(
        "--policy",
        multiple=True,
        metavar="[GPU=]POLICY",
        help="Share policy of each GPU, or of the GPU with this index: fixed, equal or best-effort (the default); "
        "can be repeated. `milligpu gpu policy` changes it later.",
    ),
    click.option(
        "--runtime-socket",
        type=click.Path(path_type=Path),
        default=Path("/run/containerd/containerd.sock"),
        show_default=True,
        metavar="FILE",
        help="Path to the container runtime's CRI socket.",
    ),
    click.option(
        "--listen",
        default="0.0.0.0:9400",
        show_default=True,
        metavar="ADDRESS:PORT",
        help="Address of the HTTP server for metrics, /stats and /readyz.",
    ),
)


def _reserved(text: str) -> tuple[int | None, Milli]:
    number, found, fraction = text.rpartition("=")
    index = parse_whole("--reserve", number, 0, GPUS_MAX - 1) if found else None
    return index, parse_fraction("--reserve", fraction, zero=True)


def _absolute(option: str, path: Path | None) -> Path | None:
    if path is not None and not path.is_absolute():
        raise BadRequest(option, str(path), "an absolute path of the node")
    return path


def _policy(text: str) -> tuple[int | None, SharePolicy]:
    number, found, name = text.rpartition("=")
    index = parse_whole("--policy", number, 0, GPUS_MAX - 1) if found else None
    return index, parse_policy("--policy", name)


def node_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `agent` and `doctor` share; the command gets them as `settings`."""

    @wraps(function)
    def wrapped(
        *,
        node: str,
        kubeconfig: str | None,
        kubelet_dir: Path,
        cdi_dir: Path,
        state_dir: Path,
        run_dir: Path,
        runtime_socket: Path,
        host_root: Path,
        driver_root: Path | None,
        listen: str,
        reserve: tuple[str, ...],
        policy: tuple[str, ...],
        **rest: Any,
    ) -> Any:
        name = node or os.environ.get("NODE_NAME") or socket.gethostname()
        settings = AgentSettings(
            name,
            kubeconfig,
            kubelet_dir,
            cdi_dir,
            state_dir,
            run_dir,
            listen,
            runtime=runtime_socket,
            host_root=host_root,
            driver_root=_absolute("--driver-root", driver_root),
            reserve=dict(map(_reserved, reserve)),
            policy=dict(map(_policy, policy)),
        )
        return function(settings=settings, **rest)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


@click.command()
@click.option("--local", is_flag=True, help="Serve `milligpu run` on this machine, without Kubernetes.")
@click.option(
    "--kill-outside",
    is_flag=True,
    help="Kill processes of containers and sessions that exceed or bypass their limits.",
)
@click.option(
    "--evict-after",
    type=click.FloatRange(min=0, min_open=True),
    default=EVICT_AFTER_S,
    show_default=True,
    metavar="SECONDS",
    help="Seconds to wait before evicting a pod whose container was refused on this node. Only pods with a "
    "controller are evicted.",
)
@click.option(
    "--audit-every",
    type=click.FloatRange(min=0, min_open=True),
    default=AUDIT_EVERY_S,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two audits of the processes on this node's GPUs.",
)
@click.option(
    "--program-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="For an agent in a container: directory of the node, mounted under the same path, into which the agent "
    "copies its libraries, because containers mount them from the node.",
)
@node_options
def command(
    *,
    local: bool,
    kill_outside: bool,
    evict_after: float,
    audit_every: float,
    program_dir: Path | None,
    settings: AgentSettings,
) -> int:
    """Run the node agent: offer this node's GPUs to Kubernetes and attach granted shares to containers.

    With --local, serve `milligpu run` on a machine without Kubernetes instead. Start it as root to serve all users;
    they cannot change their limits. No agent is needed for a single user: `milligpu run` starts a session service
    and stops it when it is idle.
    """
    if local:
        return _serve_machine(settings, kill_outside)
    if program_dir is not None:
        from milligpu.agent.program import run_from

        run_from(program_dir, settings.cdi)
    from milligpu.agent import lifecycle

    lifecycle.main(replace(settings, evict_after=evict_after, audit_every=audit_every, kill_outside=kill_outside))
    return 0


def _serve_machine(settings: AgentSettings, kill_outside: bool) -> int:
    from milligpu.model.errors import Unavailable
    from milligpu.nvml.gpus import NvmlGpus
    from milligpu.sessions.daemon import SessionServiceSettings, run
    from milligpu.sessions.paths import SERVICE, ServicePaths

    folder = SERVICE if os.geteuid() == 0 else ServicePaths.own(os.environ).folder
    try:
        with NvmlGpus() as nvml:
            settings.check_indices(nvml.count())
    except Unavailable:
        pass  # software GPUs are started with the first command
    return run(
        SessionServiceSettings(
            folder, idle=None, foreground=True, kill=kill_outside, share_policy=settings.share_policy
        )
    )
