"""`milligpu resize`: change the share of a running session, or of a container of a running pod."""

import os
import time
from typing import TYPE_CHECKING

import click

from milligpu.cli.output import CommandRefused
from milligpu.cli.scope import is_cluster_scope, names_pod, pod_name, scope_options
from milligpu.cli.share_options import share_options
from milligpu.model import names
from milligpu.model.errors import BadFormat, BadRequest, NoCapacity
from milligpu.model.grant import Grant
from milligpu.model.units import Mib, Milli

if TYPE_CHECKING:
    from milligpu.dialects.resize import ShareChange
    from milligpu.kube.config import BlockingClient
    from milligpu.wire.kubernetes import KubePod

# Seconds. The scheduler answers in milliseconds; a resize that takes longer waits until other pods release a share.
_PATIENCE_S = 5
# For a user who may read the pod but not watch it.
_NO_WATCH_S = 1.0
_FORBIDDEN = 403


@click.command()
@click.argument("name", metavar="ID|[pod/]NAME")
@share_options
@scope_options
@click.option(
    "-c",
    "--container",
    metavar="NAME",
    help="Container of the pod; required if several of its containers hold a share.",
)
def command(  # noqa: PLR0917 - as click calls it
    name: str,
    milli: Milli | None,
    mib: Mib | None,
    limit: Milli | None,
    cluster: bool | None,
    kubeconfig: str | None,
    namespace: str | None,
    container: str | None,
) -> None:
    """Change the share of a running session or pod.

    ID is the session's ID as shown by `milligpu ps`, or its beginning. NAME is a pod; write pod/NAME to name a pod
    where sessions run. Options that are left out keep their value.

    The change takes effect within a second. If the new memory limit is below what is in use, new allocations fail
    until the use has dropped below the limit.
    """
    if milli is None and mib is None and limit is None:
        raise click.UsageError("set at least one of -p, -m and --limit")
    if names_pod(name) or container is not None or is_cluster_scope(cluster, kubeconfig, namespace):
        from milligpu.dialects.resize import ShareChange

        change = ShareChange(milli, mib, limit)
        click.echo(_resize_pod(pod_name(name), change, namespace, container, kubeconfig))
        return
    from milligpu.sessions.client import SessionClient
    from milligpu.sessions.protocol import ResizeShare, ShareResized

    answer = SessionClient(os.environ).ask(ResizeShare(name, milli, mib, limit))
    if isinstance(answer, ShareResized):
        click.echo(answer.message)


def _resize_pod(
    name: str, change: "ShareChange", namespace: str | None, container: str | None, kubeconfig: str | None
) -> str:
    """Write the wanted share into the pod's annotation, and wait for the scheduler; what the pod holds now."""
    from milligpu.dialects.resize import ShareChange, format_resize, parse_resize, resized_grant
    from milligpu.kube import config, fetch
    from milligpu.status.pod import refuse_impossible_resize

    found = config.find_cluster(kubeconfig)
    space = namespace or found.namespace or "default"
    with config.blocking_client(found) as client:
        pod = fetch.get_pod(client, space, name)
        grant = _grant(pod)
        which = container or _only_container(grant)
        before = parse_resize((pod.metadata.annotations or {}).get(names.RESIZE, "{}"))
        changes = {**before, which: change.over(before.get(which, ShareChange()))}
        # A mistake, or a share that the GPU could never have, is refused before anything is written.
        refuse_impossible_resize(client, pod, resized_grant(grant, changes))
        present = (pod.metadata.annotations or {}).get(names.RESIZE)
        pod = fetch.annotate_pod(client, space, name, {names.RESIZE: format_resize(changes)})
        try:
            return _outcome(client, pod, changes)
        except CommandRefused:
            fetch.annotate_pod(client, space, name, {names.RESIZE: present})
            raise


def _outcome(client: "BlockingClient", pod: "KubePod", changes: dict[str, "ShareChange"]) -> str:
    from milligpu import dialects
    from milligpu.cluster.read import PodReader
    from milligpu.cluster.resize import describe_grant
    from milligpu.dialects.resize import resized_grant
    from milligpu.status.pod import explain_resize_of_pod, refused_resize

    meta, wanted = pod.metadata, (pod.metadata.annotations or {}).get(names.RESIZE, "")
    for _ in range(_PATIENCE_S):
        pod = _when_resized(client, pod, changes)
        grant = _grant(pod)
        if resized_grant(grant, changes) is grant:
            return f"pod/{pod.metadata.name}: {describe_grant(grant)}"
        if refused := refused_resize(client, meta.namespace, meta.uid, wanted):
            raise CommandRefused(refused)
    message = explain_resize_of_pod(client, PodReader(dialects.read_pod).read(pod)).removeprefix("; ")
    hint = "the request stays: the scheduler resizes the pod when there is room"
    raise NoCapacity(f"pod {pod.metadata.namespace}/{pod.metadata.name}: {message}", hint=hint)


def _when_resized(client: "BlockingClient", pod: "KubePod", changes: dict[str, "ShareChange"]) -> "KubePod":
    """Return the pod as soon as it is resized, or as it is a second later."""
    from milligpu.dialects.resize import resized_grant
    from milligpu.kube import fetch
    from milligpu.kube.api import ApiRefused

    try:
        for latest in fetch.watch_pod(client, pod, 1):
            pod = latest
            grant = _grant(pod)
            if resized_grant(grant, changes) is grant:
                break
    except ApiRefused as error:
        if error.status != _FORBIDDEN:
            raise
        time.sleep(_NO_WATCH_S)
        return fetch.get_pod(client, pod.metadata.namespace, pod.metadata.name)
    return pod


def _grant(pod: "KubePod") -> Grant:
    from milligpu.cluster.observed import UnreadableGrant
    from milligpu.cluster.read import grant_of_pod

    grant = grant_of_pod(pod.metadata)
    where = f"{pod.metadata.namespace}/{pod.metadata.name}"
    if isinstance(grant, UnreadableGrant):
        raise BadFormat(f"grant of pod {where}", grant.problem)
    if grant is None:
        hint = f"see: milligpu explain {pod.metadata.name} -n {pod.metadata.namespace}"
        raise BadRequest("pod", where, "a pod that holds a share of a GPU", hint=hint)
    return grant


def _only_container(grant: Grant) -> str:
    if len(grant.containers) != 1:
        raise click.UsageError(f"several containers hold a share: choose with -c {'|'.join(grant.containers)}")
    return next(iter(grant.containers))
