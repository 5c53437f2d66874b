"""What admission adds to a pod with a remote share: the client of GPU servers, without a change of the image.

An init container copies the client's libraries into a volume. Another volume has the pod's own service-account
token for the audience `milligpu`, and the address and CA of the server, which the scheduler writes when it binds
the pod. Containers with a share find the libraries by the loader's path.
"""

from typing import Any

from milligpu.dialects import pod as pods
from milligpu.model import names
from milligpu.model.errors import BadRequest

INIT_CONTAINER = "milligpu-client"
AUDIENCE = "milligpu"
LIBRARIES = "/opt/milligpu"
ATTACH_FOLDER = "/run/milligpu/attach"
_CLIENT_VOLUME, _SERVER_VOLUME = "milligpu-client", "milligpu-server"
# The kubelet renews the token when four fifths of this are over.
_TOKEN_SECONDS = 3600


def inject_client(pod: dict[str, Any], containers: frozenset[str], image: str) -> None:
    """Add the client to the containers with these names; a pod that has it already is left as it is."""
    spec: dict[str, Any] = pod["spec"]
    volumes: list[dict[str, Any]] = spec.setdefault("volumes", [])
    if any(each.get("name") == _SERVER_VOLUME for each in volumes):
        return
    if not image:
        want = (
            f"left out: no image with the client is set here ({names.ATTACH} needs scheduler serve --client-image)"
        )
        raise BadRequest(names.ATTACH, "remote", want)
    volumes += [{"name": _CLIENT_VOLUME, "emptyDir": {}}, _server_volume()]
    for container in pods.changeable_containers(pod):
        if container["name"] in containers:
            _add(container)
    spec["initContainers"] = [_init_container(image), *(spec.get("initContainers") or [])]


def _server_volume() -> dict[str, Any]:
    token = {"audience": AUDIENCE, "expirationSeconds": _TOKEN_SECONDS, "path": "token"}
    server = {"path": "server", "fieldRef": {"fieldPath": f"metadata.annotations['{names.GPU_SERVER}']"}}
    sources = [{"serviceAccountToken": token}, {"downwardAPI": {"items": [server]}}]
    return {"name": _SERVER_VOLUME, "projected": {"sources": sources}}


def _init_container(image: str) -> dict[str, Any]:
    return {
        "name": INIT_CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/milligpu-client", "copy", LIBRARIES],
        "volumeMounts": [{"name": _CLIENT_VOLUME, "mountPath": LIBRARIES}],
        # What the admission policies of a namespace ask of every container (Pod Security's "restricted").
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _add(container: dict[str, Any]) -> None:
    mounts: list[dict[str, Any]] = container.setdefault("volumeMounts", [])
    mounts += [
        {"name": _CLIENT_VOLUME, "mountPath": LIBRARIES, "readOnly": True},
        {"name": _SERVER_VOLUME, "mountPath": ATTACH_FOLDER, "readOnly": True},
    ]
    environment: list[dict[str, Any]] = container.setdefault("env", [])
    path = next((each for each in environment if each.get("name") == "LD_LIBRARY_PATH"), None)
    own = str(path.get("value", "")) if path is not None else ""
    environment[:] = [each for each in environment if each is not path]
    environment += [
        {"name": "LD_LIBRARY_PATH", "value": f"{LIBRARIES}:{own}".rstrip(":")},
        {"name": "MILLIGPU_REMOTE_ATTACH", "value": ATTACH_FOLDER},
        {"name": "MILLIGPU_REMOTE_CONTAINER", "value": container["name"]},
    ]
