"""Whether a command is about this machine or the cluster, and how it names a pod."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from milligpu.model.errors import BadRequest

_F = TypeVar("_F", bound=Callable[..., Any])
_POD_KINDS = frozenset({"pod", "pods", "po"})


def scope_options(function: _F) -> _F:
    """Add `--cluster`, `--machine`, `--kubeconfig` and `-n`."""
    options = [
        click.option(
            "--cluster/--machine",
            "cluster",
            default=None,
            help="Ask the cluster or this machine (default: the cluster if called by kubectl, with -n or with a "
            "kubeconfig; a session service on this machine goes before ~/.kube/config).",
        ),
        click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl)."),
        click.option(
            "-n",
            "--namespace",
            metavar="NAME",
            help="Namespace of the pods (default: all; for one pod, that of the kubeconfig's context).",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def is_cluster_scope(asked: bool | None, kubeconfig: str | None, namespace: str | None = None) -> bool:
    """Whether the command is about the cluster: as asked, else as the other options and the environment suggest."""
    if asked is not None:
        return asked
    if kubeconfig or namespace or os.environ.get("KUBECONFIG") or Path(sys.argv[0]).name.startswith("kubectl-"):
        return True
    return (Path.home() / ".kube" / "config").exists() and not _session_service_here()


def pod_name(text: str) -> str:
    """The name in `NAME` or `pod/NAME`, as kubectl accepts it; BadRequest for another kind of object."""
    kind, found, name = text.rpartition("/")
    if (found and kind not in _POD_KINDS) or not name:
        raise BadRequest("pod", text, "NAME or pod/NAME")
    return name


def names_pod(text: str) -> bool:
    """Whether the name is written as a pod's, `pod/NAME`."""
    return text.partition("/")[0] in _POD_KINDS and "/" in text


def _session_service_here() -> bool:
    from milligpu.sessions.paths import SERVICE, ServicePaths

    return any(places.socket.exists() for places in (ServicePaths(SERVICE), ServicePaths.own(os.environ)))
