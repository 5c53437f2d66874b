"""Of what `top` and `ps` speak: this machine, or the cluster."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


def cluster_options(function: _F) -> _F:
    """`--cluster`, `--machine`, `--kubeconfig` and `-n`."""
    options = [
        click.option(
            "--cluster/--machine",
            "cluster",
            default=None,
            help="Default: the cluster when called by kubectl, or with a kubeconfig and no agent's socket here.",
        ),
        click.option("--kubeconfig", metavar="FILE", help="Of the cluster; default: as kubectl."),
        click.option("-n", "--namespace", help="Of the cluster's pods; default: all."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def means_cluster(asked: bool | None, kubeconfig: str | None) -> bool:
    """Whether the cluster is meant."""
    if asked is not None:
        return asked
    if kubeconfig or os.environ.get("KUBECONFIG") or Path(sys.argv[0]).name.startswith("kubectl-"):
        return True
    return (Path.home() / ".kube" / "config").exists() and not _agent_here()


def _agent_here() -> bool:
    from milligpu.agent.places import SERVICE, Places

    return any(places.socket.exists() for places in (Places(SERVICE), Places.own(os.environ)))
