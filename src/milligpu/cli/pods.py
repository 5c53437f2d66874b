"""Resizing a pod of the cluster: writes what is wanted, and says what the scheduler made of it."""

import time
from typing import Any

from milligpu.cli.explain import resizing
from milligpu.dialects.resize import Change, format_resize, parse_resize, resized
from milligpu.kube import config, fetch
from milligpu.model import names
from milligpu.model.errors import BadRequest, NoCapacity
from milligpu.model.grant import Grant
from milligpu.scheduler.resizes import words
from milligpu.scheduler.sight import PodReader, grant_of

# The scheduler answers in milliseconds; what takes longer waits for somebody to leave.
_PATIENCE_S = 5.0
_LOOK_S = 0.05


def resize_pod(
    name: str, change: Change, *, namespace: str | None, container: str | None, kubeconfig: str | None
) -> str:
    """Ask for another share; the line that says what the pod has now."""
    found = config.find(kubeconfig)
    space = namespace or found.namespace or "default"
    with config.blocking_client(found) as client:
        pod = fetch.pod(client, space, name)
        notes = pod.metadata.annotations or {}
        grant = _grant(client, space, name)
        which = container or _only(grant)
        before = parse_resize(notes.get(names.RESIZE, "{}"))
        changes = {**before, which: change.over(before.get(which, Change()))}
        resized(grant, changes)  # a mistake is refused before anything is written
        fetch.annotate_pod(client, space, name, {names.RESIZE: format_resize(changes)})
        return _outcome(client, space, name, changes)


def _outcome(client: Any, namespace: str, name: str, changes: dict[str, Change]) -> str:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        grant = _grant(client, namespace, name)
        if resized(grant, changes) is grant:
            return f"pod/{name}: {words(grant)}"
        time.sleep(_LOOK_S)
    why = resizing(client, _sight(client, namespace, name)).removeprefix("; ")
    raise NoCapacity(f"pod {namespace}/{name}: {why}", hint="it is resized as soon as that is free")


def _sight(client: Any, namespace: str, name: str) -> Any:
    from milligpu import dialects

    return PodReader(dialects.read).sight(fetch.pod(client, namespace, name))


def _grant(client: Any, namespace: str, name: str) -> Grant:
    grant = grant_of(fetch.pod(client, namespace, name).metadata)
    if grant is None:
        raise BadRequest("pod", f"{namespace}/{name}", "a pod that has a share of a GPU (see: milligpu explain)")
    return grant


def _only(grant: Grant) -> str:
    if len(grant.containers) != 1:
        raise BadRequest("container", None, f"-c with one of {', '.join(grant.containers)}")
    return next(iter(grant.containers))
