"""`milligpu support-bundle`: what somebody needs to know who helps with a cluster, redacted, in one archive."""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, cast

from milligpu import __version__
from milligpu.installation.redact import Redactor
from milligpu.kube import config, fetch
from milligpu.model import names
from milligpu.model.errors import MilligpuError
from milligpu.model.names import CLASSES_PATH

Files: TypeAlias = dict[str, str]
Object: TypeAlias = dict[str, Any]

# The last lines of each container's log; enough for hours of an idle agent.
_LOG_LINES = 5000
_OWN = {
    "deployments": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "daemonsets": "/apis/apps/v1/namespaces/{namespace}/daemonsets",
    "leases": "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases",
    "own-pods": "/api/v1/namespaces/{namespace}/pods",
    "classes": CLASSES_PATH,
    "mutating-webhooks": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "validating-webhooks": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "admission-policies": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
}


def write_bundle(file: Path, files: Files) -> None:
    """Write the archive, readable by its owner only."""
    file.touch(mode=0o600)
    with tarfile.open(file, "w:gz") as archive:
        for name, text in sorted(files.items()):
            content = text.encode()
            info = tarfile.TarInfo(f"milligpu-support/{name}")
            info.size, info.mode = len(content), 0o600
            archive.addfile(info, io.BytesIO(content))


def collect(kubeconfig: str | None, namespace: str, more: dict[str, Callable[[], Any]]) -> Files:
    """Read the cluster and return the redacted files; what cannot be read is listed in errors.txt.

    `more` are further files, such as the results of checks, by their names.
    """
    redactor = Redactor(namespace)
    found: Files = {}
    errors: list[str] = []

    def keep(name: str, read: Callable[[], Any]) -> Any:
        try:
            value = read()
        except MilligpuError as error:
            errors.append(f"{name}: {error.message}")
            return None
        found[name] = value if isinstance(value, str) else json.dumps(value, indent=1) + "\n"
        return value

    with config.blocking_client(config.find_cluster(kubeconfig)) as client:

        def listed(path: str) -> list[Object]:
            items: list[Object] = fetch.get_json(client, path)["items"]
            return items

        pods = _try(lambda: listed("/api/v1/pods"), errors, "pods")
        for pod in pods:
            redactor.learn_pod(pod)
        keep("versions.json", lambda: {"milligpu": __version__, "kubernetes": fetch.server_version(client)})
        keep("pods.json", lambda: [redactor.keep_listed(pod, "Pod") for pod in pods if _uses_gpus(pod)])
        keep("nodes.json", lambda: [redactor.keep_listed(each, "Node") for each in listed("/api/v1/nodes")])
        events = "/apis/events.k8s.io/v1/events"
        keep(
            "events.json",
            lambda: [redactor.keep_listed(each, "Event") for each in listed(events) if _is_ours(each)],
        )
        for name, path in _OWN.items():
            where = path.format(namespace=namespace)
            keep(f"{name}.json", lambda where=where: [redactor.keep_own(each) for each in listed(where)])
        for pod, container in _own_containers(pods, namespace):
            path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}&tailLines={_LOG_LINES}"
            keep(f"logs/{pod}/{container}.log", lambda path=path: fetch.get_text(client, path))
    for name, read in more.items():
        keep(name, read)
    if errors:
        found["errors.txt"] = "\n".join(errors) + "\n"
    return {name: redactor.text(text) for name, text in found.items()}


def _try(read: Callable[[], list[Object]], errors: list[str], name: str) -> list[Object]:
    try:
        return read()
    except MilligpuError as error:
        errors.append(f"{name}: {error.message}")
        return []


def _uses_gpus(pod: Object) -> bool:
    """Whether a pod has a grant, or names a resource that milligpu serves."""
    if names.GRANT in pod["metadata"].get("annotations", {}):
        return True
    containers = cast(list[Object], pod["spec"].get("containers", []))
    return any("nvidia.com/" in json.dumps(each.get("resources", {})) for each in containers)


def _is_ours(event: Object) -> bool:
    return str(event.get("reportingController", "")).startswith(names.PREFIX)


def _own_containers(pods: list[Object], namespace: str) -> Iterator[tuple[str, str]]:
    for pod in pods:
        if pod["metadata"]["namespace"] == namespace:
            for container in pod["spec"]["containers"]:
                yield pod["metadata"]["name"], container["name"]
