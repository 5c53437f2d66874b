"""`milligpu agent`: what runs on every machine with GPUs."""

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from milligpu.model.units import GPUS_MAX, Milli, parse_fraction, parse_whole
from milligpu.node.settings import EVICT_AFTER_S, Settings

_F = TypeVar("_F", bound=Callable[..., Any])


def _folder(name: str, default: str) -> Callable[[_F], _F]:
    return click.option(name, type=click.Path(path_type=Path), default=Path(default), show_default=True)


_OPTIONS = (
    click.option("--node", default="", help="The node's name in the cluster; default: NODE_NAME, else the host's."),
    click.option("--kubeconfig", metavar="FILE", help="Default: the pod's service account, else as kubectl."),
    _folder("--kubelet-dir", "/var/lib/kubelet"),
    _folder("--cdi-dir", "/var/run/cdi"),
    _folder("--state-dir", "/var/lib/milligpu"),
    _folder("--run-dir", "/run/milligpu"),
    click.option(
        "--reserve",
        multiple=True,
        metavar="[GPU=]PART",
        help="Set aside a part of each card, or of card number GPU, for `milligpu run` on this node.",
    ),
    click.option("--listen", default="0.0.0.0:9400", show_default=True, help="For metrics and statistics."),
)


def _reserved(text: str) -> tuple[int | None, Milli]:
    number, found, part = text.rpartition("=")
    index = parse_whole("--reserve", number, 0, GPUS_MAX - 1) if found else None
    return index, parse_fraction("--reserve", part, zero=True)


def node_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where things are on a node, read into `settings`."""

    @wraps(function)
    def wrapped(
        *,
        node: str,
        kubeconfig: str | None,
        kubelet_dir: Path,
        cdi_dir: Path,
        state_dir: Path,
        run_dir: Path,
        listen: str,
        reserve: tuple[str, ...],
        **rest: Any,
    ) -> Any:
        name = node or os.environ.get("NODE_NAME") or socket.gethostname()
        parts = dict(map(_reserved, reserve))
        settings = Settings(name, kubeconfig, kubelet_dir, cdi_dir, state_dir, run_dir, listen, reserve=parts)
        return function(settings=settings, **rest)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


@click.command()
@click.option("--local", is_flag=True, help="Without Kubernetes: for the commands of this machine's users.")
@click.option("--kill-outside", is_flag=True, help="With --local: end processes that use more than their share.")
@click.option(
    "--evict-after",
    type=click.FloatRange(min=0, min_open=True),
    default=EVICT_AFTER_S,
    show_default=True,
    metavar="SECONDS",
    help="Until a pod that may not start here, and has an owner, is evicted.",
)
@node_options
def command(local: bool, kill_outside: bool, evict_after: float, settings: Settings) -> int:
    """Offer this node's GPUs to Kubernetes and attach granted shares to containers, until SIGTERM.

    With --local serve `milligpu run` instead. Run by root it serves all users, and their limits are out of their
    reach. Without it `milligpu run` starts an agent for its own user and stops it when nobody needs it.
    """
    if local:
        return _serve_machine(kill_outside)
    from milligpu.node import service

    service.main(replace(settings, evict_after=evict_after))
    return 0


def _serve_machine(kill_outside: bool) -> int:
    from milligpu.agent.places import SERVICE, Places
    from milligpu.agent.process import Settings as LocalSettings
    from milligpu.agent.process import run

    folder = SERVICE if os.geteuid() == 0 else Places.own(os.environ).folder
    return run(LocalSettings(folder, idle=None, foreground=True, kill=kill_outside))
