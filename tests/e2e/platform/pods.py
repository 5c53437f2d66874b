"""What these tests do with pods: apply manifests as users do, and look from inside containers."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from devcluster.api import read_json
from devcluster.cluster import Cluster
from devcluster.images import BASE
from devcluster.wait import until
from milligpu.agent.pod_processes import pod_uid_of_process
from milligpu.model import names
from milligpu.wire.limits import LimitsPage, decode_limits
from tests.e2e.scheduling import told

DEADLINE_S = 90.0
EVICT_AFTER_S = 5.0
"""How long agents here let a pod wait that may not start."""
AUDIT_EVERY_S = 1.0
"""How long the agent here waits before it audits its GPUs again."""
GPUS = 14
"""GPUs of the node. The examples ask for two whole GPUs and for 5.8 in shares of at most 0.5. Of the other twelve
one always has room for the next share, wherever the shares before it are: twelve times 0.5 is more than 5.8."""
Json = dict[str, Any]

LOOK = """
import base64, ctypes, json, os
found = {"gpus": [], "page": None, "visible": os.environ.get("NVIDIA_VISIBLE_DEVICES")}
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    count, total = ctypes.c_int(), ctypes.c_size_t()
    code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    found["code"] = code
    for at in range(0 if code else count.value):
        cuda.cuDeviceTotalMem_v2(ctypes.byref(total), at)
        found["gpus"].append(total.value >> 20)
except OSError as error:
    found["code"] = str(error)
if os.path.exists("/run/milligpu/tenant/limits"):
    found["page"] = base64.b64encode(open("/run/milligpu/tenant/limits", "rb").read()).decode()
print(json.dumps(found))
"""
"""A program that tells what a container has."""

HOLD = """
import ctypes, sys, time
cuda = ctypes.CDLL(sys.argv[1])
context, memory = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(int(sys.argv[2]) << 20)) == 0
"""
"""A program with so many MiB of the driver that it is told to open."""


@dataclass(frozen=True, slots=True)
class Inside:
    """What a container sees of GPUs."""

    gpus: tuple[int, ...]
    """MiB of each."""
    code: int | str
    """CUDA's answer, or why there is no CUDA."""
    page: LimitsPage | None
    visible: str | None
    """What the environment says to NVIDIA's runtime."""

    @classmethod
    def read(cls, text: str) -> "Inside":
        found = json.loads(text)
        page = None if found["page"] is None else decode_limits(base64.b64decode(found["page"]))
        return cls(tuple(found["gpus"]), found["code"], page, found["visible"])


def look(cluster: Cluster, namespace: str, pod: str, container: str = "main") -> Inside:
    return Inside.read(execute(cluster, namespace, pod, LOOK, container))


def execute(cluster: Cluster, namespace: str, pod: str, program: str, container: str = "main") -> str:
    """Run a Python program in a running container."""
    return cluster.kubectl("exec", "-n", namespace, pod, "-c", container, "--", "python3", "-c", program)


def manifest(name: str, milli: int | None = None, *, spec: Json | None = None, **container: Any) -> Json:
    """A pod with one container, which sleeps unless it is given something else to do."""
    main: Json = {"name": "main", "image": BASE.reference, "command": ["sleep", "infinity"], **container}
    if milli is not None:
        main["resources"] = {"limits": {names.VGPU: milli}}
    settings: Json = {"terminationGracePeriodSeconds": 0, "containers": [main], **(spec or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": settings}


def apply(cluster: Cluster, namespace: str, *found: Mapping[str, Any]) -> str:
    text = yaml.safe_dump_all([dict(each) for each in found])
    return cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)


def get(cluster: Cluster, namespace: str, name: str, kind: str = "pod") -> Json:
    where = {"pod": "api/v1", "sharepod": "apis/kubeshare.nthu/v1"}[kind]
    return read_json(cluster.client, f"/{where}/namespaces/{namespace}/{kind}s/{name}")


def pods(cluster: Cluster, namespace: str) -> list[Json]:
    return read_json(cluster.client, f"/api/v1/namespaces/{namespace}/pods")["items"]


def wait_running(cluster: Cluster, namespace: str, count: int) -> list[Json]:
    """So many pods, and all of them with all containers running."""

    def running() -> list[Json] | None:
        found = [each for each in pods(cluster, namespace) if "deletionTimestamp" not in each["metadata"]]
        return found if len(found) == count and all(map(is_ready, found)) else None

    return until(f"{count} pods to run", running, DEADLINE_S, last_state=lambda: cluster.last_state(namespace))


def wait_told(cluster: Cluster, namespace: str, name: str, reason: str) -> str:
    """What an event with this reason says about an object."""
    state = cluster.last_state
    return until(
        f"event {reason} of {name}",
        lambda: told(cluster, namespace, name, reason) or None,
        DEADLINE_S,
        last_state=lambda: state(namespace),
    )


def is_ready(pod: Json) -> bool:
    return any(
        each["type"] == "Ready" and each["status"] == "True" for each in pod.get("status", {}).get("conditions", [])
    )


def processes_of(uid: str) -> list[tuple[int, str]]:
    """The processes of a pod on its node, with their command lines."""
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [(pid, _command(pid)) for pid in pids if pod_uid_of_process(pid) == uid]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
